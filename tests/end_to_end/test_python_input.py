"""Whatever a user of Python hands over: it does what it says, or one line says what is wrong with it."""

from pathlib import Path
from typing import Any

import pytest
import torch

import clearformer as cf
from clearformer import resolving
from clearformer.errors import ClearformerError, ConfigError, RunError, UserError
from clearformer.presets import PRESETS
from clearformer.resolving import preset_of
from clearformer.text import ByteTokenizerSpec
from clearformer.training.config import TrainConfig

SECTIONS = ("data", "model", "tokenizer", "train")
MEASURED = "auto"  # which measures the machine
SMALL: dict[str, Any] = {"d_model": 16, "n_layers": 1, "max_seq_len": 16, "attention": {"n_heads": 2}}
TRAIN: dict[str, Any] = {
    "max_steps": 2,
    "max_seconds": "none",
    "batch_size": 4,
    "compile": False,
    "dtype": "float32",
    "device": "cpu",
}


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    (tmp_path / "my.txt").write_text("To be, or not to be, that is the question.\n" * 60)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def trained(**changes: Any) -> cf.Run:
    settings: dict[str, Any] = {"data": {"path": "my.txt"}, "model": SMALL, "train": TRAIN, "quiet": True}
    return cf.train("quick", **(settings | changes))


@pytest.mark.parametrize("name", ["my.txt", "none.tsv", "runs"])
def test_a_file_in_place_of_the_data_s_settings_is_recognised(name: str, runs: Path) -> None:
    runs.mkdir()
    with pytest.raises(
        ConfigError, match=rf"^data\.kind is one of .*; to read a file, write data=\{{'path': '{name}'\}}"
    ):
        cf.train("quick", data=name)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"did you mean 'pairs'\?$"):
        cf.train("quick", data="pair")  # type: ignore[arg-type]


# --- settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("name", sorted(set(PRESETS) - {MEASURED}))
def test_a_spec_for_a_section_takes_the_place_of_all_of_it(name: str, section: str) -> None:
    n_fitting = 0
    for other in sorted(set(PRESETS) - {MEASURED}):
        spec = getattr(cf.preset(other), section)
        try:
            expected = cf.preset(name).replace(**{section: spec})
        except ConfigError:  # such as pairs for a language model
            continue
        n_fitting += 1
        assert cf.preset(name, **{section: spec}) == expected
    assert n_fitting


def test_a_setting_beside_a_spec_is_laid_over_it() -> None:
    dotted: dict[str, Any] = {"model.n_layers": 2}
    model = cf.ModelConfig(d_model=128)
    assert cf.preset("quick", model=model, **dotted).model == model.replace(n_layers=2)


def test_a_run_goes_on_by_a_configuration_only_where_it_is_its_own() -> None:
    run = trained(run="a", train=TRAIN | {"lr": 0.01})
    default = run.config.train.replace(lr=TrainConfig(max_steps=1).lr)
    with pytest.raises(ConfigError, match=r"^train\.lr: the run has 0\.01"):
        cf.train(run.config.replace(train=default), run="a", resume=True, quiet=True)
    longer = run.config.replace(train=run.config.train.replace(max_steps=3))
    assert cf.train(longer, run="a", resume=True, quiet=True).step == 3


def test_a_path_may_be_a_path() -> None:
    assert cf.preset("quick", data={"path": Path("my.txt")}) == cf.preset("quick", data={"path": "my.txt"})


# --- a model of one's own ---------------------------------------------------------------------------------


def byte_model(**settings: Any) -> Any:
    return cf.build(cf.ModelConfig(**({"vocab_size": 256, "position": "rope"} | SMALL | settings)))


def byte_run(config: Any = None, **settings: Any) -> cf.Run:
    return cf.Run(byte_model(), ByteTokenizerSpec().train(()), config, **settings)


