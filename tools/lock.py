"""Write the lock files: the installed versions of all packages that pyproject.toml needs, with hashes of their files.

Run it in an environment with the wanted versions; `uv` gets the hashes from the index. torch has its own file, without
hashes: its CPU build (2.13.0+cpu), which pip prefers where it is available, has the same version but other bytes, and
pip refuses files whose hash is not listed.
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
BUILD = ["hatchling>=1.27", "editables"]  # needed by an editable installation without build isolation
TORCH = "torch"
MADE_BY = "# Made by `make lock`."


def closure(requirements: Iterable[str]) -> dict[str, str]:
    """Return all packages that the requirements need, including themselves, with their installed versions."""
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
    """Whether a package's requirement applies on this machine, without any extras."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def with_hashes(versions: dict[str, str]) -> str:
    """Return the versions as requirements of pip, each with the hashes of all of its files.

    Raises:
        SystemExit: uv is not installed, or the index does not have a version.
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
    [installed] = map(Requirement, extras["all"])  # clearformer[...]; other extras are not locked
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
