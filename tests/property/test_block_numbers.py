"""Every number of a block is what its displayed operands make, with every kind of every slot.

In float64 to the last digits, and by the Python lines as well; in float32 within 1e-4 of the matrix's range.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from clearformer import lens
from clearformer.lens.numbers.cell import Cell, beginning, cell_of
from clearformer.lens.numbers.rules import summed
from clearformer.lens.numbers.walk import Walk
from clearformer.model import ModelConfig, build
from clearformer.model.norms import RMSNorm

from ..seeding import seed
from .models import config, each_kind, every_model, made, text
from .test_ledger_properties import ARCHITECTURES, texts_for

EXACT = 1e-9
ROUNDED = 1e-4
LAST_OF_READING = "weights = model.state_dict()\n"


def cells_of(model: Any, texts: tuple[Tensor, ...], **where: Any) -> list[Cell]:
    """A number of each matrix of a block, each at another place."""
    found = lens.block(model, *texts, **where)
    inputs = lens.read(model, *texts)
    with lens.quiet(model):
        walk = Walk(inputs, found.layer, found.head, found.part, found.position)
    lines = beginning(model, *texts)
    cells = []
    for i, array in enumerate(found.arrays):
        row, column = (
            array.rows[(3 * i + 2) % len(array.rows)],
            array.columns[(7 * i + 5) % len(array.columns)],
        )
        cells.append(cell_of(walk, lines, array.name, row, column))
        shown = array.values[array.rows.index(row), array.columns.index(column)]
        assert float(shown) == cells[-1].value, array.name
    return cells


def after_reading(model: Any, lines: str) -> dict[str, Any]:
    """The names that the first lines of a cell's snippet make; they are the same for all cells of a text."""
    names: dict[str, Any] = {"model": model}
    run_lines(lines.partition(LAST_OF_READING)[0] + LAST_OF_READING, names)
    return names


def by_snippet(names: dict[str, Any], lines: str) -> float:
    """What the lines behind them give."""
    imports = [line for line in lines.splitlines() if line.startswith(("import", "from"))]
    run_lines("\n".join([*imports, lines.partition(LAST_OF_READING)[2]]), names)
    return float(names["value"])


def run_lines(lines: str, names: dict[str, Any]) -> None:
    with torch.no_grad():
        exec(compile(lines, "snippet", "exec"), names)  # noqa: S102  (lines that we wrote)


def check_cell(names: dict[str, Any], cell: Cell) -> None:
    assert cell.recomputed is not None, cell.name
    size = max(1.0, abs(cell.value))
    assert cell.error is not None
    assert cell.error <= EXACT * size, (cell.name, cell.formula, cell.value, cell.recomputed)
    assert cell.sum == pytest.approx(summed(cell.terms) + cell.rest, abs=EXACT * size)
    assert cell.code is not None, cell.name
    assert f"{cell.symbol}[{cell.row}" in cell.formula
    # The scores' mask is the lowest number: twice that is no number any more, so it is compared as it is.
    assert by_snippet(names, cell.snippet) == pytest.approx(cell.value, rel=EXACT, abs=EXACT), (
        cell.name,
        cell.snippet,
    )


def check_block(model: Any, texts: tuple[Tensor, ...], **where: Any) -> None:
    cells = cells_of(model, texts, **where)
    names = after_reading(model, next(cell.snippet for cell in cells if cell.snippet))
    for cell in cells:
        if cell.name.startswith("encoder_") and where.get("part") == "cross_attn":
            assert "encoder" in cell.formula  # the memory: its own block explains it
            assert cell.recomputed is None
            continue
        check_cell(names, cell)


@every_model()
def test_every_number_of_a_decoder_is_recomputed(case: ModelConfig) -> None:
    model, n_heads = made(case), case.attention.heads(case.d_model)[0]
    texts = texts_for(case)
    check_block(model, texts, layer=0, head=n_heads - 1, position=3)
    check_block(model, texts, layer=-1, head=0, position=2)


