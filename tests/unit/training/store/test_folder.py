import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clearformer.config import LARGEST_FILE
from clearformer.data import LabelledData
from clearformer.errors import ConfigError, DataError, DiskError, RunError
from clearformer.presets import preset
from clearformer.text import CharTokenizerSpec, Tokenizer
from clearformer.text.kinds.imported import ImportedTokenizer, config_path
from clearformer.training.config import RunConfig
from clearformer.training.store.folder import Metrics, RunFolder, read_metrics

SHA256 = "0" * 64


@pytest.fixture
def tokenizer() -> Tokenizer:
    return CharTokenizerSpec().train(["abc\n"])


@pytest.fixture
def folder(tmp_path: Path, configure: Callable[..., RunConfig], tokenizer: Tokenizer) -> RunFolder:
    """A run that has begun."""
    folder = RunFolder(tmp_path / "runs" / "a")
    folder.create(configure(), tokenizer, SHA256)
    return folder


def test_a_folder_reads_back_what_it_was_begun_with(
    folder: RunFolder, configure: Callable[..., RunConfig], tokenizer: Tokenizer
) -> None:
    assert folder.read_config() == configure()
    assert folder.read_tokenizer().to_json() == tokenizer.to_json()


def test_a_classifier_of_very_many_labels_is_read_back(tmp_path: Path, tokenizer: Tokenizer) -> None:
    labels = tuple(f"category number {n:06}" for n in range(45_000))
    config = preset("classify").replace(data=LabelledData(path="texts.tsv", labels=labels))
    folder = RunFolder(tmp_path / "runs" / "a")
    folder.create(config, tokenizer, SHA256)
    assert folder.config_file.stat().st_size > LARGEST_FILE
    assert folder.read_config() == config


@pytest.mark.parametrize("change", ['"a"', "", "{", "{}"])
def test_a_tokenizer_that_was_replaced_is_refused(folder: RunFolder, change: str) -> None:
    """By that of another run with as many tokens, or by a file that was damaged."""
    file, own = folder.tokenizer_file, folder.tokenizer_file.read_text()
    file.write_text(own.replace('"a"', '"b"', 1) if change == '"a"' else change)
    with pytest.raises(
        RunError, match=r"tokenizer\.json: changed since the run began .*; restore the one of this"
    ):
        folder.read_tokenizer()

    file.write_text(own)
    assert folder.read_tokenizer().to_json() == own


def test_the_names_of_special_tokens_belong_to_the_run(tmp_path: Path) -> None:
    """Those of a tokenizer from elsewhere; without them <bos> would stand before every prompt, say."""
    document = json.loads(CharTokenizerSpec(bos=True, eos=True).train(["ab"]).to_json())
    folder = RunFolder(tmp_path / "run")
    folder.create(RunConfig(), ImportedTokenizer(document, {"eos": "<eos>"}), "of the text")
    assert folder.read_tokenizer().bos_id is None
    roles = config_path(folder.tokenizer_file)
    kept = roles.read_text()

    for change, said in ((kept.replace("<eos>", "<bos>"), "changed since the run began"), (None, "missing")):
        roles.unlink() if change is None else roles.write_text(change)
        with pytest.raises(
            RunError, match=rf"tokenizer_config\.json: {said} .*; restore the one of this run"
        ):
            folder.read_tokenizer()

    roles.write_text(kept)
    assert folder.read_tokenizer().eos_id is not None


def test_an_older_run_s_tokenizer_is_read_as_it_is(folder: RunFolder, tokenizer: Tokenizer) -> None:
    """Its env.json does not say what it began with."""
    env = json.loads(folder.env_file.read_text())
    del env["tokenizer_sha256"]
    folder.env_file.write_text(json.dumps(env))
    folder.tokenizer_file.write_text(folder.tokenizer_file.read_text() + "\n")
    assert folder.read_tokenizer().to_json() == tokenizer.to_json()
    with pytest.raises(RunError, match="this is another run's file"):
        folder.read_tokenizer(tokenizer.vocab_size - 1)


def test_the_configuration_is_complete(folder: RunFolder) -> None:
    """Defaults included: what they are may change in a later version."""
    text = folder.config_file.read_text()

    assert "label_smoothing = 0.0" in text
    assert "[model.attention]" in text
    assert 'max_seconds = "none"' in text


def test_env_says_what_a_result_depends_on(folder: RunFolder) -> None:
    env = json.loads(folder.env_file.read_text())

    assert env["versions"]["torch"]
    assert env["command"][1:] == sys.argv[1:]
    assert env["threads"] == 1
    assert env["text_sha256"] == SHA256
    assert {"created", "python", "platform", "processor", "cpus", "gpus"} <= env.keys()


def test_a_run_is_not_begun_over_another(
    folder: RunFolder, configure: Callable[..., RunConfig], tokenizer: Tokenizer
) -> None:
    with pytest.raises(RunError, match="holds a run"):
        folder.create(configure("seed=2"), tokenizer, SHA256)
    assert folder.read_config().seed == 1


