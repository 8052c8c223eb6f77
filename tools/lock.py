"""Write requirements.lock and requirements-dev.lock: the installed versions of all that pyproject.toml names.

Run in an environment where the wanted versions are installed. Versions are pinned without hashes, because a
processor's own build of torch (2.13.0+cpu) carries the same version and other bytes.
"""

import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
BUILD = ["hatchling>=1.27", "editables"]  # what an editable installation without isolation needs


def closure(requirements: list[str]) -> dict[str, str]:
    """Every package that the requirements need, themselves included, with its installed version."""
    versions: dict[str, str] = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in versions:
            versions[name] = metadata.version(name).partition("+")[0]
            waiting += [r for r in map(Requirement, metadata.requires(name) or []) if wanted(r)]
    return versions


def wanted(requirement: Requirement) -> bool:
    """Whether a package's requirement holds here, without any of its extras, and is no CUDA package."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def write(path: Path, versions: dict[str, str], header: str) -> None:
    lines = [f"{name}=={versions[name]}" for name in sorted(versions)]
    path.write_text(f"# {header}\n# Made by `make lock`.\n" + "\n".join(lines) + "\n")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    core = closure(project["project"]["dependencies"] + BUILD)
    everything = closure(project["project"]["dependencies"] + BUILD + project["dependency-groups"]["dev"])
    write(ROOT / "requirements.lock", core, "What clearformer needs to run, pinned.")
    extra = {name: version for name, version in everything.items() if name not in core}
    write(ROOT / "requirements-dev.lock", extra, "What its tests and checks need besides, pinned.")


if __name__ == "__main__":
    main()
