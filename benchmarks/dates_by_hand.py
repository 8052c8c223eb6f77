"""How a run translates 100 dates, times, numbers and amounts that a French speaker typed by hand.

    clearformer train data.name=dates
    python benchmarks/dates_by_hand.py RUN [--beams N] [--json FILE]

`dates_by_hand.tsv` has the inputs, their English, and the value of those that the pairs of `dates` have too; the
others are forms that no training pair has. None was drawn from what makes the pairs. An input may stand in training
by chance, as a sentence or by its value: the table says of each whether it does, and the shares are given for all
rows and for those of which training has neither.

A translation is right if it is the expected one to the letter, white space at its ends aside; it is right in
substance if it is so without regard to capitals, and to white space and punctuation at the ends.
"""

import argparse
import ast
import json
import string
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from clearformer.data import PairsData
from clearformer.data.builtin import quantities
from clearformer.data.builtin.quantities import Quantity
from clearformer.data.holding_out import own_text
from clearformer.data.pairs.sources import Pair, open_pairs
from clearformer.decoding.text.translations import translate
from clearformer.run import Run, load

TABLE = Path(__file__).with_suffix(".tsv")
WITH_DECIMALS = (quantities.Number, quantities.Percent, quantities.Amount, quantities.Rounded)
OUTSIDE = string.whitespace + ".,;:!?…\"'()«»"  # no sign that says something: -18, 20%, $3


class Row(NamedTuple):
    """An input, its English, and what it means, where the pairs of `dates` can say so."""

    french: str
    english: str
    quantity: Quantity | None


def read_table(path: Path = TABLE) -> list[Row]:
    """The rows of the table."""
    _, *lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    rows = []
    for line in lines:
        french, english, value = line.split("\t")
        rows.append(Row(french, english, quantity_of(ast.parse(value, mode="eval").body) if value else None))
    return rows


def quantity_of(node: ast.expr) -> Any:
    """A quantity as the table writes it, `Day(1789, 7, 14)`: one of `quantities`, and literals as its arguments."""
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    assert isinstance(node.func, ast.Name)
    kind = {kind.__name__: kind for kind in quantities.QUANTITIES}[node.func.id]
    arguments = [quantity_of(argument) for argument in node.args]
    if kind in WITH_DECIMALS:
        arguments[0] = Decimal(arguments[0])
    named = {str(keyword.arg): quantity_of(keyword.value) for keyword in node.keywords}
    return kind(*arguments, **named)


def is_right(translation: str, expected: str) -> bool:
    """To the letter, white space at the ends aside."""
    return translation.strip() == expected


def is_right_in_substance(translation: str, expected: str) -> bool:
    """Without regard to capitals, and to white space and punctuation at the ends."""
    return translation.strip(OUTSIDE).casefold() == expected.strip(OUTSIDE).casefold()


def training_pairs(run: Run) -> list[Pair]:
    """What the run was trained on."""
    assert isinstance(run.config.data, PairsData)
    return open_pairs(run.config.data).read().splits["train"]


def measured(rows: Sequence[Row], translations: Sequence[str], train: Sequence[Pair]) -> dict[str, Any]:
    """Each row with its translation and whether it is right, and the shares of the right ones."""
    sources = {own_text(pair.source) for pair in train}
    values = {value for pair in train for value in pair.values}
    results = [
        {
            "french": row.french,
            "expected": row.english,
            "translation": translation,
            "right": is_right(translation, row.english),
            "right_in_substance": is_right_in_substance(translation, row.english),
            "source_in_training": own_text(row.french) in sources,
            "value_in_training": row.quantity is not None and bool(values & set(row.quantity.values)),
        }
        for row, translation in zip(rows, translations, strict=True)
    ]
    new = [each for each in results if not (each["source_in_training"] or each["value_in_training"])]
    return {"all": shares(results), "not_in_training": shares(new), "rows": results}


def shares(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many there are, and the shares of them that are right."""
    counts = {key: sum(each[key] for each in results) for key in ("right", "right_in_substance")}
    return {"n": len(results)} | {
        key: count / len(results) if results else None for key, count in counts.items()
    }


def print_table(report: dict[str, Any]) -> None:
    """Each row, and the shares below."""
    for each in report["rows"]:
        mark = "right" if each["right"] else "nearly" if each["right_in_substance"] else "WRONG"
        seen = "text" if each["source_in_training"] else "value" if each["value_in_training"] else "-"
        expected = "" if each["right"] else f"  (expected {each['expected']})"
        print(f"{mark:7}{seen:7}{each['french']:52}{each['translation']}{expected}")
    print("\nfirst column: right to the letter, nearly (capitals and outer punctuation aside), or WRONG;")
    print("second: what of the row is in the training pairs")
    for name, title in (("all", "all rows"), ("not_in_training", "neither text nor value in training")):
        found = report[name]
        if found["n"]:
            print(
                f"{title} ({found['n']}): right {found['right']:.1%}, in substance {found['right_in_substance']:.1%}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="the run's name, or its folder")
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    run, rows = load(arguments.run), read_table()
    found = translate(run, [row.french for row in rows], beams=arguments.beams)
    report = measured(rows, [best.text for best, *_ in found], training_pairs(run))
    print_table(report)
    if arguments.json:
        settings = {"run": arguments.run, "beams": arguments.beams}
        arguments.json.write_text(json.dumps(settings | report, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
