"""One number of a block explained: its formula, its operands, the terms of its sum, and the line that computes it.

    found = lens.cell(run, text, layer=0, head=2, name="blocks.0.attn.hook_q", row=3, column=5)
    found.formula           q[3,5] = sum_d norm1[3,d] W_Q[d,5]
    found.terms[0]          the largest product
    found.error             |recomputed - the model's own number|
    print(found.snippet)    the computation as Python code

Shapes: N numbers in an operand.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_whole
from clearformer.errors import RunError, UserError
from clearformer.lens.inputs import Inputs, Readable, Subject, quiet, read
from clearformer.lens.numbers.block import check_name, row_of
from clearformer.lens.numbers.code import CodeLine
from clearformer.lens.numbers.rules import Explained, Term, summed
from clearformer.lens.numbers.sources import Operand
from clearformer.lens.numbers.steps import Step
from clearformer.lens.numbers.walk import Walk
from clearformer.lens.showing import Shown, Table, bars, number, visible
from clearformer.runs.opening import opening
from clearformer.text import Tokenizer

MOST_TERMS = 24
IMPORTS = {
    "torch.": "import torch",
    "positive(": "from clearformer.model.linear_attention import positive",
}


@dataclass(frozen=True, repr=False, eq=False)
class Cell(Shown):
    """One number, and how it is computed.

    Attributes:
        name: The name of its matrix.
        symbol: The symbol of the matrix in formulas.
        title: The matrix in words.
        row: The row, from 0: a position.
        column: The column, from 0: a dimension, a key position, or the id of an output.
        row_label: The token at the row.
        column_label: The token or output at the column; empty for a dimension.
        value: The model's own number.
        formula: The formula with this number's indices; for a user's kind, the reason why there is none.
        operands: The numbers that it is computed from.
        terms: The terms of the sum in the formula, largest in absolute value first.
        n_rest: The number of terms that are left out.
        rest: Their sum.
        sum: The sum of all terms.
        recomputed: The number computed from the operands alone; None without a formula.
        error: |recomputed - value|; None without a formula.
        section: The lecture's section.
        code: The line of code that computes it; None if its source is not available.
        snippet: Python code that computes it.
    """

    name: str
    symbol: str
    title: str
    row: int
    column: int
    row_label: str
    column_label: str
    value: float
    formula: str
    operands: list[Operand]
    terms: list[Term]
    n_rest: int
    rest: float
    sum: float
    recomputed: float | None
    error: float | None
    section: str
    code: CodeLine | None
    snippet: str

    def caption(self) -> str:
        return f"{self.symbol}[{self.row},{self.column}] = {number(self.value)}: {self.title}"

    def table(self) -> Table:
        rows = [
            [term.label, factor(term.left), factor(term.right), number(term.value)] for term in self.terms
        ]
        if self.n_rest:
            rows.append([f"{self.n_rest} others", "", "", number(self.rest)])
        return Table(["term", "left", "right", "value"], rows)

    def notes(self) -> list[str]:
        said = [self.formula]
        if self.error is not None and self.recomputed is not None:
            said.append(
                f"recomputed {self.recomputed:+.6f}, the model's own {self.value:+.6f}, error {self.error:.1e}"
            )
        if self.code is not None:
            said.append(f"{self.code.file}:{self.code.line}: {self.code.text}")
        return [*said, self.section]

    def inches(self) -> tuple[float, float]:
        return 6.4, 1.2 + 0.2 * (len(self.terms) + 1)

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        names, values = [term.label for term in self.terms], [term.value for term in self.terms]
        if self.n_rest:
            names, values = [*names, f"{self.n_rest} others"], [*values, self.rest]
        bars(axes, names, values)
        axes.set_title(f"{self.formula}\n= {number(self.value)}", fontsize=9)


def cell(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    layer: int = 0,
    head: int = 0,
    part: str = "attn",
    name: str | None = None,
    row: int = -1,
    column: int = 0,
    tokenizer: Tokenizer | None = None,
    masked: Sequence[int] = (),
) -> Cell:
    """Explain one number of a block: what it is computed from, and where.

    Args:
        subject: A run, or a bare model.
        text: What to read; see `read` for this and for `output`, `tokenizer` and `masked`.
        output: What an encoder-decoder writes.
        layer: The block; negative ones count from the last.
        head: The number of the attention head.
        part: `attn`; for an encoder-decoder also `cross_attn`, or `encoder` for a block of its encoder.
        name: A matrix of `block`, such as `blocks.0.attn.hook_q`; by default the residual stream after the block.
        row: A position; negative ones count from the end.
        column: A dimension, a key position, or the id of an output; negative ones count from the end.
        tokenizer: The tokenizer of a bare model.
        masked: Positions at which an encoder reads [MASK].

    Raises:
        UserError: there is no such layer, head, part, matrix, row or column.
    """
    inputs = read(subject, text, output, tokenizer=tokenizer, masked=masked)
    walk = walk_by(inputs, layer, head, part, name, row)
    wanted = f"{walk.path}.hook_resid_post" if name is None else name
    if tokenizer is None and not isinstance(text, Inputs):
        lines = beginning(subject, text, output, masked=masked)
    else:  # the code has no such tokenizer and no such inputs, but the ids that were read
        lines = beginning(subject, *inputs.arguments)
    return cell_of(walk, lines, wanted, row, column)


def walk_by(inputs: Inputs, layer: int, head: int, part: str, name: str | None, row: int) -> Walk:
    """Return the walk that contains a matrix; if that holds logits, they are the logits of the given row."""
    position = row if name in ("logits", "uncapped") and inputs.model.config.n_classes is None else -1
    with quiet(inputs.model):
        return Walk(inputs, layer, head, part, row_of(inputs, part, position))


def cell_of(walk: Walk, lines: Sequence[str], name: str, row: int, column: int) -> Cell:
    """Explain one number of a walk; its snippet begins with `lines`."""
    inputs, steps = walk.inputs, walk.way.steps
    check_name(name, list(steps))
    step = steps[name]
    source = step.source
    row, column = place_in(walk, step, row, column)
    value = float(source.values[row - source.first_row, column])
    labels = label_of(inputs, step.rows, row), label_of(inputs, step.columns, column)
    if isinstance(step.rule, str):
        return _cell(step, row, column, labels, value, None, "")
    found = step.rule.at(source.symbol, row, column)
    return _cell(step, row, column, labels, value, found, snippet(lines, found))


def _cell(
    step: Step,
    row: int,
    column: int,
    labels: tuple[str, str],
    value: float,
    found: Explained | None,
    lines: str,
) -> Cell:
    terms = [] if found is None else sorted(found.terms, key=lambda term: -abs(term.value))
    largest = [term for term in terms[:MOST_TERMS] if term.value]  # masked terms add nothing
    rest = terms[len(largest) :]
    return Cell(
        name=step.source.name,
        symbol=step.source.symbol,
        title=step.title,
        row=row,
        column=column,
        row_label=labels[0],
        column_label=labels[1],
        value=value,
        formula=step.rule if found is None else found.formula,  # type: ignore[arg-type]
        operands=[] if found is None else found.operands,
        terms=largest,
        n_rest=len(rest),
        rest=summed(rest),
        sum=summed(terms),
        recomputed=None if found is None else found.value,
        error=None if found is None else abs(found.value - value),
        section=step.section,
        code=step.code_line,
        snippet=lines,
    )


# --- Python code ------------------------------------------------------------------------------------------


def snippet(lines: Sequence[str], found: Explained) -> str:
    """Return Python code that computes the number, after the lines that load its operands."""
    assigned = [f"{operand.symbol} = {operand.python}" for operand in found.operands]
    content = "\n".join([*assigned, found.expression])
    imports = [line for sign, line in IMPORTS.items() if sign in content]
    return (
        "\n".join([*imports, *lines, *assigned, f"value = {found.expression}", "print(float(value))"]) + "\n"
    )


def beginning(subject: Any, *texts: Any, masked: Sequence[int] = ()) -> list[str]:
    """Return lines that read the text and keep its activations; without a directory, they assume a `run` or `model`."""
    plain = [each if isinstance(each, str) else ids_of(each) for each in texts if each is not None]
    arguments = [repr(each) for each in plain] + ([f"masked={ids_of(masked)!r}"] if len(masked) else [])
    is_run = hasattr(subject, "tokenizer")
    opened = [*loaded(subject), "model = run.model"] if is_run else []
    call = ", ".join(["run" if is_run else "model", *arguments])
    return [
        "import clearformer as cf",
        "",
        *opened,
        f"logits, cache = cf.lens.run_with_cache({call})",
        "weights = model.state_dict()",
    ]


def loaded(run: Any) -> list[str]:
    """Return the line that opens a run; empty if the run has no directory."""
    try:
        return [opening(run)]
    except (RunError, AttributeError):
        return []


def ids_of(given: Any) -> list[int]:
    """Return ids as a list of Python's own numbers."""
    plain = given.tolist() if hasattr(given, "tolist") else list(given)
    return [int(each) for each in (plain[0] if plain and isinstance(plain[0], list) else plain)]


