"""`clearformer export` and `import`, as a user types them: there and back, and what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import clearformer as cf
from clearformer.cli import Call
from clearformer.data import TextData
from clearformer.errors import ClearformerError, RunError, TokenizerError
from clearformer.interop.architectures import ARCHITECTURES
from clearformer.interop.importing import run_config
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.feedforward import GELU, ReLU
from clearformer.model.positions import Sinusoidal
from clearformer.run import Run
from clearformer.runs.folders import new_run, runs_folder
from clearformer.text import (
    BPETokenizerSpec,
    CharTokenizerSpec,
    ImportedTokenizer,
    WordPieceTokenizerSpec,
    specials_of,
)
from clearformer.training.store.checkpoint import Checkpoint, Progress, save_checkpoint
from clearformer.training.store.folder import RunFolder
from clearformer.training.store.state import weights_of

TEXT = "the cat sat on the mat, and the other cat sat beside it\n" * 5
SIZES: dict[str, Any] = {"d_model": 12, "n_layers": 2, "max_seq_len": 64, "attention": MultiHead(n_heads=2)}
POST: dict[str, Any] = {"placement": "post", "final_norm": False}
MODELS = {
    "decoder": (
        ModelConfig(**SIZES, ffn=GELU(approximate="tanh")),
        BPETokenizerSpec(vocab_size=280, bos=True),
    ),
    "characters": (ModelConfig(**SIZES), CharTokenizerSpec(eos=True)),
    "translator": (
        ModelConfig(**SIZES, **POST, family="encoder-decoder", position=Sinusoidal(), ffn=ReLU()),
        BPETokenizerSpec(vocab_size=280),
    ),
    "masked": (
        ModelConfig(**SIZES, **POST, family="encoder", embedding_norm=True, masked_head="transform"),
        WordPieceTokenizerSpec(vocab_size=99),
    ),
    "classifier": (
        ModelConfig(**SIZES, **POST, family="encoder", embedding_norm=True, n_classes=3),
        WordPieceTokenizerSpec(vocab_size=99),
    ),
}
LABELS = ("news", "advice", "a cat")  # in no order


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))


@torch.no_grad()
def make(name: str, val_loss: float | None = 2.5) -> str:
    """A run that was not trained, with weights so large that its texts are not all of one token."""
    model, spec = MODELS[name]
    tokenizer = spec.train([TEXT], specials=specials_of(model.family))
    network = build(model := model.replace(vocab_size=tokenizer.vocab_size))
    for parameter in network.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    folder = new_run(name)
    progress = Progress(step=3, val_loss=val_loss)
    folder.create(run_config(model, None if model.n_classes is None else LABELS), tokenizer, text_sha256="")
    save_checkpoint(folder.checkpoints, Checkpoint(progress, weights_of(network), {}))
    return name


def refusal(command: str, *arguments: str | Path) -> ClearformerError:
    with pytest.raises(ClearformerError) as caught:
        Call([command, *map(str, arguments)]).dispatch()
    assert "\n" not in str(caught.value)
    return caught.value


def succeed(command: str, *arguments: str | Path) -> None:
    assert Call([command, *map(str, arguments)]).dispatch() == 0


def test_the_files_of_an_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    succeed("export", make("decoder"), tmp_path / "out")

    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    card = (tmp_path / "out" / "README.md").read_text()
    assert "AutoModelForCausalLM" in card
    assert "3 steps on the data `pydoc`" in card
    assert "2.5000 nats per token" in card
    assert "GPT-2; load it with transformers.AutoModelForCausalLM" in capsys.readouterr().out


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    succeed("export", make(name), tmp_path / "out")
    succeed("import", tmp_path / "out", "--run", "back")
    succeed("export", "back", tmp_path / "again")
    assert "runs/back: " in capsys.readouterr().out.replace(str(tmp_path), "").replace("\\", "/")

    ours, back = cf.load(name, device="cpu"), cf.load("back", device="cpu")
    ids = ours.tokenizer.encode("the cat sat")
    assert back.tokenizer.encode("the cat sat").tolist() == ids.tolist()
    assert back.tokenizer.decode(ids) == ours.tokenizer.decode(ids)
    for role in ("bos_id", "eos_id", "pad_id", "mask_id"):
        assert getattr(back.tokenizer, role) == getattr(ours.tokenizer, role), role
    n_tokens = ours.tokenizer.vocab_size
    inputs = [torch.randint(n_tokens, (2, 11)) for _ in range(2 if name == "translator" else 1)]
    torch.testing.assert_close(back.model(*inputs), ours.model(*inputs), rtol=1e-5, atol=1e-5)
    assert back.config.data == ours.config.data
    for file in ("model.safetensors", "config.json", "generation_config.json"):
        first, second = tmp_path / "out" / file, tmp_path / "again" / file
        assert first.exists() == second.exists()
        assert not first.exists() or first.read_bytes() == second.read_bytes(), file


@pytest.mark.parametrize("name", MODELS)
def test_a_tokenizer_of_ours_comes_back_as_its_kind(name: str, tmp_path: Path) -> None:
    own = cf.load(make(name)).tokenizer
    succeed("export", name, tmp_path / "hf")
    succeed("import", tmp_path / "hf", "--run", "back")
    back = cf.load("back")
    assert (type(back.tokenizer), back.tokenizer.fingerprint()) == (type(own), own.fingerprint())
    assert back.config.tokenizer.kind == own.kind

    config = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    (tmp_path / "hf" / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "Other"}))
    succeed("import", tmp_path / "hf", "--run", "other")
    if name != "characters":  # which have no template, and are recognised by their file alone
        assert isinstance(cf.load("other").tokenizer, ImportedTokenizer)


def test_characters_that_came_back_refuse_those_they_lack(tmp_path: Path) -> None:
    succeed("export", make("characters"), tmp_path / "hf")
    succeed("import", tmp_path / "hf", "--run", "back")
    with pytest.raises(TokenizerError, match="ñ"):
        cf.load("back").tokenizer.encode("the ñ")


def test_an_exported_translator_never_writes_pad(tmp_path: Path) -> None:
    tokenizer = cf.load(make("translator")).tokenizer
    succeed("export", "translator", tmp_path / "hf")
    settings = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    assert settings["suppress_tokens"] == [tokenizer.pad_id]


def test_an_imported_run_has_no_data_to_go_on_with(tmp_path: Path) -> None:
    succeed("export", make("translator"), tmp_path / "hf")
    succeed("import", tmp_path / "hf", "--run", "back")
    with pytest.raises(RunError, match="imported"):
        cf.train(run="back", resume=True, quiet=True)


def test_classes_without_names_are_their_numbers_in_order(tmp_path: Path) -> None:
    model, spec = MODELS["classifier"]
    tokenizer = spec.train([TEXT], specials=specials_of("encoder"))
    network = build(model.replace(vocab_size=tokenizer.vocab_size, n_classes=12))
    run = Run(network.eval(), tokenizer)
    data: Any = run.config.data
    assert data.labels == tuple(map(str, range(12)))
    texts = [" ".join(TEXT.split()[n : n + 5]) for n in range(12)]
    found = [each.label for each in cf.classify(run, texts)]
    rows = [*zip(texts, found, strict=True), *((f"the {n}", str(n)) for n in range(12))]
    (tmp_path / "own.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    assert cf.evaluate(run, tmp_path / "own.tsv").to_dict()["accuracy"] >= len(texts) / len(rows)


def test_an_imported_decoder_samples_and_evaluates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    succeed("export", make("decoder"), tmp_path / "out")
    succeed("import", tmp_path / "out", "--run", "back")
    (tmp_path / "text.txt").write_text(TEXT)
    answers = []
    for run in ("decoder", "back"):
        capsys.readouterr()
        succeed(
            "generate", run, "--prompt", "the cat", "--temperature", "0", "--max-new-tokens", "9", "--json"
        )
        succeed("eval", run, "--data", tmp_path / "text.txt", "--json")
        answers.append(
            [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
        )
    (ours, loss), (theirs, loss_there) = answers
    assert [sample["text"] for sample in theirs["samples"]] == [sample["text"] for sample in ours["samples"]]
    assert loss_there["loss"] == pytest.approx(loss["loss"], abs=1e-5)
    assert loss_there["n_chars"] == loss["n_chars"]


def test_an_imported_translator_translates(tmp_path: Path) -> None:
    from clearformer.decoding.text.translations import translate

    succeed("export", make("translator"), tmp_path / "out")
    succeed("import", tmp_path / "out", "--run", "back")
    runs = [cf.load(name, device="cpu") for name in ("translator", "back")]
    sentences = ["the cat sat", "", "the other mat"]
    ours, theirs = [
        [[each.text for each in of_one] for of_one in translate(run, sentences, n_best=2, max_new_tokens=7)]
        for run in runs
    ]
    assert theirs == ours
    assert len(ours[0]) == 2


def test_one_file_for_llama_cpp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make("decoder")
    succeed("export", run, tmp_path / "tiny.gguf")
    assert (tmp_path / "tiny.gguf").read_bytes()[:4] == b"GGUF"
    assert "GPT-2 for llama.cpp, in float32" in capsys.readouterr().out
    succeed("export", run, tmp_path / "half.gguf", "--dtype", "float16")
    assert "GPT-2 for llama.cpp, in float16" in capsys.readouterr().out
    assert (tmp_path / "half.gguf").stat().st_size < (tmp_path / "tiny.gguf").stat().st_size


def test_the_ending_for_llama_cpp_may_be_in_capitals(tmp_path: Path) -> None:
    succeed("export", make("decoder"), tmp_path / "TINY.GGUF")
    assert (tmp_path / "TINY.GGUF").read_bytes()[:4] == b"GGUF"


def test_the_help_names_all_architectures(capsys: pytest.CaptureFixture[str]) -> None:
    succeed("import", "--help")
    named = "".join(capsys.readouterr().out.split())  # lines may break within a name
    assert [each.title for each in ARCHITECTURES if each.title not in named] == []


def test_an_empty_name_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(refusal("export", make("decoder"), "")).startswith("DIR: the name is empty")
    assert str(refusal("export", "", "out")).startswith("RUN: the name is empty")
    assert str(refusal("import", "")).startswith("DIR: the name is empty")


def test_a_type_that_gguf_does_not_have_is_named(tmp_path: Path) -> None:
    error = refusal("export", make("decoder"), tmp_path / "a.gguf", "--dtype", "int8")
    assert str(error) == "--dtype takes float32 or float16; got 'int8'"


def test_a_folder_has_one_type(tmp_path: Path) -> None:
    run = make("decoder")
    error = refusal("export", run, tmp_path / "out", "--dtype", "float16")
    assert "--dtype float16: a folder is written in float32" in str(error)
    error = refusal("export", run, tmp_path / "out", "--dtype", "flaot16")
    assert "got 'flaot16'; did you mean 'float16'?" in str(error)
    assert not (tmp_path / "out").exists()


def test_a_model_card_tells_no_folder_of_this_machine(tmp_path: Path) -> None:
    run = cf.load(make("decoder"), device="cpu")
    config = run.config.replace(data=TextData(path=str(tmp_path / "private" / "my.txt")))
    card = card_of(cf.Run(run.model, run.tokenizer, config), tmp_path / "out")
    assert 'path = "my.txt"' in card
    assert "private" not in card


# --- the loss that the model card tells --------------------------------------------------------------------


def card_of(run: str | Run, folder: Path) -> str:
    cf.to_hf(run, folder)
    return (folder / "README.md").read_text(encoding="utf-8")


def write_metrics(run: str, *lines: dict[str, Any]) -> None:
    RunFolder(runs_folder() / run).metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_loss_on_all_held_out_data_is_that_of_the_exported_step(tmp_path: Path) -> None:
    """The checkpoint holds the loss by which checkpoints are compared, which is that of a part of the data."""
    run = make("decoder")
    write_metrics(
        run,
        {"step": 2, "val_loss": 1.25, "val_share": 1.0},
        {"step": 3, "val_loss": 1.9212, "val_share": 1.0},
        {"step": 4, "val_loss": 1.5, "val_share": 1.0},
    )
    card = card_of(run, tmp_path / "out")
    assert "Its loss on all held-out data is 1.9212 nats per token." in card
    assert "2.5" not in card


def test_a_loss_on_a_part_of_the_held_out_data_is_told_as_that(tmp_path: Path) -> None:
    run = make("decoder")
    write_metrics(run, {"step": 3, "val_loss": 1.7143, "val_share": 0.0561})
    card = card_of(run, tmp_path / "out")
    assert "Its loss on 5.61% of the held-out data, evenly spaced, is 1.7143 nats per token." in card


def test_where_it_is_not_known_of_how_much_the_loss_is_that_is_told(tmp_path: Path) -> None:
    card = card_of(make("decoder"), tmp_path / "out")
    assert "the held-out data that its checkpoints are compared by, all or a part, is 2.5000 nats" in card


def test_without_an_evaluation_of_the_exported_step_no_loss_is_told(tmp_path: Path) -> None:
    run = make("decoder", val_loss=None)
    write_metrics(run, {"step": 2, "val_loss": 1.25, "val_share": 1.0}, {"step": 3, "loss": 1.0})
    assert "nats" not in card_of(run, tmp_path / "out")


def test_the_loss_of_other_weights_is_not_told(tmp_path: Path) -> None:
    run = cf.load(make("decoder"), device="cpu")
    write_metrics("decoder", {"step": 3, "val_loss": 1.9212, "val_share": 1.0})
    assert "1.9212" in card_of(run, tmp_path / "as it was")
    with torch.no_grad():
        next(run.model.parameters()).add_(1)
    assert "nats" not in card_of(run, tmp_path / "changed")


def test_the_mean_of_the_last_checkpoints_is_exported(tmp_path: Path) -> None:
    folder = cf.load(make("decoder"), device="cpu").folder
    weights = weights_of(build(cf.load("decoder").config.model))
    save_checkpoint(folder.checkpoints, Checkpoint(Progress(step=7, val_loss=1.5), weights, {}))

    succeed("export", "decoder", tmp_path / "out", "--average", "2")

    exported = cf.from_hf(tmp_path / "out", "back").model
    for name, tensor in cf.load("decoder", device="cpu", average=2).model.state_dict().items():
        torch.testing.assert_close(exported.state_dict()[name].cpu(), tensor, rtol=0, atol=0)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "7 steps on the data `pydoc`. Its weights are the mean of the last 2 checkpoints." in card
    assert "nats" not in card
    assert "--average: " in str(refusal("export", "decoder", tmp_path / "more", "--average", "3"))


@pytest.mark.parametrize(("name", "predicted"), [("classifier", "text"), ("masked", "masked token")])
def test_what_a_loss_is_counted_by(name: str, predicted: str, tmp_path: Path) -> None:
    run = make(name)
    write_metrics(run, {"step": 3, "val_loss": 0.5, "val_share": 1.0})
    assert f"is 0.5000 nats per {predicted}." in card_of(run, tmp_path / "out")


# --- what is refused --------------------------------------------------------------------------------------


def test_a_folder_with_something_in_it_stays_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    error = refusal("export", make("decoder"), out)
    assert error.exit_status == 2
    assert "not an empty folder" in str(error)
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    succeed("export", make("decoder"), tmp_path / "out")
    assert (tmp_path / "out" / "config.json").is_file()


def test_an_empty_folder_is_filled_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").symlink_to("elsewhere")
    succeed("export", make("decoder"), tmp_path / "out")
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "elsewhere" / "config.json").is_file()
    succeed("import", tmp_path / "out", "--run", "back")


def test_the_folder_that_one_stands_in_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make("decoder")
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    succeed("export", run, ".")
    assert Path("config.json").is_file()


def test_a_folder_name_that_is_too_long(tmp_path: Path) -> None:
    error = refusal("export", make("decoder"), tmp_path / ("x" * 300))
    assert "cannot be written: File name too long" in str(error)


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    make("decoder")
    error = refusal("export", "decode", tmp_path / "out")
    assert "did you mean 'decoder'?" in str(error)
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_none_of_theirs(tmp_path: Path) -> None:
    model, spec = MODELS["characters"]
    MODELS["odd"] = (model.replace(logit_soft_cap=7.0), spec)
    error = refusal("export", make("odd"), tmp_path / "out")
    del MODELS["odd"]
    assert error.exit_status == 2
    assert "model.logit_soft_cap=7.0 does not fit: the nearest" in str(error)
    assert "the nearest architecture in transformers, GPT-2, has none there" in str(error)
    assert not (tmp_path / "out").exists()


def test_a_name_that_is_taken(tmp_path: Path) -> None:
    succeed("export", make("decoder"), tmp_path / "out")
    error = refusal("import", tmp_path / "out", "--run", "decoder")
    assert re.fullmatch(r"--run: \S+decoder exists; choose another name, or delete it", str(error))
    with pytest.raises(RunError, match=r"^name: \S+decoder exists; choose another name, or delete it$"):
        cf.from_hf(tmp_path / "out", "decoder")


def test_without_a_name_the_folder_gives_it(tmp_path: Path) -> None:
    make("decoder")
    succeed("export", "decoder", tmp_path / "decoder")
    succeed("import", tmp_path / "decoder")
    assert (tmp_path / "runs" / "decoder-2" / "config.toml").is_file()


def test_a_folder_whose_name_is_no_run_s_gives_one_that_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make("decoder")
    names = {".my model (2)": "my-model-2", "\u6a21\u578b": "\u6a21\u578b", "\u2603": "run", "-rf": "rf"}
    for folder, name in names.items():
        succeed("export", run, tmp_path / folder)
        capsys.readouterr()
        succeed("import", tmp_path / folder)
        assert f"{Path('runs', name)}: decoder of" in capsys.readouterr().out
        assert (tmp_path / "runs" / name / "config.toml").is_file()


@pytest.mark.parametrize("name", ["", ".", "..", "-rf", "a b", "a/b", "../up", "x" * 101, "a\n", "a\u2028b"])
def test_a_name_that_no_run_may_have_is_refused(tmp_path: Path, name: str) -> None:
    error = refusal("import", tmp_path / "nowhere", f"--run={name}")
    assert error.exit_status == 2
    assert "--run: " in str(error)
    assert "is not a valid run name" in str(error)


@pytest.mark.parametrize("folder", ["x" * 300, "~nobody-of-this-name/model", "loop"])
def test_a_folder_that_cannot_be_read_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert refusal("import", tmp_path / folder).exit_status == 2
    assert refusal("import", folder).exit_status == 2


@pytest.mark.parametrize("spoilt", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_damaged_file_leaves_no_run(spoilt: str, tmp_path: Path) -> None:
    succeed("export", make("decoder"), tmp_path / "out")
    path = tmp_path / "out" / spoilt
    path.write_bytes(path.read_bytes()[:-9])
    error = refusal("import", tmp_path / "out", "--run", "back")
    assert spoilt in str(error)
    assert error.exit_status == (1 if spoilt == "model.safetensors" else 2)
    assert not (tmp_path / "runs" / "back").exists()


@pytest.mark.parametrize(
    "names",
    [
        5,
        2.5,
        "news",
        ["news", "advice", "a cat"],
        {"0": "a", "1": "a", "2": "b"},
        {"0": "1", "1": 1, "2": "b"},
        {"0": ["a"], "1": ["b"], "2": ["c"]},
        {"0": None, "1": "b", "2": "c"},
        {"1": "a", "2": "b", "3": "c"},
        {"zero": "a", "one": "b", "two": "c"},
    ],
)
def test_names_of_classes_that_are_none(names: Any, tmp_path: Path) -> None:
    succeed("export", make("classifier"), tmp_path / "out")
    config = tmp_path / "out" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_labels": 3, "id2label": names}))
    error = refusal("import", tmp_path / "out", "--run", "back")
    assert error.exit_status == 2
    assert "config.json: id2label" in str(error)
    assert not (tmp_path / "runs" / "back").exists()


def test_what_cannot_be_read_again_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    succeed("export", make("decoder"), tmp_path / "out")

    def damaged(*_: object, **__: object) -> None:
        raise TokenizerError("damaged")

    monkeypatch.setattr("clearformer.training.store.folder.load_tokenizer", damaged)
    assert "damaged" in str(refusal("import", tmp_path / "out", "--run", "back"))
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["decoder"]


def test_code_is_not_run(tmp_path: Path) -> None:
    succeed("export", make("decoder"), tmp_path / "out")
    config = tmp_path / "out" / "config.json"
    fields = json.loads(config.read_text()) | {"auto_map": {"AutoModelForCausalLM": "own.Own"}}
    config.write_text(json.dumps(fields))
    (tmp_path / "out" / "own.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    error = refusal("import", tmp_path / "out", "--run", "back")
    assert error.exit_status == 2
    assert "auto_map" in str(error)
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "runs" / "back").exists()


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    succeed("export", make("decoder"), tmp_path / "out")
    (tmp_path / "out" / "tokenizer.json").unlink()
    error = refusal("import", tmp_path / "out", "--run", "back")
    assert "has no tokenizer.json" in str(error)
