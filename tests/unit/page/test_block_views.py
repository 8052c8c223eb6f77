"""The page's block and its number inspector: what is selected gives what the same Python gives."""

from typing import Any

import numpy as np
import pytest

from clearformer import lens
from clearformer.errors import UserError
from clearformer.page.selection import Selection, read_selection
from clearformer.page.views import VIEWS, View
from clearformer.page.wire import decode, encode
from clearformer.run import Run

from ..lens.test_embeddings import TEXT, run_of


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    made = {family: run_of(family, "bpe") for family in ("decoder", "encoder-decoder")}
    return {family: Run(run.model, run.tokenizer) for family, run in made.items()}


def copied(view: View, run: Run, selection: Selection) -> Any:
    """What "copy as Python" gives."""
    names: dict[str, Any] = {"run": run}  # which is kept nowhere, as the copied lines say
    exec(compile(view.as_python(run, selection), "copied", "exec"), names)  # noqa: S102  (lines that we wrote)
    return names["found"]


@pytest.mark.parametrize(("family", "part"), [("decoder", "attn"), ("encoder-decoder", "cross_attn")])
def test_a_block_and_its_number_are_those_of_the_copied_python(
    runs: dict[str, Run], family: str, part: str
) -> None:
    run = runs[family]
    prefix = "decoder_" if part == "cross_attn" else ""
    name = f"{prefix}blocks.1.{part}.hook_q"
    chosen = {"text": TEXT, "layer": 1, "head": 1, "part": part, "matrix": name, "row": 1, "column": 3}
    selection = read_selection(chosen | ({"output": "the river"} if family == "encoder-decoder" else {}))
    found = VIEWS["block"].call(run, selection)
    assert isinstance(found, lens.BlockNumbers)
    assert found == copied(VIEWS["block"], run, selection)
    cell = VIEWS["cell"].call(run, selection)
    assert isinstance(cell, lens.Cell)
    assert (cell.name, cell.row, cell.column) == (name, 1, 3)
    assert cell.value == pytest.approx(float(found[name].values[1, 3]))
    assert cell.value == copied(VIEWS["cell"], run, selection).value


def test_the_vectors_of_token_types_stand_in_the_equation_of_those_that_have_them() -> None:
    for n_types, words in ((0, "ids"), (2, "ids + token_type[0]")):
        made = run_of("encoder", n_token_types=n_types)
        run = Run(made.model, made.tokenizer)
        found: Any = VIEWS["block"].call(run, Selection(text=TEXT, layer=0))
        assert found["hook_embed"].equation == f"embed = the rows of W_E for the token {words}"


def test_both_travel_whole(runs: dict[str, Run]) -> None:
    run, selection = runs["decoder"], Selection(text=TEXT, layer=0)
    found = VIEWS["block"].call(run, selection)
    assert isinstance(found, lens.BlockNumbers)
    sent = decode(encode(found))
    for array, other in zip(found.arrays, sent["arrays"], strict=True):
        assert other["name"] == array.name
        np.testing.assert_array_equal(other["values"], array.values)
    cell = VIEWS["cell"].call(run, selection)
    assert isinstance(cell, lens.Cell)
    assert decode(encode(cell))["formula"] == cell.formula
    assert [each["value"] for each in decode(encode(cell))["terms"]] == [term.value for term in cell.terms]


def test_a_number_of_another_layer_is_refused_in_one_line(runs: dict[str, Run]) -> None:
    selection = Selection(text=TEXT, layer=0, matrix="blocks.1.attn.hook_q")
    with pytest.raises(UserError, match=r"has no matrix 'blocks\.1\.attn\.hook_q'"):
        VIEWS["cell"].call(runs["decoder"], selection)


def test_a_page_is_sent_what_a_screen_shows_and_asked_for_the_rest(runs: dict[str, Run]) -> None:
    run = runs["decoder"]
    selection = Selection(text=TEXT * 6, position=9)
    found = VIEWS["block"].call(run, selection)
    whole = VIEWS["block"].whole.call(run, selection)
    assert isinstance(found, lens.BlockNumbers)
    assert isinstance(whole, lens.BlockNumbers)
    name = "blocks.0.attn.hook_pattern"
    assert found[name].values.shape[0] == 48 < whole[name].values.shape[0] == whole[name].size[0]
    assert VIEWS["block"].answer(run, selection)["table"]["rows"] == whole.table().rows
    part = VIEWS["matrix"].call(run, selection.replace(matrix=name, row=len(found.tokens) - 1, column=3))
    assert isinstance(part, lens.MatrixPart)
    assert part.array.rows[-1] == len(found.tokens) - 1
    np.testing.assert_array_equal(part.array.values[-1], whole[name].values[-1][part.array.columns])


def test_the_sampling_desk_is_sent_the_likeliest_and_its_table_is_whole(runs: dict[str, Run]) -> None:
    run, selection = runs["decoder"], Selection(text=TEXT)
    found = VIEWS["sampling"].answer(run, selection)
    n = run.tokenizer.vocab_size
    assert len(found["found"].tokens) < found["found"].n_tokens == n == len(found["table"]["rows"])
    whole = VIEWS["vocabulary"].call(run, selection)
    assert isinstance(whole, lens.NextDraw)
    assert len(whole.tokens) == n
