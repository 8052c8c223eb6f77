"""Write the lock files: the installed versions of all that pyproject.toml names, with the hashes of their files.

Run in an environment where the wanted versions are installed; `uv` asks the index for the hashes. torch has a file of
its own, without hashes: its build for processors alone (2.13.0+cpu), which pip takes where it is at hand, carries the
same version and other bytes, and pip refuses what is not in the list.
"""

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
BUILD = ["hatchling>=1.27", "editables"]  # what an editable installation without isolation needs
TORCH = "torch"
MADE_BY = "# Made by `make lock`."


def closure(requirements: Iterable[str]) -> dict[str, str]:
    """Every package that the requirements need, themselves included, with its installed version."""
    versions: dict[str, str] = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in versions:
            versions[name] = metadata.version(name).partition("+")[0]
            waiting += [r for r in map(Requirement, metadata.requires(name) or []) if applies(r)]
    return versions


def applies(requirement: Requirement) -> bool:
    """Whether a package's requirement holds here, without any of its extras, and is no CUDA package."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def with_hashes(versions: dict[str, str]) -> str:
    """The versions as pip's requirements, each with the hashes of all of its files.

    Raises:
        SystemExit: uv is not there, or the index does not have a version.
    """
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("tools/lock.py needs uv: pip install uv")
    pinned = "".join(f"{name}=={versions[name]}\n" for name in sorted(versions))
    options = ["--generate-hashes", "--no-deps", "--no-header", "--no-annotate", "--quiet"]
    answer = subprocess.run(
        [uv, "pip", "compile", *options, "-"], input=pinned, capture_output=True, text=True, check=False
    )
    if answer.returncode:
        sys.exit(answer.stderr.strip())
    return answer.stdout


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    [installed] = map(Requirement, extras["all"])  # clearformer[...]: the others are for who asks for them
    optional = [need for name in sorted(installed.extras) for need in extras[name]]
    wanted = [*project["project"]["dependencies"], *optional, *BUILD]
    core = closure(wanted)
    everything = closure([*wanted, *project["dependency-groups"]["dev"]])
    torch = core.pop(TORCH)
    others = {name: version for name, version in everything.items() if name not in core and name != TORCH}
    (ROOT / "requirements-torch.lock").write_text(
        f"# torch, pinned without hashes: its builds for processors and for GPUs share a version.\n{MADE_BY}\n"
        f"{TORCH}=={torch}\n"
    )
    (ROOT / "requirements.lock").write_text(
        f"# What clearformer needs to run, with all of its extras, but for torch.\n{MADE_BY}\n{with_hashes(core)}"
    )
    (ROOT / "requirements-dev.lock").write_text(
        f"# What its tests and checks need besides.\n{MADE_BY}\n{with_hashes(others)}"
    )


if __name__ == "__main__":
    main()