def test_the_settings_of_a_run_are_its_model_s(tmp_path: Path) -> None:
    given = cf.preset("quick", model=byte_model().config.replace(vocab_size=None), tokenizer="byte")
    run = byte_run(given)

    assert run.config == given.replace(model=run.model.config)
    kept = cf.load(run.save(tmp_path / "kept").folder.path, device="cpu")
    tokens = torch.arange(8)[None]
    assert torch.equal(kept.model(tokens), run.model.eval()(tokens))


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"a": 1}, r"^a run's config is a RunConfig, such as cf\.preset\(\.\.\.\); got \{'a': 1\}$"),
        (
            cf.preset("quick"),
            r"^config\.model\.d_model is 192, but the model's is 16: pass config\.",
        ),
        (cf.preset("quick", model=SMALL), r"^config\.model\."),
    ],
)
def test_settings_of_another_model_are_refused(config: Any, line: str) -> None:
    with pytest.raises(UserError, match=line):
        byte_run(config)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"step": "a"}, "^step: a whole number; got 'a'$"),
        ({"step": -1}, "^step: 0 or more; got -1$"),
        ({"step": True}, "^step: a whole number; got True$"),
        ({"folder": "x"}, "^folder: expected a RunFolder .*; got 'x'$"),
        ({"labels": ("a", "b")}, "^labels: the model has no classes"),
    ],
)
def test_what_is_said_of_a_run_is_checked(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        byte_run(**settings)


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        (("a", "b"), r"^labels: 2 names, but the model has 3 classes \(n_classes\)$"),
        ("abc", "^labels takes the names of the classes; got 'abc'$"),
        (("a", "b", 3), "^labels takes the names"),
        (("a", " ", "c"), "^labels: a class needs a name"),
    ],
)
def test_labels_are_one_for_each_class(labels: Any, line: str) -> None:
    model = byte_model(family="encoder", n_classes=3)
    tokenizer = ByteTokenizerSpec().train(())
    whole = cf.Run(model, tokenizer, labels=("a", "b", "c"))
    assert whole.config.data.labels == ("a", "b", "c")  # type: ignore[union-attr]
    with pytest.raises(UserError, match=line):
        cf.Run(model, tokenizer, labels=labels)
    with pytest.raises(UserError, match=r"^labels: the config already names the classes"):
        cf.Run(model, tokenizer, whole.config, labels=("a", "b", "c"))


def test_a_run_that_is_kept_nowhere_is_exported_as_it_is(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"position": "learned", "ffn": {"kind": "gelu", "approximate": "tanh"}}
    shape |= {"attention": {"n_heads": 2, "qkv_bias": True, "output_bias": True}}
    run = cf.Run(byte_model(**shape), ByteTokenizerSpec().train(()))
    run.export(tmp_path / "theirs")
    tokens = torch.arange(8)[None]
    back = cf.from_hf(tmp_path / "theirs", "back")
    torch.testing.assert_close(back.model(tokens), run.model.eval()(tokens))


def test_a_file_of_llama_cpp_is_known_by_its_suffix_in_any_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    monkeypatch.setattr("clearformer.interop.gguf.to_gguf", lambda _, target: written.append(target))
    byte_run().export(tmp_path / "x.GGUF")
    assert written == [tmp_path / "x.GGUF"]


# --- where runs are ---------------------------------------------------------------------------------------


def test_a_run_stays_itself_where_the_current_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLEARFORMER_RUNS")
    run = trained(run="a")
    loaded, kept = cf.load("a", device="cpu"), run.save("./b")
    assert (run.name, loaded.name, kept.name) == ("a", "a", "./b")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for each, name in ((run, "runs/a"), (loaded, "runs/a"), (kept, "b")):
        assert each.folder.path == tmp_path / name
        assert each.folder.read_config() == run.config
        assert cf.load(each.name, device="cpu").config == run.config
    assert run.val_loss is not None


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda _: cf.train(run=Path("x")), r"^run: .*Path\('x'\) is not a valid run name"),  # type: ignore[arg-type]
        (lambda _: cf.train(run=5), "^run: 5 is not a valid run name"),  # type: ignore[arg-type]
        (lambda _: cf.train(run=5, resume=True), "^expected the name or folder of a run; got 5$"),  # type: ignore[arg-type]
        (lambda _: cf.load(5), "^expected the name or folder of a run; got 5$"),  # type: ignore[arg-type]
        (lambda _: cf.load(None), "^expected the name or folder of a run; got None$"),  # type: ignore[arg-type]
        (lambda _: cf.load(""), "^there is no run ''"),
        (lambda run: run.save(None), "^a run is saved under a name or in a folder; got None$"),
        (lambda run: run.export(None), "^expected a path; got None$"),
        (lambda run: run.export(""), "^expected a path; got an empty string"),
        (lambda _: cf.from_hf(""), "^expected a path; got an empty string"),
        (lambda _: cf.preset(5), "^expected the name of a preset; got 5; there are quick,"),  # type: ignore[arg-type]
        (lambda _: cf.preset(["quick"]), "^expected the name of a preset; got"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_name_and_no_path_is_told(call: Any, line: str) -> None:
    with pytest.raises(UserError, match=line) as raised:
        call(byte_run())
    assert "\n" not in str(raised.value)


def test_a_run_is_opened_by_what_torch_and_python_have(tmp_path: Path) -> None:
    byte_run(step=3).save("a")
    assert cf.load("a", device=torch.device("cpu")).step == 3
    assert cf.load("a", checkpoint=3, device="cpu").step == 3
    with pytest.raises(ConfigError, match=r"^device: 5 is not a device; this machine has "):
        cf.load("a", device=5)  # type: ignore[arg-type]
    for average in ("a", 2.0):
        with pytest.raises(RunError, match=r"a whole number of checkpoints; got "):
            cf.load("a", device="cpu", average=average)  # type: ignore[arg-type]


# --- training ---------------------------------------------------------------------------------------------


def test_a_run_tells_the_preset_that_it_began_with_and_goes_on_by_the_same_call() -> None:
    begun = trained(run="a")
    assert preset_of(begun.folder) == "quick"
    again = cf.train(
        "quick", run="a", data={"path": "my.txt"}, model=SMALL, train=TRAIN, resume=True, quiet=True
    )
    assert again.config == begun.config
    assert preset_of(cf.train(begun.config, run="b", quiet=True).folder) is None


def test_auto_goes_on_by_the_call_that_began_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "auto_for", lambda config, said: config)  # nothing is measured

    def call(**how: Any) -> cf.Run:
        return cf.train(
            "auto", run="au", data={"path": "my.txt"}, model=SMALL, train=TRAIN, quiet=True, **how
        )

    begun = call()
    assert call(resume=True).config == begun.config
    trained(run="other")
    with pytest.raises(ConfigError, match="was started with another preset"):
        cf.train("auto", run="other", resume=True, quiet=True)


