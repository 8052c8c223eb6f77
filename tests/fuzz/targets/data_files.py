"""Data: texts, pairs and labelled texts in every form of file, with bytes that do not belong there."""

import gzip
import json
import random
from pathlib import Path

from ..cases import Case, Violation
from ..mutations import draw_bytes_step, draw_document_step, spoil_bytes, spoil_document, unmarked
from ..oracle import call, contents, unchanged

ROWS = [(f"the {pet} {n} sleeps", pet) for n in range(8) for pet in ("cat", "dog")]
PAIRS = [(f"le {n} mai", f"May {n}") for n in range(1, 25)]
LINES = "".join(f"the quick brown fox jumps over {n} dogs\n" for n in range(30))
LABELLED = ("data.kind=labelled", "tokenizer.kind=byte", "data.val_fraction=0.2")
TRANSLATED = ("data.kind=pairs", "tokenizer.kind=byte", "data.val_fraction=0.2")
FILES: dict[str, tuple[str, tuple[str, ...]]] = {
    "text.txt": (LINES, ()),
    "text.txt.gz": (LINES, ()),
    "texts.jsonl": ("".join(json.dumps({"text": line}) + "\n" for line in LINES.splitlines()), ()),
    "labelled.tsv": ("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in ROWS), LABELLED),
    "labelled.csv": ("text,label\n" + "".join(f'"{text}",{label}\n' for text, label in ROWS), LABELLED),
    "labelled.jsonl": (
        "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in ROWS),
        LABELLED,
    ),
    "labelled.csv.gz": ("text,label\n" + "".join(f"{text},{label}\n" for text, label in ROWS), LABELLED),
    "pairs.tsv": ("".join(f"{source}\t{target}\n" for source, target in PAIRS), TRANSLATED),
    "pairs.tsv.gz": ("".join(f"{source}\t{target}\n" for source, target in PAIRS), TRANSLATED),
}


class DataFiles:
    """Prepared, and inspected if prepared. A base is a file's name; a packed one is changed before or after packing."""

    name = "data_files"

    def prepare(self, originals: Path) -> None:
        """There is nothing to write: the files are short."""

    def draw(self, rng: random.Random, originals: Path) -> Case:
        """One to three changes of a file."""
        base = rng.choice(list(FILES))
        steps = []
        for _ in range(rng.choice([1, 1, 2, 3])):
            if ".jsonl" in base and rng.random() < 0.5:
                line = rng.randrange(4)
                steps.append(
                    ["line", line, *draw_document_step(rng, json.loads(FILES[base][0].splitlines()[line]))]
                )
            else:
                packed = base.endswith(".gz") and rng.random() < 0.3
                steps.append(["packed" if packed else "plain", *draw_bytes_step(rng)])
        return Case(self.name, base, tuple(steps))

    def run(self, case: Case, originals: Path, place: Path) -> None:
        """Prepare the file."""
        file = place / "files" / case.base
        file.parent.mkdir()
        file.write_bytes(spoiled(case))
        before = contents(file.parent)
        arguments = [f"data.path={file}", *FILES[case.base][1], "--json"]
        answer = call("data", "prepare", *arguments)
        unchanged(before, file.parent)
        if answer.status != 0:
            return
        again = call("data", "inspect", *arguments)
        if again.status != 0:
            raise Violation(f"what was prepared cannot be inspected: {again.err[-300:]}")
        first = json.loads(answer.out)
        second = json.loads(again.out)
        if different := [key for key in first if key in second and first[key] != second[key]]:
            raise Violation(f"prepared and inspected differ in {different}")


def spoiled(case: Case) -> bytes:
    """A case's file."""
    content = FILES[case.base][0].encode()
    for where, *step in case.steps:
        if where == "plain":
            content = spoil_bytes(content, step)
        elif where == "line":
            content = spoil_line(content, step[0], step[1:])
    if case.base.endswith(".gz"):
        content = gzip.compress(content, mtime=0)
        for where, *step in case.steps:
            if where == "packed":
                content = spoil_bytes(content, step)
    return content


def spoil_line(content: bytes, number: int, step: list) -> bytes:
    """One line of JSON after a step; none that is no JSON any more."""
    lines = content.split(b"\n")
    try:
        document = json.loads(lines[number])
    except (ValueError, IndexError, RecursionError):
        return content
    lines[number] = unmarked(json.dumps(spoil_document(document, step))).encode()
    return b"\n".join(lines)