def test_a_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, configure: Callable[..., RunConfig], tokenizer: Tokenizer
) -> None:
    (tmp_path / "runs").write_text("a file")

    with pytest.raises(DiskError, match="runs/a: cannot be written"):
        RunFolder(tmp_path / "runs" / "a").create(configure(), tokenizer, SHA256)


def test_a_folder_without_a_configuration_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no config\.toml"):
        RunFolder(tmp_path).read_config()


def test_a_configuration_that_was_changed_by_hand_is_checked(folder: RunFolder) -> None:
    text = folder.config_file.read_text()
    folder.config_file.write_text(text.replace("batch_size = 4", 'batch_size = "many"'))

    with pytest.raises(ConfigError, match=r"runs/a/config\.toml: train\.batch_size"):
        folder.read_config()


def test_the_most_processes_that_trained_a_run_are_recorded(folder: RunFolder) -> None:
    before = json.loads(folder.env_file.read_text())
    for count, recorded in ((1, 1), (3, 3), (2, 3)):
        folder.record_processes(count)
        assert folder.n_processes() == recorded
    assert json.loads(folder.env_file.read_text()) == before | {"processes": 3}

    for damaged in ("[", "[]"):
        folder.env_file.write_text(damaged)
        folder.record_processes(4)
        assert folder.env_file.read_text() == damaged


def test_a_configuration_of_another_version_names_the_version(folder: RunFolder) -> None:
    folder.config_file.write_text("future = 1\n" + folder.config_file.read_text())
    with pytest.raises(ConfigError) as own:
        folder.read_config()
    assert "wrote the run" not in str(own.value)

    env = json.loads(folder.env_file.read_text())
    env["versions"]["clearformer"] = "99.0"
    folder.env_file.write_text(json.dumps(env))
    with pytest.raises(
        ConfigError, match=r"unknown key 'future'.* \(clearformer 99\.0 wrote the run, and this is"
    ):
        folder.read_config()


@pytest.mark.parametrize(
    ("first_lost", "absent"),
    [("seed =", "seed and no model and no data"), ("[data]", "data and no tokenizer and no train")],
)
def test_a_configuration_that_was_cut_off_is_damaged(folder: RunFolder, first_lost: str, absent: str) -> None:
    """It would be read as a run with default settings, which is another one."""
    whole = folder.config_file.read_text()
    folder.config_file.write_text(whole[: whole.index(first_lost)])

    with pytest.raises(ConfigError, match=rf"runs/a/config\.toml: damaged: it has no {absent}"):
        folder.read_config()