# --- rows and columns -------------------------------------------------------------------------------------


def place_in(walk: Walk, step: Step, row: int, column: int) -> tuple[int, int]:
    """Return a row and a column of a matrix, from 0.

    Raises:
        UserError: there is no such row or column.
    """
    n_rows, n_columns = step.source.values.shape
    # Of the logits there is one row, that of the position.
    is_position = step.columns == "vocabulary"
    row = row_of(walk.inputs, walk.part, row) if is_position else index_of("row", row, n_rows)
    return row, index_of("column", column, n_columns)


def index_of(what: str, index: Any, n: int) -> int:
    """Return the number of a row or column, from 0.

    Raises:
        UserError: there is no such row or column.
    """
    check_whole(what, index)
    if not -n <= index < n:
        raise UserError(f"{what} {index}: the matrix has {n:,}; give 0 to {n - 1}")
    return int(index) % n


def label_of(inputs: Inputs, axis: str, index: int) -> str:
    """Return the token or output at a row or column; empty for a dimension."""
    if axis == "tokens":
        return visible(inputs.labels[index])
    if axis == "source":
        return visible(inputs.source_labels[index])
    return visible(inputs.output_label(index)) if axis in ("vocabulary", "classes") else ""


def factor(value: float | None) -> str:
    """Return a factor for a table; empty if the term is not a product."""
    return "" if value is None else number(value)