@each_kind(family="encoder")
def test_every_number_of_an_encoder_is_recomputed(case: ModelConfig) -> None:
    model, n_heads = made(case), case.attention.heads(case.d_model)[0]
    check_block(model, texts_for(case), layer=0, head=n_heads // 2)
    check_block(model, texts_for(case), layer=-1, head=0, position=4)


@each_kind(family="encoder-decoder")
def test_every_number_of_an_encoder_decoder_is_recomputed(case: ModelConfig) -> None:
    model, n_heads = made(case), case.attention.heads(case.d_model)[0]
    for part, layer in (("attn", 0), ("cross_attn", 1), ("encoder", 0)):
        check_block(model, texts_for(case), layer=layer, head=n_heads - 1, part=part)


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_the_logits_of_a_classifier_are_recomputed(pooling: str) -> None:
    case = config("encoder", n_classes=3, pooling=pooling, masked_head="none")
    model, texts = made(case), texts_for(case)
    check_block(model, texts, layer=-1)
    assert {"hook_pooled", "logits"} <= {array.name for array in lens.block(model, *texts, layer=-1).arrays}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_in_float32_numbers_are_recomputed_within_their_range(name: str) -> None:
    seed(0)
    case = ARCHITECTURES[name]
    model, texts = build(case).eval(), texts_for(case)
    found = lens.block(model, *texts, layer=-1)
    for array, cell in zip(found.arrays, cells_of(model, texts, layer=-1), strict=True):
        if cell.recomputed is None or not torch.isfinite(torch.tensor(array.values)).all():
            continue
        size = float(abs(array.values).max()) or 1.0
        assert cell.error is not None
        assert cell.error <= ROUNDED * size, cell.name


def test_what_a_cell_sums_is_the_model_own_product() -> None:
    """Against torch, without the rules: a query is a row of x times a row of W_Q, plus its bias."""
    case = config(attention={"kind": "multihead", "n_heads": 2, "d_head": 4, "qkv_bias": True})
    model, [tokens] = made(case), texts_for(case)
    _, cache = lens.run_with_cache(model, tokens)
    cell = lens.cell(model, tokens, layer=1, head=1, name="blocks.1.attn.hook_q", row=3, column=2)
    x, matrix = cache["blocks.1.ln1.hook_normalized"][0, 3], model.blocks[1].attn.W_Q.requires_grad_(False)
    products = x * matrix.weight[6]
    assert cell.value == pytest.approx(float(cache["blocks.1.attn.hook_q"][0, 3, 1, 2]), abs=EXACT)
    assert cell.terms[0].value in (
        pytest.approx(float(products[products.abs().argmax()])),
        pytest.approx(float(matrix.bias[6])),
    )
    assert cell.n_rest == 0  # 22 products and a bias
    assert cell.sum == pytest.approx(float(products.sum() + matrix.bias[6]), abs=EXACT)
    assert cell.formula == "q[3,2] = sum_d norm1[3,d] W_Q[d,2] + b_Q[2]"
    assert [operand.index for operand in cell.operands] == ["[3, :]", "[6, :]", "[6]"]


def test_a_cell_that_is_wrong_says_so() -> None:
    """The error is measured against the model: a weight that changed between the two is seen."""
    case = config(attention={"kind": "multihead", "n_heads": 2, "d_head": 4, "qk_norm": RMSNorm()})
    model, [tokens] = made(case), texts_for(case)
    cell = lens.cell(model, tokens, name="blocks.0.hook_attn_out", row=2, column=1)
    with torch.no_grad():
        model.blocks[0].attn.W_O.weight[1] += 1
    assert abs(by_snippet(after_reading(model, cell.snippet), cell.snippet) - cell.value) > 1e-3


def test_a_long_text_is_shown_around_the_position_and_its_cells_are_reached() -> None:
    case = config(max_seq_len=400)
    model, tokens = made(case), text(400, n_rows=1)[0]
    found = lens.block(model, tokens, layer=0, position=390)
    rows = found["blocks.0.attn.hook_q"].rows
    assert len(rows) == 256
    assert rows[-1] == 399
    cell = lens.cell(model, tokens, name="blocks.0.attn.hook_pattern", row=7, column=5)
    check_cell(after_reading(model, cell.snippet), cell)