def test_beginning_that_fails_leaves_nothing_behind(
    tmp_path: Path,
    configure: Callable[..., RunConfig],
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = RunFolder(tmp_path / "runs" / "a")
    monkeypatch.setattr(folder, "write_config", lambda config: (_ for _ in ()).throw(DiskError("no space")))

    with pytest.raises(DiskError, match="no space"):
        folder.create(configure(), tokenizer, SHA256)
    assert list(folder.path.iterdir()) == []


def test_an_error_after_config_toml_is_there_leaves_a_whole_run(
    tmp_path: Path,
    configure: Callable[..., RunConfig],
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as an interrupt while the folder is synced: without its tokenizer the run could never be resumed."""
    folder = RunFolder(tmp_path / "runs" / "a")
    write = folder.write_config

    def interrupted(config: RunConfig) -> None:
        write(config)
        raise KeyboardInterrupt

    monkeypatch.setattr(folder, "write_config", interrupted)
    with pytest.raises(KeyboardInterrupt):
        folder.create(configure(), tokenizer, SHA256)
    assert RunFolder(folder.path).read_tokenizer().to_json() == tokenizer.to_json()
    assert RunFolder(folder.path).read_config() == configure()


def test_another_text_is_refused(folder: RunFolder) -> None:
    folder.check_same_data(SHA256)

    with pytest.raises(DataError, match=r"data\.path=.*/text\.txt had SHA-256 0{12} and now has 1{12}"):
        folder.check_same_data("1" * 64)


def test_the_difference_of_a_text_is_told_and_none_is_none(folder: RunFolder) -> None:
    assert folder.trained_on() == SHA256
    assert folder.difference_of_text(SHA256) is None
    difference = folder.difference_of_text("1" * 64)
    assert difference is not None
    assert str(folder.config_file) in difference


def test_an_imported_run_was_trained_on_nothing_that_is_known(folder: RunFolder) -> None:
    folder.env_file.write_text('{"text_sha256": ""}')
    for compare in (folder.trained_on, lambda: folder.check_same_data(SHA256)):
        with pytest.raises(RunError, match="its training data are unknown"):
            compare()


@pytest.mark.parametrize("content", [None, "", "[]", "{}"])
def test_an_env_that_does_not_tell_the_text_is_named_with_the_way_out(
    folder: RunFolder, content: str | None
) -> None:
    folder.env_file.unlink()
    if content is not None:
        folder.env_file.write_text(content)

    with pytest.raises(RunError, match=r"env\.json: missing or damaged") as caught:
        folder.check_same_data(SHA256)
    _, _, rest = str(caught.value).partition("write ")
    folder.env_file.write_text(rest.partition(" into it")[0])
    folder.check_same_data(SHA256)  # as it was told


# --- metrics.jsonl ----------------------------------------------------------------------------------------


@pytest.fixture
def metrics_file(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_lines_are_added_one_by_one(metrics_file: Path) -> None:
    metrics = Metrics(metrics_file, up_to_step=0)
    for step in (1, 2):
        metrics.append({"step": step, "loss": step / 3})
        metrics.sync()
        assert read_metrics(metrics_file) == [{"step": s, "loss": s / 3} for s in range(1, step + 1)]


def test_without_a_file_there_are_no_lines(metrics_file: Path) -> None:
    assert read_metrics(metrics_file) == []


def test_opening_leaves_out_what_comes_after_the_checkpoint_and_a_cut_line(metrics_file: Path) -> None:
    metrics_file.write_text('{"step": 3}\n{"step": 5}\n{"step": 7}\n{"step": 9, "lo')

    Metrics(metrics_file, up_to_step=5).append({"step": 6})

    assert metrics_file.read_text() == '{"step": 3}\n{"step": 5}\n{"step": 6}\n'


@pytest.mark.parametrize("line", ["", "{", "[]", "3", '{"loss": 1}', '{"step": null}', "\0\0"])
def test_a_line_that_was_spoilt_is_named(metrics_file: Path, line: str) -> None:
    metrics_file.write_text('{"step": 3}\n' + line + "\n")

    with pytest.raises(RunError, match=r"metrics\.jsonl: line 2"):
        read_metrics(metrics_file)


def test_a_number_that_is_none_never_gets_in(metrics_file: Path) -> None:
    metrics = Metrics(metrics_file, up_to_step=0)

    with pytest.raises(ValueError, match="JSON"):
        metrics.append({"step": 1, "loss": float("nan")})
    assert metrics_file.read_bytes() == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_one_line(metrics_file: Path) -> None:
    metrics = Metrics(metrics_file, up_to_step=0)
    metrics_file.unlink()
    metrics_file.symlink_to("/dev/full")

    with pytest.raises(DiskError, match=r"metrics\.jsonl: cannot be written: No space left"):
        metrics.append({"step": 1})


def test_a_file_is_no_folder_that_a_run_left_over(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")

    assert RunFolder(tmp_path / "a").is_left_over() is False


def test_what_a_run_left_over_before_it_began_is_known_by_its_names(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    folder = RunFolder(tmp_path / "a")
    folder.checkpoints.mkdir(parents=True)
    assert folder.is_left_over()  # no checkpoint is in it
    tokenizer.save(folder.tokenizer_file)
    (folder.path / "tokenizer_config.json").write_text("{}")  # beside an imported tokenizer
    (folder.path / ".lock").write_bytes(b"")
    assert folder.is_left_over()

    (folder.checkpoints / "step-00000001").mkdir()
    assert not folder.is_left_over()
    (folder.checkpoints / "step-00000001").rmdir()
    (folder.path / "notes.txt").write_text("mine")
    assert not folder.is_left_over()


def test_an_empty_folder_may_become_a_run(tmp_path: Path) -> None:
    """A run that is killed before it locks its folder leaves such a one."""
    assert RunFolder(tmp_path).is_left_over() is True


@pytest.mark.parametrize("preset", ["quick", None])
def test_the_preset_and_the_command_are_those_it_began_with(
    tmp_path: Path,
    configure: Callable[..., RunConfig],
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    preset: str | None,
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/clearformer", "train", "quick"])
    folder = RunFolder(tmp_path / "a")
    folder.create(configure(), tokenizer, SHA256, preset)

    assert folder.preset() == preset
    assert folder.command() == ["clearformer", "train", "quick"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"preset": 3, "command": 3, "text_sha256": 3}'])
def test_an_env_that_tells_nothing_is_none(folder: RunFolder, content: str) -> None:
    folder.env_file.write_text(content)

    assert folder.preset() is None
    assert folder.command() == []
    assert folder.trained_on() is None
    with pytest.raises(RunError, match=f'env.json: missing or damaged.*"text_sha256": "{SHA256}"'):
        folder.check_same_data(SHA256)


def test_a_folder_deleted_since_is_named_and_not_what_it_lacks(folder: RunFolder) -> None:
    shutil.rmtree(folder.path)
    with pytest.raises(RunError, match=r"is not a run folder: it has no config\.toml$"):
        folder.check_same_data(SHA256)
