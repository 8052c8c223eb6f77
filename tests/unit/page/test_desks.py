"""The desks of the page: what is selected reaches the lens, and nothing else does."""

from typing import Any

import numpy as np
import pytest
import torch

import clearformer as cf
from clearformer.errors import ConfigError
from clearformer.lens.showing import Shown
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.page.selection import Selection, read_selection
from clearformer.page.views import VIEWS, views_of
from clearformer.page.wire import decode, encode
from clearformer.text import CharTokenizerSpec, WordPieceTokenizerSpec, specials_of

CORPUS = ["the bank lends money, and the river takes it. "] * 3
DESKS = ("sampling", "continuations", "beams", "interventions")
FAMILIES = ("decoder", "encoder", "encoder-decoder", "classes")
CHOSEN = Selection(
    run="model",
    text="the bank",
    position=2,
    temperature=0.8,
    top_k=7,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.2,
    seed=5,
    drawn=(6, 7),
    new_tokens=4,
    num=2,
    beams=2,
)


def run_of(kind: str) -> cf.Run:
    family = "encoder" if kind == "classes" else kind
    spec = WordPieceTokenizerSpec(vocab_size=60) if family == "encoder" else CharTokenizerSpec()
    tokenizer = spec.train(CORPUS, specials=specials_of(family))
    config = ModelConfig(
        family=family,  # type: ignore[arg-type]
        vocab_size=tokenizer.vocab_size,
        d_model=22,
        n_layers=2,
        max_seq_len=37,
        n_classes=3 if kind == "classes" else None,
        attention=MultiHead(n_heads=2),
    )
    torch.manual_seed(1)  # for a fixture of the module is made before a test is seeded
    return cf.Run(build(config), tokenizer)


@pytest.fixture(scope="module")
def runs() -> dict[str, cf.Run]:
    return {kind: run_of(kind) for kind in FAMILIES}


def of_python(run: cf.Run, source: str) -> Shown:
    """The value of a view's Python, run as it is copied."""
    names: dict[str, Any] = {"run": run}  # which is kept nowhere, as the copied lines say
    exec(source, names)  # noqa: S102
    return names["found"]


@pytest.mark.parametrize("kind", FAMILIES)
def test_python_that_is_copied_gives_the_same_numbers(kind: str, runs: dict[str, cf.Run]) -> None:
    run = runs[kind]
    name = "encoder_blocks.0" if kind == "encoder-decoder" else "blocks.0"
    edits = (f"zero {name}.attn.hook_z:1", f"scale {name}.hook_mlp_out 0.5")
    output = {"output": "the river"} if kind == "encoder-decoder" else {}
    for selection in (Selection(text="the bank", **output), CHOSEN.replace(edits=edits)):
        for desk in DESKS:
            if desk in views_of(run):
                found = VIEWS[desk].call(run, selection)
                again = of_python(run, VIEWS[desk].as_python(run, selection))
                assert encode(found) == encode(again)


def test_each_family_has_the_desks_that_it_can_use(runs: dict[str, cf.Run]) -> None:
    desks = {kind: [desk for desk in DESKS if desk in views_of(run)] for kind, run in runs.items()}
    assert desks["decoder"] == desks["encoder-decoder"] == list(DESKS)
    assert desks["encoder"] == desks["classes"] == ["sampling", "interventions"]


def test_the_page_draws_what_generate_draws(runs: dict[str, cf.Run]) -> None:
    run = runs["decoder"]
    settings = {name: getattr(CHOSEN, name) for name in ("temperature", "top_k", "top_p", "min_p", "seed")}
    settings["repetition_penalty"] = CHOSEN.repetition_penalty
    [wanted] = cf.generate(run, CHOSEN.text, max_new_tokens=1, **settings)
    chosen = CHOSEN.replace(position=-1, drawn=())
    found = decode(encode(VIEWS["sampling"].call(run, chosen)))
    assert [found["ids"][found["drawn"]]] == wanted.tokens
    assert found["kept"].sum() == pytest.approx(1)
    continued = decode(encode(VIEWS["continuations"].call(run, chosen)))["continuations"]
    assert len(continued) == 2
    assert [each["tokens"][0]["id"] for each in continued][:1] == wanted.tokens


def test_what_is_off_is_left_out_of_the_call(runs: dict[str, cf.Run]) -> None:
    plain = VIEWS["sampling"].arguments(runs["decoder"], Selection(text="the bank"))
    assert plain == {"position": -1, "seed": 1, "most": 120}
    assert VIEWS["sampling"].arguments(runs["classes"], CHOSEN) == {"most": 120}
    given = VIEWS["sampling"].arguments(runs["decoder"], CHOSEN)
    assert given["drawn"] == [6, 7]
    assert given["top_k"] == 7
    assert "drawn" not in VIEWS["sampling"].arguments(runs["encoder"], CHOSEN)
    patched = Selection(text="the bank", edits=("patch blocks.0.hook_mlp_out",), donor="the mone")
    found: Any = VIEWS["interventions"].call(runs["decoder"], patched)
    assert found.edits == list(patched.edits)
    assert not np.allclose(found.losses_before[:-1], found.losses_after[:-1])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_p", 0),
        ("top_k", -1),
        ("min_p", 2),
        ("num", 17),
        ("beams", 0),
        ("edits", ["x" * 201]),
        ("new_tokens", 999),
    ],
)
def test_a_selection_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        read_selection({field: value})
