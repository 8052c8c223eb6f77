"""A block's matrices by their names, and one number with its formula, its terms, its section and its line of code."""

import json
import linecache
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import clearformer
from clearformer import lens
from clearformer.errors import UserError
from clearformer.lens.numbers.code import find_line
from clearformer.model import ModelConfig, build
from clearformer.model.attention import Attention, Dot, Last, Mean, MultiHead
from clearformer.model.feedforward import GELU, NoFeedForward, SwiGLU
from clearformer.model.linear_attention import Linear
from clearformer.model.masks import Mask
from clearformer.model.norms import LayerNorm, NoNorm, RMSNorm
from clearformer.model.positions import ALiBi, Learned, NoPositions, RoPE

from ....seeding import seed
from ..test_embeddings import run_of

V, D, T, S = 13, 12, 7, 5
DEFAULTS: dict[str, Any] = {"row": 0, "column": 0}


def model_of(**changes: Any) -> Any:
    settings: dict[str, Any] = {
        "vocab_size": V,
        "d_model": D,
        "n_layers": 2,
        "max_seq_len": 16,
        "attention": MultiHead(n_heads=2, d_head=4),
        "ffn": GELU(d_ff=17),
    }
    seed(0)
    model = build(ModelConfig(**(settings | changes))).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 or not parameter.any():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def ids(n: int = T) -> Tensor:
    return torch.arange(n) * 5 % V


def names_of(found: lens.BlockNumbers) -> list[str]:
    return [array.name for array in found.arrays]


def last_parts(found: lens.BlockNumbers) -> set[str]:
    return {array.name.rpartition(".")[2] for array in found.arrays}


# --- a block ----------------------------------------------------------------------------------------------


def test_names_are_hook_points_and_their_values_the_model_own() -> None:
    model = model_of(position=RoPE(), norm=RMSNorm())
    found = lens.block(model, ids(), layer=0, head=1)
    _, cache = lens.run_with_cache(model, ids())
    hooked = [array for array in found.arrays if "hook_" in array.name]
    assert {"hook_q", "hook_rot_k", "hook_pattern", "hook_z", "hook_pre", "hook_resid_post"} <= last_parts(
        found
    )
    for array in hooked:
        own = cache[array.name][0]
        if own.dim() == 3:
            own = own[1] if array.column_axis == "tokens" else own[:, 1]
        np.testing.assert_allclose(array.values, own.numpy(), atol=1e-12)
        assert array.values.shape == (len(array.rows), len(array.columns))
    assert names_of(found)[0] == "hook_embed"  # the first block's way begins at the embeddings
    assert names_of(lens.block(model, ids(), layer=1))[0] == "blocks.1.hook_resid_pre"


def test_matrices_without_a_hook_point_are_what_their_equations_say() -> None:
    model = model_of()
    found = lens.block(model, ids(), layer=0, head=1)
    _, cache = lens.run_with_cache(model, ids())
    z, matrix = cache["blocks.0.attn.hook_z"][0, :, 1], model.blocks[0].attn.W_O.weight.detach()
    result = found["blocks.0.attn.result"].values
    np.testing.assert_allclose(result, (z @ matrix[:, 4:].T).numpy(), atol=1e-12)
    other = lens.block(model, ids(), layer=0, head=0)["blocks.0.attn.result"].values
    np.testing.assert_allclose(result + other, found["blocks.0.hook_attn_out"].values, atol=1e-12)
    scores, behind = found["blocks.0.attn.scores"].values, found["blocks.0.attn.hook_attn_scores"].values
    readable = found["blocks.0.attn.attend"].values.astype(bool)
    assert (readable == np.tril(np.ones((T, T), bool))).all()
    np.testing.assert_allclose(scores[readable], behind[readable], atol=1e-12)
    assert (behind[~readable] < -1e300).all()