def test_training_leaves_torch_s_generator_as_it_was() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    trained()
    assert torch.equal(torch.rand(3), expected)


class Kept:
    def __init__(self) -> None:
        self.told: list[str] = []

    def start(self, config: cf.RunConfig) -> None:
        self.told.append("start")

    def log(self, step: int, values: Any) -> None:
        self.told.append("log")

    def finish(self, summary: Any) -> None:
        self.told.append("finish")


class Broken(Kept):
    def start(self, config: cf.RunConfig) -> None:
        raise OSError("no network\nat all")


def test_loggers_may_come_from_a_generator() -> None:
    kept = [Kept(), Kept()]
    trained(loggers=(each for each in kept))
    assert [each.told for each in kept] == [["start", "log", "finish"]] * 2


@pytest.mark.parametrize(
    ("loggers", "line"),
    [
        (None, "^loggers takes a list of loggers; got None$"),
        (5, "^loggers takes a list of loggers; got 5$"),
        (print, "^loggers takes a list of loggers; got <built-in function print>$"),
        (Kept(), "^loggers takes a list of loggers; got <"),
        ([Kept], r"^loggers: Kept is a class; pass an instance, such as Kept\(\.\.\.\)$"),
    ],
)
def test_what_is_no_list_of_loggers_is_told(loggers: Any, line: str, runs: Path) -> None:
    with pytest.raises(ConfigError, match=line):
        trained(loggers=loggers)
    assert not runs.exists()


def test_a_logger_that_cannot_start_ends_the_run_before_its_folder_is_made(runs: Path) -> None:
    kept = Kept()
    with pytest.raises(ClearformerError) as raised:
        trained(run="a", loggers=[kept, Broken()])
    assert str(raised.value) == "loggers: Broken cannot start: OSError: no network at all"
    assert kept.told == ["start", "finish"]
    assert not (runs / "a" / "config.toml").exists()
    assert not list(runs.glob("*/checkpoints"))
    assert trained(run="a").name == "a"


# --- models and tokens by themselves ----------------------------------------------------------------------


def test_a_model_is_built_of_settings_by_their_names() -> None:
    assert cf.build({"vocab_size": 5, "attention.n_heads": 2, **SMALL}).config == cf.ModelConfig(
        vocab_size=5, **SMALL
    )


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ("quick", r"got a preset name: pass cf\.preset\('quick', model=\{'vocab_size': N\}\)\.model$"),
        (cf.preset("quick"), r"got a run's configuration: pass its \.model$"),
        (5, "^a model is built from a ModelConfig or settings by name; got 5$"),
        ({3: 4}, "^a setting's name is text; got 3$"),
        ({"d_modell": 4}, "did you mean 'd_model'"),
    ],
)
def test_what_no_model_is_built_of_is_told(config: Any, line: str) -> None:
    with pytest.raises(ConfigError, match=line) as raised:
        cf.build(config)
    assert "\n" not in str(raised.value)


def test_a_text_is_cut_as_a_configuration_says() -> None:
    config = cf.preset("quick", tokenizer={"kind": "bpe", "vocab_size": 258})
    cut = cf.tokenize("low lower", config)
    assert cut.tokenizer.kind == "bpe"
    assert cut.ids.tolist() == cf.tokenize("low lower", "bpe", vocab_size=258).ids.tolist()


@pytest.mark.parametrize(
    ("tokenizer", "line"),
    [
        (cf.ModelConfig(), r"^a tokenizer is a kind \(char, .*\) or its spec.*; got ModelConfig$"),
        (5, "^a tokenizer is a kind .*; got 5$"),
        (None, "^a tokenizer is a kind .*; got None$"),
        ("dec", r"^'dec' is a run: pass cf\.load\('dec'\) to use its tokenizer$"),
        ("nothing", r"^tokenizer\.kind is one of "),
    ],
)
def test_what_cuts_no_text_is_told(tokenizer: Any, line: str) -> None:
    byte_run().save("dec")
    with pytest.raises(ConfigError, match=line) as raised:
        cf.tokenize("a", tokenizer)
    assert "\n" not in str(raised.value)
