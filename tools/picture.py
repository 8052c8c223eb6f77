"""Draw a terminal as an SVG: clearformer train 2>&1 | python tools/picture.py docs/demo.svg '$ clearformer train'"""

import io
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 118


def main() -> None:
    out, command = sys.argv[1:]
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(Text(command, style="bold green"))
    console.print(Text(sys.stdin.read().strip("\n")))
    Path(out).write_text(console.export_svg(title="clearformer"))


if __name__ == "__main__":
    main()
