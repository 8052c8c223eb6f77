"""A run's configuration from a command's arguments: which preset, which data, what does not go together."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from clearformer import resolving
from clearformer.config import NONE, read_toml
from clearformer.data import PairsData
from clearformer.errors import ConfigError, RunError
from clearformer.model.config import ModelConfig
from clearformer.presets import preset
from clearformer.resolving import resolve_run, resolve_settings, split_arguments
from clearformer.text import ByteTokenizerSpec
from clearformer.training.config import RunConfig, TrainConfig
from clearformer.training.objectives import TranslationObjective
from clearformer.training.store.folder import RunFolder


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))


# --- which preset -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((), "quick"),
        (("train.lr=1",), "quick"),
        (("data.name=shakespeare",), "quick"),
        (("data.path=a.txt",), "quick"),
        (("data.path=a.csv",), "quick"),
        (("data.name=dates",), "translate"),
        (("data.name=multi30k", "data.languages=fr-en"), "translate"),
        (("data.source=a.fr", "data.target=a.en"), "translate"),
        (("data.path=a.tsv",), "translate"),
        (("data.path=a.TSV.gz",), "translate"),
        (("data.name=languages",), "classify"),
        (("data.name=sst2",), "classify"),
        (("data.path=a.tsv", "data.label_field=kind"), "classify"),
        (("data.path=a.jsonl", "data.text_field=review"), "classify"),
        (("data.kind=labelled", "data.path=a.tsv"), "classify"),
        (("data.kind=pairs",), "translate"),
        (("data.name=dates", "data.path=a.txt"), "quick"),  # the later one counts
        (("data.name=dates", "data.name=none"), "quick"),
        (("lecture", "data.name=dates"), "lecture"),  # a name is a name; RunConfig refuses what does not fit
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else value,
)
def test_where_no_preset_is_named_the_data_decide(settings: tuple[str, ...], expected: str) -> None:
    assert split_arguments(list(settings))[0] == expected


def test_the_data_of_a_settings_file_decide_too(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[data]\nname = "dates"\n[train]\nlr = 0.5\n')

    assert split_arguments(["train.lr=2"], file) == ("translate", [read_toml(file), {"train": {"lr": 2}}])
    config = resolve_run(["train.lr=2"], file)

    assert (config.data.kind, config.data.name, config.train.lr) == ("pairs", "dates", 2)
    assert split_arguments(["data.path=my.txt"], file)[0] == "quick"


def test_a_name_that_no_kind_of_data_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"data\.name=language: no such built-in data; did you mean 'languages'\?"
    ):
        split_arguments(["data.name=language"])
    with pytest.raises(
        ConfigError, match=r"data\.name=xyz: no such built-in data; there are .*shakespeare.*dates.*sst2"
    ):
        split_arguments(["data.name=xyz"])


def test_there_is_one_preset_and_it_is_known() -> None:
    with pytest.raises(ConfigError, match="one preset at a time: got quick and lecture"):
        split_arguments(["quick", "lecture"])
    with pytest.raises(ConfigError, match="there is no preset 'trnslate'; did you mean 'translate'"):
        resolve_run(["trnslate"], None)


# --- which data -------------------------------------------------------------------------------------------


def said(config: RunConfig) -> dict[str, str]:
    names = ("name", "path", "source", "target")
    return {name: value for name in names if (value := getattr(config.data, name, None)) is not None}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("lecture",), {"name": "shakespeare"}),
        (("lecture", "data.path=a.txt"), {"path": "a.txt"}),
        (("lecture", "data.path=a.txt", "data.name=pydoc"), {"name": "pydoc"}),
        (("data.source=a", "data.target=b"), {"source": "a", "target": "b"}),
        (
            ("multi30k", "data.languages=none", "data.source=a", "data.target=b"),
            {"source": "a", "target": "b"},
        ),
        (("multi30k", "data.path=a.tsv"), {"path": "a.tsv"}),
        (("translate", "data.path=a.tsv", "data.source=a", "data.target=b"), {"source": "a", "target": "b"}),
        (("translate", "data.source=a", "data.target=b", "data.name=dates"), {"name": "dates"}),
        (("translate", "data.source=a", "data.target=b", "data.target=c"), {"source": "a", "target": "c"}),
        (("classify", "data.name=sst2", "data.path=a.tsv"), {"path": "a.tsv"}),
        (("lecture", "data.name=none"), {}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)
def test_each_naming_of_the_data_takes_the_place_of_those_before(
    arguments: tuple[str, ...], expected: dict[str, str]
) -> None:
    assert said(resolve_run(list(arguments), None)) == expected


def test_a_settings_file_stands_between_the_preset_and_the_arguments(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[data]\nsource = "a"\ntarget = "b"\n')

    assert said(resolve_run(["multi30k"], file)) == {"source": "a", "target": "b"}
    assert said(resolve_run(["multi30k", "data.target=c"], file)) == {"source": "a", "target": "c"}
    assert said(resolve_run(["multi30k", "data.path=c.tsv"], file)) == {"path": "c.tsv"}


def test_half_of_two_files_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data: source='a' needs target too"):
        resolve_run(["data.source=a"], None)


# --- what does not go together ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("quick data.name=dates", r"data\.name=dates: its data\.kind is pairs, .* is text; .*preset translate"),
        ("translate data.name=sst2", r"data\.name=sst2: its data\.kind is labelled, .*preset classify or masked"),
        ("masked data.name=dates", r"data\.name=dates: .*preset translate"),
        ("quick model.family=encoder", r"next_token needs model\.family=decoder, .*quick; .*masked or classify"),
        ("train.objective=classification", r"classification needs model\.family=encoder, but this is decoder"),
        ("quick data.kind=pairs", r"next_token needs data\.kind=text, but this is pairs; .*preset translate"),
        ("masked data.kind=pairs", r"masked needs data\.kind=text or labelled, but this is pairs"),
        ("translate train.batch_size=8", r"train\.batch_size: .*sized in tokens; set train\.objective\.batch_tokens"),
        ("translate train.sample_tokens=3", r"train\.sample_tokens: only a language model .*remove it"),
        ("classify train.sample_prompt=a", r"train\.sample_prompt: only a language model .*remove it"),
        ("quick train.sample_tokens=3", r"train\.sample_tokens: has no effect without train\.sample_every"),
        ("classify train.grad_accum_steps=3", r"train\.grad_accum_steps: 3 does not divide train\.batch_size=64"),
        ("quick model.n_classes=3", r"model\.n_classes: only an encoder has this setting; model\.family is decoder"),
        ("quick train.objective.batch_tokens=9", r"unknown key 'train\.objective\.batch_tokens'"),
    ],
    ids=lambda value: value if " " in value and "\\" not in value else "",
)  # fmt: skip
def test_what_does_not_go_together_is_refused_with_the_way_out(arguments: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_run(arguments.split(), None)


def test_a_translation_is_divided_however_many_its_rows() -> None:
    assert resolve_run(["translate", "train.grad_accum_steps=3"], None).train.grad_accum_steps == 3


# --- beginning with an earlier run ------------------------------------------------------------------------


@pytest.fixture
def earlier(tmp_path: Path) -> Callable[..., RunFolder]:
    """The folder of a run with some settings, its weights left out."""

    def earlier(name: str, *arguments: str) -> RunFolder:
        config = resolve_run(list(arguments), None)
        folder = RunFolder(tmp_path / "runs" / name)
        folder.create(config, ByteTokenizerSpec().train(()), "0")
        return folder

    return earlier


def test_an_earlier_run_gives_the_model_and_the_tokens(earlier: Callable[..., RunFolder]) -> None:
    of_its_own = (
        "model.embedding_norm=false",
        "model.n_layers=2",
        "model.d_model=24",
        "model.max_seq_len=31",
    )
    folder = earlier(
        "bert", "masked", *of_its_own, "model.vocab_size=99", "model.dropout=0.3", "tokenizer.vocab_size=99"
    )

    config = resolve_run(["classify", "train.pretrained=bert", "data.name=sst2", "seed=5"], None)

    theirs, own = folder.read_config().model, config.model
    assert own.replace(dropout=theirs.dropout) == theirs
    assert own.dropout == preset("classify").model.dropout  # training's affair, not the weights'
    assert config.tokenizer == folder.read_config().tokenizer
    assert config.train.pretrained == str(folder.path)
    assert (config.data.name, config.seed, config.train.objective.kind) == ("sst2", 5, "classification")
    assert config.train.lr == preset("classify").train.lr


def test_settings_still_win_over_an_earlier_run(earlier: Callable[..., RunFolder], tmp_path: Path) -> None:
    folder = earlier("bert", "masked", "model.d_model=24", "model.n_layers=2")
    file = tmp_path / "mine.toml"
    file.write_text(f"[train]\npretrained = {json.dumps(str(folder.path))}\n[model]\nn_layers = 5\n")

    config = resolve_run(["classify", "model.d_model=36"], file)

    assert (config.model.d_model, config.model.n_layers) == (36, 5)
    assert config.train.pretrained == str(folder.path)


def test_auto_reads_sections_that_are_given_as_a_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{n} birds\n" for n in range(99)))
    (tmp_path / "b.txt").write_text("".join(f"{n} Tiere\n" for n in range(99)))
    pairs = {"source": str(tmp_path / "a.txt"), "target": str(tmp_path / "b.txt"), "val_fraction": 0.5}
    model = ModelConfig(family="encoder-decoder", d_model=48, n_layers=3, max_seq_len=40)
    train = TrainConfig(objective=TranslationObjective(), max_wall_seconds=17)

    with caplog.at_level(logging.INFO):
        run = resolve_settings("auto", [{"data": pairs, "model": model, "train": train}])

    assert (run.model.n_layers, run.data) == (3, PairsData(max_length=39, **pairs))
    assert "auto: 17 s of wall-clock time" in caplog.text
    assert "auto: 3 + 3 layers of width 48, 0.1M parameters: d_model and n_layers as given" in caplog.text


def test_a_misspelt_key_is_refused_before_auto_measures(
    earlier: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[RunConfig] = []
    monkeypatch.setattr(resolving, "auto_for", lambda wanted, said: measured.append(wanted) or wanted)

    with pytest.raises(ConfigError, match=r"unknown key 'model\.dmodel'.*did you mean 'd_model'"):
        resolve_run(["auto", "data.name=pydoc", "model.dmodel=64"], None)
    assert not measured
    earlier("gated", "quick", "model.ffn=swiglu", "model.position=learned")
    begun = ["auto", "data.name=pydoc", "train.pretrained=gated"]
    with pytest.raises(ConfigError, match=r"model\.position\.base"):  # a key of what auto itself would choose
        resolve_run([*begun, "model.position.base=1000"], None)
    assert not measured
    resolve_run([*begun, "model.ffn.d_ff=96"], None)
    assert len(measured) == 1


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("model.d_model=wide", r"model\.d_model takes a whole number"),
        ("train.optimizer.momentum=2", r"train\.optimizer\.momentum takes a number below 1"),
        ("train.schedule=linear", "train.schedule"),
    ],
)
def test_a_value_that_no_choice_could_mend_is_refused_before_auto_measures(
    setting: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[RunConfig] = []
    monkeypatch.setattr(resolving, "auto_for", lambda wanted, said: measured.append(wanted) or wanted)

    with pytest.raises(ConfigError, match=said):
        resolve_run(["auto", "data.name=pydoc", setting], None)
    assert not measured
    resolve_run(["auto", "data.name=pydoc", "model.d_model=96", "model.attention.n_heads=4"], None)
    assert len(measured) == 1


def test_heads_that_fit_the_chosen_width_and_no_typical_one_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seven = ["model.attention.n_heads=7"]
    chosen = resolve_run(["quick", "data.name=pydoc", "model.d_model=140", *seven], None)
    monkeypatch.setattr(resolving, "auto_for", lambda wanted, said: chosen)
    assert resolve_run(["auto", "data.name=pydoc", *seven], None).model == chosen.model


@pytest.mark.usefixtures("data_dir")
def test_what_an_earlier_run_gives_is_not_called_replaced_by_settings(
    earlier: Callable[..., RunFolder], caplog: pytest.LogCaptureFixture
) -> None:
    earlier("bert", "masked", "model.d_model=24", "model.n_layers=2")
    arguments = ["auto", "data.name=trec", "train.pretrained=bert", "train.max_wall_seconds=20"]

    with caplog.at_level(logging.INFO):
        assert resolve_run(arguments, None).model.d_model == 24
        assert "replaced" not in caplog.text
        resolve_run([*arguments, "model.dropout=0.45"], None)

    assert caplog.text.splitlines()[-1].endswith("auto: replaced by your settings: model.dropout=0.45")


@pytest.mark.parametrize(
    ("settings", "is_told"),
    [(["train.optimizer=adamw"], True), (["train.optimizer=adamw", "train.lr=0.001"], False), ([], False)],
)
def test_a_rate_that_was_chosen_for_another_optimizer_is_told(
    settings: list[str], is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    resolve_run(["auto", "data.name=pydoc", "train.max_wall_seconds=20", *settings], None)
    assert ("was chosen for muon, not for adamw: set train.lr too" in caplog.text) == is_told


def test_the_classes_are_not_those_of_the_earlier_run(earlier: Callable[..., RunFolder]) -> None:
    earlier("three", "classify", "model.n_classes=3", "model.pooling=mean")

    model = resolve_run(["classify", "train.pretrained=three"], None).model

    assert (model.n_classes, model.pooling) == (None, "first")


def test_an_earlier_run_of_another_family_is_named(earlier: Callable[..., RunFolder]) -> None:
    folder = earlier("t", "translate")

    with pytest.raises(
        ConfigError,
        match=rf"train\.pretrained={folder.path} is encoder-decoder; begin with the weights of another family",
    ):
        resolve_run(["classify", "train.pretrained=t"], None)


def test_an_earlier_run_that_is_not_there_is_named(earlier: Callable[..., RunFolder]) -> None:
    earlier("bert", "masked")

    with pytest.raises(RunError, match=r"there is no run 'brt'.*did you mean 'bert'"):
        resolve_run(["classify", "train.pretrained=brt"], None)


def test_an_earlier_run_can_be_taken_back(earlier: Callable[..., RunFolder]) -> None:
    earlier("bert", "masked", "model.d_model=24")

    config = resolve_run(["classify", "train.pretrained=bert", f"train.pretrained={NONE}"], None)

    assert config.model == preset("classify").model
    assert config.train.pretrained is None
