"""Run a clearformer command and draw its terminal as an SVG: python tools/picture.py OUT.svg ARGUMENTS..."""

import io
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 112


def main() -> None:
    out, *arguments = sys.argv[1:]
    command = [sys.executable, "-m", "clearformer", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(Text(f"$ clearformer {' '.join(arguments)}", style="bold green"))
    console.print(Text(done.stdout.rstrip()))
    Path(out).write_text(console.export_svg(title="clearformer"))


if __name__ == "__main__":
    main()
