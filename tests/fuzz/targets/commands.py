"""Command lines: every command, with options and arguments that are changed, left out or too many."""

import random
from importlib import import_module
from pathlib import Path
from typing import Any

from typer.main import get_command

from clearformer.cli import COMMANDS

from ..cases import Case, Step
from ..mutations import RAW, VALUES
from ..oracle import call, contents, unchanged
from .folders import SIZES, write_folder
from .trained import KINDS, TINY, copied, give_runs

from clearformer.model import ModelConfig  # isort: skip

# What is typed, and behind the bar what stays: it keeps a command short that would otherwise do much.
LINES = {
    "train": f"train quick data.path=text.txt train.batch_size=2 --run new | {' '.join(TINY)}",
    "train resume": "train --run text --resume | train.max_steps=4 train.max_seconds=5",
    "eval": "eval text --data line.txt --context 5 --stride 3 --json |",
    "eval pairs": "eval pairs --beams 2 --split val --checkpoint latest |",
    "eval pets": "eval pets --figure figure.png --device cpu |",
    "eval gaps": "eval gaps --average 1 |",
    "generate": "generate text --prompt the --temperature 0.7 --top-k 3 --seed 1 --json | --max-new-tokens 3",
    "generate beams": "generate text --prompt the --beams 2 --num 1 | --max-new-tokens 3",
    "translate": "translate pairs line.txt --beams 2 --length-penalty 0.6 | --max-new-tokens 3",
    "classify": "classify pets line.txt --json --truncate |",
    "score": "score text line.txt --prefix the --json |",
    "tokenizer train": "tokenizer train text.txt --kind bpe --vocab-size 280 --out new.json |",
    "tokenizer show": "tokenizer show the --tokenizer runs/text/tokenizer.json --json |",
    "tokenizer compare": "tokenizer compare text.txt --kinds bpe,unigram --vocab-size 290 |",
    "data list": "data list --json |",
    "data prepare": "data prepare data.path=text.txt tokenizer.kind=char --json |",
    "data inspect": "data inspect data.path=pairs.tsv data.kind=pairs |",
    "plan": f"plan quick --device a100 --json | {' '.join(TINY)}",
    "presets": "presets quick |",
    "runs": "runs --json |",
    "export": "export text out --checkpoint latest |",
    "export to gguf": "export text out.gguf --dtype float16 |",
    "import": "import model --run new |",
    "help": "--help |",
    "version": "--version |",
}
ODD = (
    *(
        "-",
        "--",
        "-x",
        "--x",
        "--json",
        "--help",
        "=",
        "x=",
        "=x",
        "x=1",
        ".",
        "..",
        "/",
        "/dev/null",
    ),
    *("/nowhere/x", "~", "*", "0", "-1", "1e9", "text", "pairs", "text.txt", "runs", "runs/text", "model"),
    *("none", "auto", "latest", "test", "train", "char", "quick"),
)
TEXTS = {
    **{name: value for name, value in VALUES.items() if isinstance(value, str)},
    **{name: RAW[name] for name in ("5,000 digits", "brackets", "no value", "quote", "exponent")},
    **{f"={odd}": odd for odd in ODD},
}
STDIN = {"nothing": b"", "lines": b"le 3 mai\nle 4 mai\n", "no UTF-8": b"\xff\xfe\n", "NUL": b"\0\n"}


class Commands:
    """Called in this process. A base is a command line's name; steps work on its words, by their places."""

    name = "commands"

    def prepare(self, originals: Path) -> None:
        """Runs, data, and a folder to import."""
        give_runs(originals)
        write_folder(originals / "model", ModelConfig(**SIZES))

    def draw(self, rng: random.Random, originals: Path) -> Case:
        """One to three changes of a command line."""
        base = rng.choice(list(LINES))
        words = LINES[base].partition("|")[0].split()
        options = options_of(words)
        steps = [self.step(rng, len(words), options) for _ in range(rng.choice([1, 1, 2, 3]))]
        if rng.random() < 0.2:
            steps.append(["stdin", rng.choice(list(STDIN))])
        return Case(self.name, base, tuple(steps))

    def step(self, rng: random.Random, n_words: int, options: list[str]) -> Step:
        """Something to do to the words behind the command's name."""
        place = rng.randrange(1, n_words + 1)
        match rng.choice(["drop", "replace", "replace", "insert", "option", "option", "swap", "join"]):
            case "drop":
                return ["drop", place]
            case "replace":
                return ["replace", place, rng.choice(list(TEXTS))]
            case "insert":
                return ["insert", place, rng.choice(list(TEXTS))]
            case "option" if options:
                return ["option", place, rng.choice(options), rng.choice([*TEXTS, None])]
            case "join":
                return ["join", place, rng.choice(list(TEXTS))]
            case _:
                return ["swap", place, rng.randrange(1, n_words + 1)]

    def run(self, case: Case, originals: Path, place: Path) -> None:
        """Type it."""
        copied(originals, place, *KINDS)
        write_folder(place / "model", ModelConfig(**SIZES))
        before = contents(place)
        line, _, fixed = LINES[case.base].partition("|")
        words, stdin = spoiled(line.split(), case.steps)
        answer = call(*words, *fixed.split(), stdin=stdin)
        if answer.status != 0:
            unchanged(before, place)


def spoiled(words: list[str], steps: tuple[Step, ...]) -> tuple[list[str], bytes]:
    """The words after all steps, and what is on standard input."""
    stdin = b""
    for action, place, *rest in steps:
        if action == "stdin":
            stdin = STDIN[place]
        elif action == "insert":
            words = [*words[:place], TEXTS[rest[0]], *words[place:]]
        elif action == "option":
            value = [] if rest[1] is None else [TEXTS[rest[1]]]
            words = [*words[:place], rest[0], *value, *words[place:]]
        elif place >= len(words):
            continue
        elif action == "drop":
            words = [*words[:place], *words[place + 1 :]]
        elif action == "replace":
            words = [*words[:place], TEXTS[rest[0]], *words[place + 1 :]]
        elif action == "join":
            words = [*words[:place], f"{words[place]}{TEXTS[rest[0]]}", *words[place + 1 :]]
        elif action == "swap" and rest[0] < len(words):
            words = list(words)
            words[place], words[rest[0]] = words[rest[0]], words[place]
    return words, stdin


def options_of(words: list[str]) -> list[str]:
    """The options that a command has."""
    if words[0] not in COMMANDS:
        return []
    command: Any = get_command(import_module(f"clearformer.cli.commands.{words[0]}").app)
    if len(words) > 1:
        command = getattr(command, "commands", {}).get(words[1], command)
    return sorted(
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    )