@pytest.mark.parametrize(
    ("changes", "there", "missing"),
    [
        ({"attention": Last(), "position": NoPositions()}, {"hook_z"}, {"hook_q", "hook_pattern", "result"}),
        ({"attention": Mean()}, {"hook_v", "scores", "hook_pattern"}, {"hook_q", "hook_k", "result"}),
        ({"attention": Dot()}, {"hook_q", "hook_v", "hook_z"}, {"result"}),
        ({"attention": Linear(n_heads=2)}, {"phi_q", "phi_k", "hook_pattern"}, {"bias"}),
        ({"position": ALiBi()}, {"bias"}, {"hook_pos_embed", "hook_rot_q"}),
        ({"position": Learned()}, {"hook_pos_embed"}, {"bias"}),
        ({"norm": NoNorm()}, {"hook_resid_pre"}, {"hook_scale", "hook_normalized"}),
        ({"ffn": NoFeedForward()}, {"hook_resid_post"}, {"hook_resid_mid", "hook_pre", "hook_mlp_out"}),
        ({"ffn": SwiGLU(d_ff=17)}, {"hook_pre_linear", "hook_post"}, set()),
        ({"placement": "post"}, {"input", "hook_normalized"}, set()),
    ],
)
def test_what_a_kind_does_not_have_is_not_there(
    changes: dict[str, Any], there: set[str], missing: set[str]
) -> None:
    found = last_parts(lens.block(model_of(**changes), ids(), layer=0))
    assert there <= found
    assert not missing & found


