"""What the functions of a run are handed by mistake: one line that names it, and no traceback of ours."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import clearformer as cf
from clearformer.errors import NonFiniteError, UserError
from clearformer.interop.gguf import to_gguf
from clearformer.text import ByteTokenizerSpec


@pytest.fixture(autouse=True)
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARFORMER_RUNS", str(home / "runs"))
    monkeypatch.setenv("CLEARFORMER_CACHE", str(home / "cache"))


def opened(name: str) -> Any:
    return cf.load(name, device="cpu")


# --- no run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call", [cf.generate, cf.stream, cf.translate, cf.classify, cf.score, cf.search, cf.lens.embed]
)
@pytest.mark.parametrize("given", ["text", None, 7])
def test_what_is_no_run_is_refused(call: Callable[..., Any], given: Any) -> None:
    name = "'text'" if given == "text" else "'NAME'"
    with pytest.raises(UserError, match=rf"^give a run, such as cf\.load\({name}\); got "):
        call(given, "a")


def test_a_model_alone_is_no_run() -> None:
    with pytest.raises(UserError, match=r"got a model alone; cf\.Run\(model, tokenizer\) makes a run of it$"):
        cf.generate(opened("text").model, "a")
    with pytest.raises(UserError, match=r"^give a run, such as cf\.load\('text'\)"):
        cf.evaluate("text")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"got a model alone"):
        cf.to_hf(opened("text").model, "folder")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^give a run, .* got None$"):
        cf.look(None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^give a run"):
        cf.lens.word_similarity("text", "a", ["a", "a b"])  # type: ignore[arg-type]


def test_messages_in_python_name_no_option_of_the_command_line() -> None:
    with pytest.raises(UserError, match=r"^device: no rate is known for 'a1000'"):
        cf.plan("quick", device="a1000")
    with pytest.raises(UserError, match=r"^device: must be of type str; got None$"):
        cf.plan("quick", device=None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^on_step: a function; got None$"):
        cf.replay("text", 1, on_step=None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"\(in Python: cf\.translate\)"):
        opened("pairs").generate("a")


def test_a_file_for_llama_cpp_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"x\.gguf: to_hf writes a folder; run\.export\('x\.gguf'\) writes a GGUF file$"
    ):
        cf.to_hf(opened("text"), tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


def test_an_open_run_is_not_taken_for_another_checkpoint(tmp_path: Path) -> None:
    run = opened("text")
    calls: list[Callable[[Any], Any]] = [
        lambda at: cf.to_hf(run, tmp_path / "folder", checkpoint=at),
        lambda at: to_gguf(run, tmp_path / "a.gguf", checkpoint=at),
        lambda at: cf.export_page(run, tmp_path / "a.html", checkpoint=at),
        lambda at: cf.lens.show(run, "a", checkpoint=at),
    ]
    for call in calls:
        for other in ("best", 12345):
            with pytest.raises(
                UserError, match=rf"open already, at step {run.step}; give its name, or .*{other}"
            ):
                call(other)
    assert not list(tmp_path.iterdir())
    cf.to_hf(run, tmp_path / "folder", checkpoint=run.step)
    assert (tmp_path / "folder" / "config.json").exists()


# --- no numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [2.5, "5", None, True])
def test_no_whole_number_of_tokens(value: Any) -> None:
    run = opened("text")
    for call in (run.generate, run.stream, run.search):
        with pytest.raises(UserError, match=r"^max_new_tokens: a whole number; got "):
            call("the", max_new_tokens=value)


@pytest.mark.parametrize("value", [2.5, "a", None])
def test_other_numbers_that_are_none(value: Any) -> None:
    run = opened("text")
    for call in (run.generate, run.stream):
        with pytest.raises(UserError, match=r"^seed: a whole number; got "):
            call("the", seed=value)
    with pytest.raises(UserError, match=r"^num: a whole number; got "):
        run.generate("the", num=value)
    with pytest.raises(UserError, match=r"^num: a whole number; got "):
        run.search("the", num=value)
    with pytest.raises(UserError, match=r"^n_best: a whole number; got "):
        opened("pairs").translate("le 1 mai", n_best=value)
    with pytest.raises(UserError, match=r"^batch_size: a whole number; got "):
        opened("pets").classify("a cat", batch_size=value)
    with pytest.raises(UserError, match=r"^occurrence: a whole number; got "):
        cf.lens.embed(run, "the fox").word("fox", value)
    if value is not None:
        for name in ("context", "stride"):
            with pytest.raises(UserError, match=rf"^{name}: a whole number; got "):
                run.evaluate(**{name: value})


def test_no_texts_at_once() -> None:
    with pytest.raises(UserError, match=r"^batch_size: 1 or more; got 0"):
        opened("pets").classify("a cat", batch_size=0)


@pytest.mark.parametrize("value", ["truncat", "", True])
def test_no_way_with_long_texts(value: Any) -> None:
    with pytest.raises(UserError, match=r"^too_long: refuse or truncate; got "):
        opened("pets").classify("a cat " * 20, too_long=value)


# --- options of other runs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pairs", {"stride": 3}),
        ("pairs", {"context": 3}),
        ("pets", {"beams": 3}),
        ("text", {"beams": 5}),
        ("text", {"beams": 0}),
        ("gaps", {"stride": 3}),
    ],
)
def test_an_option_that_has_no_part_in_it_is_refused(name: str, options: dict[str, Any]) -> None:
    [option] = options
    with pytest.raises(UserError, match=rf"^{option}: .* is for a run that .*; remove {option}$"):
        opened(name).evaluate(**options)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"data": []}, "^data: the list is empty; name a file, or omit data"),
        ({"data": 7}, "^data: takes a file name or a list of two; got 7"),
        ({"dtype": torch.int64}, "^dtype: float32 or bfloat16 or float16; got 'int64'"),
        ({"dtype": "bfloat"}, "^dtype: .*; did you mean 'bfloat16'?"),
        (
            {"data": "text.txt", "split": "train"},
            "^split: other data are read whole; remove split or data",
        ),
        ({"data": "text.txt", "allow_changed": True}, "^allow_changed: applies only to the run's own data"),
    ],
)
def test_what_evaluate_cannot_read_is_refused(options: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        opened("text").evaluate(**options)


@pytest.mark.parametrize("dtype", ["bfloat", torch.int64, torch.float64])
def test_no_type_of_products(dtype: Any) -> None:
    for call in (opened("pairs").translate, opened("pets").classify):
        with pytest.raises(UserError, match=r"^dtype: float32 or bfloat16 or float16; got "):
            call("a", dtype=dtype)


def test_a_type_by_its_name_is_the_type() -> None:
    run = opened("text")
    rough = run.evaluate(dtype="bfloat16")
    assert rough.to_dict() == run.evaluate(dtype=torch.bfloat16).to_dict()
    assert rough.loss != run.evaluate(dtype="float32").loss
    assert run.evaluate(split="val").to_dict() == run.evaluate().to_dict()
    for call in (opened("pairs").translate, opened("pets").classify):
        assert call("a", dtype="bfloat16") == call("a", dtype=torch.bfloat16) != call("a")


# --- models that cannot ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["text", "pairs", "gaps", "pets"])
def test_a_model_of_nan_has_no_scores(name: str) -> None:
    run = opened(name)
    with torch.no_grad():
        run.model.embed.weight.fill_(math.nan)
    with pytest.raises(NonFiniteError, match="not finite"):
        run.evaluate()
    uses = {"text": run.generate, "pairs": run.translate, "pets": run.classify}
    if name in uses:
        with pytest.raises(NonFiniteError, match="not finite"):
            uses[name]("a")


def test_a_classifier_needs_what_fills_its_batches_up() -> None:
    model = cf.build(
        cf.ModelConfig(
            family="encoder", n_classes=2, vocab_size=256, d_model=12, n_layers=1, attention={"n_heads": 2}
        )  # type: ignore[arg-type]
    )
    with pytest.raises(UserError, match=r"has no <pad>"):
        cf.Run(model, ByteTokenizerSpec().train([])).classify("abc")
