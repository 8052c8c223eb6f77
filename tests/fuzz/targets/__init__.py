"""What is fed: one file a target."""

from ..cases import Target
from .commands import Commands
from .data_files import DataFiles
from .folders import Folders
from .runs import Runs
from .settings import Settings
from .tokenizers import Tokenizers

TARGETS: dict[str, Target] = {
    target.name: target for target in (Settings(), Tokenizers(), Folders(), Runs(), Commands(), DataFiles())
}