def test_grouped_queries_read_their_group() -> None:
    model = model_of(attention=MultiHead(n_heads=4, n_kv_heads=2, d_head=3))
    _, cache = lens.run_with_cache(model, ids())
    for head in range(4):
        k = lens.block(model, ids(), head=head)["blocks.0.attn.hook_k"].values
        np.testing.assert_allclose(k, cache["blocks.0.attn.hook_k"][0, :, head // 2].numpy(), atol=1e-12)


def test_cross_attention_has_the_source_as_its_columns() -> None:
    model = model_of(family="encoder-decoder")
    found = lens.block(model, ids(S), ids(T), layer=1, part="cross_attn")
    pattern = found["decoder_blocks.1.cross_attn.hook_pattern"]
    assert pattern.values.shape == (T, S)
    assert (pattern.row_axis, pattern.column_axis) == ("tokens", "source")
    assert "decoder_blocks.1.attn.hook_q" not in names_of(found)
    encoder = lens.block(model, ids(S), ids(T), layer=1, part="encoder")
    assert encoder["encoder_blocks.1.attn.hook_pattern"].values.shape == (S, S)
    assert "logits" in names_of(found)
    assert "logits" not in names_of(encoder)


def test_the_last_block_ends_at_the_largest_logits_of_the_position() -> None:
    model = model_of(logit_soft_cap=3.0)
    found = lens.block(model, ids(), layer=-1, position=3)
    logits, _ = lens.run_with_cache(model, ids())
    own = found["logits"]
    assert own.rows == [3]
    assert own.columns[0] == int(logits[0, 3].argmax())
    np.testing.assert_allclose(own.values[0], logits[0, 3, own.columns].numpy(), atol=1e-12)


def test_a_block_is_a_table_a_figure_and_json(tmp_path: Path) -> None:
    found = lens.block(model_of(), ids(), layer=0)
    assert len(found.table().rows) == len(found.arrays)
    assert json.loads(json.dumps(found.to_dict()))["arrays"][0]["name"] == "hook_embed"
    assert found.figure(tmp_path / "block.svg").stat().st_size > 1000
    assert "head 0" in found.caption()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"layer": 2}, "layer 2: there are 2 layers"),
        ({"head": 2}, "head 2: there are 2 heads"),
        ({"part": "cross_attn"}, "only an encoder-decoder"),
        ({"part": "mlp"}, "part: attn, cross_attn or encoder"),
        ({"position": 7}, "position 7 is beyond"),
    ],
)
def test_what_is_not_there_is_said(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        lens.block(model_of(), ids(), **arguments)


# --- one number -------------------------------------------------------------------------------------------


def test_a_score_by_hand() -> None:
    model = model_of()
    cell = lens.cell(model, ids(), layer=1, head=1, name="blocks.1.attn.scores", row=4, column=2)
    _, cache = lens.run_with_cache(model, ids())
    q, k = cache["blocks.1.attn.hook_q"][0, 4, 1], cache["blocks.1.attn.hook_k"][0, 2, 1]
    products = (q * k / math.sqrt(4)).tolist()
    assert [term.value for term in cell.terms] == pytest.approx(sorted(products, key=abs, reverse=True))
    assert cell.value == pytest.approx(sum(products))
    assert cell.formula == "scores[4,2] = scale * sum_d q[4,d] k[2,d]"
    assert (cell.row_label, cell.column_label) == (f"#{ids()[4]}", f"#{ids()[2]}")


def test_gelu_by_hand() -> None:
    model = model_of()
    cell = lens.cell(model, ids(), name="blocks.0.mlp.hook_post", row=2, column=16)
    [operand] = cell.operands
    a = operand.value
    assert cell.recomputed == pytest.approx(a * 0.5 * (1 + math.erf(a / math.sqrt(2))), abs=1e-12)


def test_only_the_largest_terms_are_told_one_by_one() -> None:
    model = model_of(ffn=GELU(d_ff=101))
    cell = lens.cell(model, ids(), name="blocks.0.hook_mlp_out", row=1, column=3)
    sizes = [abs(term.value) for term in cell.terms]
    assert len(sizes) == 24
    assert sizes == sorted(sizes, reverse=True)
    assert cell.n_rest == 101 + 1 - 24  # and the bias
    assert sum(term.value for term in cell.terms) + cell.rest == pytest.approx(cell.sum)
    assert cell.table().rows[-1][0] == "78 others"


def test_a_masked_key_is_told() -> None:
    cell = lens.cell(model_of(), ids(), name="blocks.0.attn.attend", row=2, column=5)
    assert cell.value == cell.recomputed == 0
    assert "key <= query" in cell.formula


def test_without_a_name_it_is_the_residual_stream_behind_the_block() -> None:
    cell = lens.cell(model_of(), ids(), layer=1)
    assert (cell.name, cell.row, cell.column) == ("blocks.1.hook_resid_post", T - 1, 0)


def test_of_a_kind_of_ones_own_one_line_is_said() -> None:
    class Own(Attention):
        def queries(self, x: Any) -> Any:
            return x.unsqueeze(2)

        def keys_values(self, x: Any) -> Any:
            return x.unsqueeze(2), x.unsqueeze(2)

    model = model_of(attention=Dot())
    model.blocks[0].attn = Own()
    found = lens.block(model, ids(), layer=0)
    assert "blocks.0.attn.hook_q" not in names_of(found)
    cell = lens.cell(model, ids(), layer=0, name="blocks.0.hook_attn_out", row=1, column=2)
    assert cell.formula == "blocks.0.attn is a Own, a custom kind: how it computes a number is unknown"
    assert (cell.recomputed, cell.error, cell.terms, cell.snippet) == (None, None, [], "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "blocks.0.attn.hook_que"}, "has no matrix 'blocks.0.attn.hook_que'; did you mean"),
        ({"name": "blocks.1.attn.hook_q"}, "'blocks.1.attn.hook_q', which is of another layer: set layer=1"),
        ({"part": "encoder"}, "part: only an encoder-decoder has encoder; omit it"),
        ({"name": "hook_embed", "row": 7}, "row 7: the matrix has 7"),
        ({"name": "hook_embed", "column": D}, "column 12: the matrix has 12"),
    ],
)
def test_a_number_that_is_not_there_is_said(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        lens.cell(model_of(), ids(), **(DEFAULTS | arguments))


def test_a_cell_is_a_table_a_figure_and_json(tmp_path: Path) -> None:
    cell = lens.cell(model_of(), ids(), name="blocks.0.attn.hook_q", row=1, column=3)
    content = json.loads(json.dumps(cell.to_dict()))
    assert content["operands"][0]["symbol"] == "norm1"
    assert content["code"]["file"] == "model/attention.py"
    assert cell.figure(tmp_path / "cell.svg").stat().st_size > 1000
    assert any("error" in note for note in cell.notes())


# --- where it is computed ---------------------------------------------------------------------------------


def test_the_line_is_found_in_the_source() -> None:
    found = find_line(Mask.attend, "allowed = distance >= 0")
    assert found is not None
    path = Path(clearformer.__file__).parent / found.file
    assert linecache.getline(str(path), found.line).strip() == found.text
    assert found.function == "Mask.attend"
    assert find_line(Mask.attend, "no such words") is None
    assert find_line(len, "x") is None


def explained(x: int) -> int:
    """Add two; this return of the docstring is no code.

    return x + 1
    """
    # return x + 1, as a comment has it
    return x + 2


LAMBDAS = {
    "of two lines, which are no statement": lambda x: (
        x + 3
    ),
}  # fmt: skip


def test_the_line_of_a_lambda_within_something_else_is_found() -> None:
    (of_two_lines,) = LAMBDAS.values()
    found = find_line(of_two_lines, "x + 3")
    assert found is not None
    assert found.text == "x + 3"


def test_neither_docstring_nor_comment_is_the_line_that_computes() -> None:
    found = find_line(explained, "return")
    assert found is not None
    assert found.text == "return x + 2"
    assert find_line(lambda x: x + 1, "x + 1") is not None


@pytest.mark.parametrize("norm", [LayerNorm(), RMSNorm()])
def test_every_line_that_is_shown_says_what_its_number_does(norm: Any) -> None:
    """Each step's line is in the source, and steps that compute different things have different lines."""
    model = model_of(norm=norm, position=RoPE(), logit_soft_cap=3.0)
    lines = {}
    for layer in (0, 1):
        for array in lens.block(model, ids(), layer=layer).arrays:
            cell = lens.cell(
                model, ids(), layer=layer, name=array.name, row=array.rows[0], column=array.columns[0]
            )
            assert cell.code is not None, array.name
            lines[array.symbol] = (cell.code.file, cell.code.text)
    assert lines["scores"] == (
        "model/attention.py",
        "scores = q @ k.transpose(-2, -1) * self.scale  # [B H T S]",
    )
    assert "softmax" in lines["pattern"][1]
    assert "W_O" in lines["attn_out"][1]
    assert lines["resid_mid"] == lines["resid_post"]
    assert (
        len({lines[each] for each in ("embed", "norm1", "q", "q_rot", "scores", "pattern", "z", "pre")}) == 8
    )


@pytest.mark.parametrize("family", ["decoder", "encoder", "encoder-decoder"])
def test_the_code_runs_for_a_model_alone_whose_tokenizer_was_given(
    family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(family, "char")
    output = {"output": "the river"} if family == "encoder-decoder" else {}
    masked = {"masked": [2]} if family == "encoder" else {}
    found = lens.cell(run.model, "the bank", tokenizer=run.tokenizer, row=2, **output, **masked)  # type: ignore[arg-type]
    exec(found.snippet, {"model": run.model})  # noqa: S102
    assert float(capsys.readouterr().out) == pytest.approx(found.value, abs=1e-5)


def test_the_code_has_pythons_own_numbers() -> None:
    found = lens.cell(model_of(), [np.int64(3), np.int64(4)])  # type: ignore[list-item]
    assert "run_with_cache(model, [3, 4])" in found.snippet


def test_the_row_of_logits_is_counted_from_the_end_too() -> None:
    model, last = model_of(), {"layer": 1, "name": "logits"}
    for row in range(T):
        found = lens.cell(model, ids(), row=row - T, **last)  # type: ignore[arg-type]
        assert (found.row, found.value) == (row, pytest.approx(model(ids()[None])[0, row, 0].item()))


# --- parts of large matrices ------------------------------------------------------------------------------


def test_a_part_of_each_matrix_is_cut_out_of_the_whole() -> None:
    model = model_of()
    whole = lens.block(model, ids(), layer=1, head=1, position=4)
    part = lens.block(model, ids(), layer=1, head=1, position=4, most_rows=3, most_columns=5)
    for array, small in zip(whole.arrays, part.arrays, strict=True):
        assert small.size == array.size
        is_told_whole = bool(array.column_labels)
        assert len(small.rows) == min(3, len(array.rows))
        assert len(small.columns) == (len(array.columns) if is_told_whole else min(5, len(array.columns)))
        rows, columns = ([one.index(each) for each in other] for one, other in (
            (array.rows, small.rows), (array.columns, small.columns)))  # fmt: skip
        np.testing.assert_array_equal(small.values, array.values[np.ix_(rows, columns)])
        assert 4 in small.rows
    keys = part["blocks.1.attn.hook_pattern"].columns
    assert 4 in keys
    assert part["blocks.1.mlp.hook_post"].columns == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("row", "column"), [(0, 0), (-1, -1), (3, 9)])
def test_any_number_of_a_matrix_is_in_the_part_around_it(row: int, column: int) -> None:
    model = model_of()
    name = "blocks.0.mlp.hook_post"
    whole = lens.block(model, ids(), layer=0)[name]
    found = lens.matrix(model, ids(), layer=0, name=name, row=row, column=column, most_rows=2, most_columns=3)
    array = found.array
    assert array.values.shape == (2, 3)
    assert (row % T in array.rows, column % 17 in array.columns) == (True, True)
    at = array.rows.index(row % T), array.columns.index(column % 17)
    assert array.values[at] == whole.values[row % T, column % 17]
    assert f"rows {array.rows[0]} to {array.rows[-1]} of {T}" in found.caption()


def test_a_part_of_the_logits_is_that_of_its_row() -> None:
    model = model_of()
    found = lens.matrix(model, ids(), layer=1, name="logits", row=2)
    own = model(ids()[None])[0, 2].detach().numpy()
    np.testing.assert_allclose(found.array.values[0], own[found.array.columns], rtol=1e-12)
    assert found.array.rows == [2]


def test_a_part_is_a_table_of_its_numbers_and_a_figure(tmp_path: Path) -> None:
    found = lens.matrix(model_of(), ids(), layer=0, most_rows=3, most_columns=4)
    heads, rows, n_left = found.table()
    assert (heads, n_left) == (["row", "0", "1", "2", "3"], 1)
    assert [row[0] for row in rows] == [str(row) for row in found.array.rows]
    assert float(rows[1][2].replace("\N{MINUS SIGN}", "-")) == pytest.approx(
        found.array.values[1, 1], abs=1e-3
    )
    assert found.figure(tmp_path / "part.png").stat().st_size > 0
    difference = lens.difference(found, found)
    assert not difference.changes.array.values.any()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"most_rows": 0}, "most_rows: 1 or more"),
        ({"most_rows": None}, "most_rows: a whole number; got None"),
        ({"most_columns": 0}, "most_columns: 1 or more"),
        ({"name": "blocks.0.mlp.hook_past"}, "has no matrix 'blocks.0.mlp.hook_past'"),
        (
            {"name": "blocks.1.mlp.hook_post"},
            "'blocks.1.mlp.hook_post', which is of another layer: set layer=1",
        ),
        ({"row": 99}, "row 99: the matrix has 7"),
        ({"column": 99}, "column 99"),
    ],
)
def test_a_part_that_is_not_there_is_said(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        lens.matrix(model_of(), ids(), **arguments)
    if "most_rows" in arguments or "most_columns" in arguments:
        with pytest.raises(UserError, match=said):
            lens.block(model_of(), ids(), **arguments)
