"""What a user can get wrong: each ends with one clear line on standard error and the right exit status."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clearformer.cli import main
from clearformer.decoding.fast.int8 import with_int8_weights
from clearformer.evaluation.language_model import evaluate_split
from clearformer.run import load
from clearformer.runs.int8 import WINDOWS
from clearformer.runs.own_data import read_own_data

TINY = [
    "model.d_model=8",
    "model.n_layers=1",
    "model.max_seq_len=8",
    "model.attention.n_heads=2",
    "train.batch_size=2",
    "train.max_steps=2",
    "train.max_seconds=none",
    "train.dtype=float32",
    "train.compile=false",
]
TEXT = "the quick brown fox jumps over the lazy dog\n" * 40
Fails = Callable[..., str]
Trained = Callable[[str], None]


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Fails:
    """Runs a command that must fail; returns its one line."""

    def run(*arguments: str, status: int = 2) -> str:
        capsys.readouterr()
        assert main(list(arguments)) == status
        captured = capsys.readouterr()
        lines = [line for line in captured.err.splitlines() if line.startswith("clearformer: ")]
        assert len(lines) == 1, captured.err
        assert "Traceback" not in captured.err
        return lines[0]

    return run


def train(text: Path, *arguments: str) -> list[str]:
    return ["train", f"data.path={text}", *TINY, *arguments]


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run."""
    home = tmp_path_factory.mktemp("trained")
    (home / "text.txt").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLEARFORMER_RUNS", str(home / "runs"))
        patch.setenv("CLEARFORMER_CACHE", str(home / "cache"))
        assert main(train(home / "text.txt", "--run", "a")) == 0
    return home / "runs" / "a"


@pytest.fixture
def trained(trained_once: Path, tmp_path: Path, text: Path) -> Trained:
    """Makes a trained run of a name, as it would be of this test's own text."""

    def trained(name: str) -> None:
        run = tmp_path / "runs" / name
        shutil.copytree(trained_once, run, symlinks=True)
        config = run / "config.toml"
        config.write_text(config.read_text().replace(str(trained_once.parents[1]), str(tmp_path)))

    return trained


def test_unknown_key_names_the_nearest(fails: Fails, text: Path) -> None:
    line = fails(*train(text, "train.learning_rate=1"))
    assert "train.learning_rate" in line
    line = fails(*train(text, "model.d_modle=8"))
    assert "'model.d_modle'" in line
    assert "d_model" in line.partition("did you mean")[2]


def test_ill_typed_value_names_key_and_type(fails: Fails, text: Path) -> None:
    line = fails(*train(text, "train.lr=fast"))
    assert "train.lr" in line
    assert "number" in line
    assert "'fast'" in line


def test_unknown_kind_lists_the_kinds(fails: Fails, text: Path) -> None:
    line = fails(*train(text, "model.position=rop"))
    assert "model.position.kind" in line
    assert "'rope'" in line


def test_unknown_preset_and_command(fails: Fails) -> None:
    assert "'quick'" in fails("train", "quik")
    assert "'train'" in fails("trian")


def test_missing_file(fails: Fails, tmp_path: Path) -> None:
    assert str(tmp_path / "absent.txt") in fails(*train(tmp_path / "absent.txt"))


def test_missing_config_file(fails: Fails, text: Path, tmp_path: Path) -> None:
    assert "absent.toml" in fails(*train(text, "--config", str(tmp_path / "absent.toml")))


def test_broken_toml_gives_the_line(fails: Fails, text: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[train]\nlr = \n")
    line = fails(*train(text, "--config", str(broken)))
    assert "broken.toml" in line
    assert "line 2" in line


def test_empty_file(fails: Fails, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.touch()
    assert str(empty) in fails(*train(empty))


def test_binary_file(fails: Fails, tmp_path: Path) -> None:
    binary = tmp_path / "picture.png"
    binary.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" * 50)
    assert "picture.png" in fails(*train(binary))


def test_invalid_utf8_names_the_line(fails: Fails, tmp_path: Path) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"first\nsecond\ncaf\xe9\n" * 30)
    assert "line 3" in fails(*train(latin))


def test_text_shorter_than_the_context(fails: Fails, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("abcdefghij" * 2)
    line = fails(*train(short, "model.max_seq_len=64"))
    assert "model.max_seq_len" in line


def test_heads_that_do_not_divide(fails: Fails, text: Path) -> None:
    line = fails(*train(text, "model.attention.n_heads=3"))
    assert "model.attention.n_heads" in line
    assert "model.d_model=8" in line


def test_vocabulary_that_does_not_fit(fails: Fails, text: Path) -> None:
    line = fails(*train(text, "model.vocab_size=5"))
    assert "model.vocab_size" in line
    assert "28" in line  # 26 letters, space, newline


def test_a_failed_start_leaves_no_run(fails: Fails, text: Path, tmp_path: Path) -> None:
    fails(*train(text, "model.vocab_size=5", "--run", "a"))
    assert not (tmp_path / "runs" / "a").exists()


def test_run_that_exists_is_left_alone(fails: Fails, text: Path, trained: Trained, tmp_path: Path) -> None:
    trained("a")
    before = {p: p.read_bytes() for p in (tmp_path / "runs").rglob("*") if p.is_file()}
    line = fails(*train(text, "--run", "a"))
    assert "--resume" in line
    assert {p: p.read_bytes() for p in (tmp_path / "runs").rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("name", ["../outside", "a/b", "", ".hidden", "-x"])
def test_run_name_that_is_a_path(fails: Fails, text: Path, tmp_path: Path, name: str) -> None:
    assert "--run" in fails(*train(text, f"--run={name}"))
    assert not (tmp_path / "outside").exists()


def test_unknown_run_names_the_nearest(fails: Fails, trained: Trained) -> None:
    trained("winter")
    assert "'winter'" in fails("eval", "wintre")
    assert "'winter'" in fails("generate", "wintre")


def test_damaged_checkpoint_is_named(fails: Fails, trained: Trained, tmp_path: Path) -> None:
    trained("a")
    weights = tmp_path / "runs/a/checkpoints/step-00000002/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    for command in (["eval", "a"], ["generate", "a"], ["train", "--run", "a", "--resume"]):
        line = fails(*command, status=1)
        assert "model.safetensors" in line
        assert "damaged" in line


def test_missing_checkpoint_names_those_there_are(fails: Fails, trained: Trained) -> None:
    trained("a")
    line = fails("eval", "a", "--checkpoint", "7")
    assert "'7'" in line
    assert "2" in line


def test_resume_needs_a_run_and_keeps_it(fails: Fails, trained: Trained) -> None:
    assert "--run" in fails("train", "--resume")
    trained("a")
    line = fails("train", "--run", "a", "--resume", "train.lr=1")
    assert "train.lr" in line
    assert "train.max_steps" in line


def test_resume_on_a_changed_text(fails: Fails, text: Path, trained: Trained) -> None:
    trained("a")
    text.write_text("the lazy dog jumps over the quick brown fox\n" * 40)
    line = fails("train", "--run", "a", "--resume", "train.max_steps=4")
    assert "config.toml" in line


def test_prompt_outside_the_vocabulary(fails: Fails, trained: Trained) -> None:
    trained("a")
    line = fails("generate", "a", "--prompt", "fox €")
    assert "€" in line
    assert "U+20AC" in line


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--top-p", "1.5"), ("--min-p", "-1"), ("--temperature", "1e-9"), ("--temperature", "inf")),
        *(("--repetition-penalty", value) for value in ("0", "1e-300", "1e300", "nan")),
        *(
            ("--beams", "100000000"),
            ("--num", "100001"),
            ("--max-new-tokens", "9" * 30),
            ("--top-k", "9" * 30),
        ),
        *(("--prompt", "caf\udce9"), ("--stop", "\udce9"), ("--stop", ""), ("--checkpoint", "9" * 5000)),
    ],
)
def test_sampling_out_of_range(fails: Fails, trained: Trained, option: str, value: str) -> None:
    trained("a")
    assert fails("generate", "a", f"{option}={value}").startswith(f"clearformer: {option}")


@pytest.mark.parametrize("arguments", ["--prompt €", "--top-p 2", "--temperature 1e-300", r"--prompt fox\n"])
def test_what_is_refused_is_not_shown_before(
    fails: Fails, trained: Trained, capsys: pytest.CaptureFixture[str], arguments: str
) -> None:
    trained("a")
    capsys.readouterr()
    assert main(["generate", "a", *arguments.split()]) == 2
    assert capsys.readouterr().out == ""


def test_a_new_line_that_is_none_is_told(
    fails: Fails, text: Path, trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    trained("a")
    assert r"for a newline, type --prompt $'fox\n' in bash" in fails("generate", "a", "--prompt", r"fox\n")
    text.write_text(text.read_text() + "\\\n")
    assert main(train(text, "--run", "b")) == 0
    capsys.readouterr()
    assert main(["generate", "b", "--prompt", "fox", "--stop", r"\n", "--max-new-tokens", "1"]) == 0
    assert (
        r"note: --stop: contains a backslash and an n; for a newline, type --stop $'\n'"
        in capsys.readouterr().err
    )
    assert main(["generate", "b", "--prompt", r"fox\n", "--max-new-tokens", "1"]) == 0
    assert r"$'fox\n'" in capsys.readouterr().err


def test_without_a_prompt_a_text_begins_with_a_newline_if_there_is_one(
    fails: Fails, text: Path, trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    trained("a")
    printed = []
    for prompt in ([], ["--prompt", "\n"]):
        capsys.readouterr()
        assert main(["generate", "a", *prompt, "--max-new-tokens", "3", "--json"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    text.write_text("one line " * 40)
    for name, more in (("b", []), ("c", ["tokenizer.bos=true"])):
        assert main(train(text, "--run", name, "train.max_steps=1", *more)) == 0
    assert "the prompt is empty, and this tokenizer has neither <bos> nor a newline" in fails("generate", "b")
    capsys.readouterr()
    assert main(["generate", "c", "--max-new-tokens", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == ""


def test_a_run_that_cannot_be_read_hides_no_other(
    text: Path, trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained("good")
    runs = tmp_path / "runs"
    config = (runs / "good" / "config.toml").read_text()
    broken = {
        "key": config.replace("[train]", "[train]\nspeed = 3"),
        "kind": config.replace('kind = "text"', 'kind = "film"'),
        "toml": "seed = \n",
    }
    for name, content in broken.items():
        (runs / name).mkdir()
        (runs / name / "config.toml").write_text(content)
    (runs / "metrics").mkdir()
    (runs / "metrics" / "config.toml").write_text(config)
    (runs / "metrics" / "metrics.jsonl").write_text('{"step": 1, "seconds": "long"}\n')
    shutil.copytree(runs / "metrics", runs / "null")
    (runs / "null" / "metrics.jsonl").write_text('{"step": 1, "seconds": null, "loss": null}\n')
    capsys.readouterr()
    assert main(["runs"]) == 0
    out = capsys.readouterr().out
    assert "good" in out
    told = {"key": "speed", "kind": "film", "toml": "line 1", "metrics": "seconds", "null": "seconds"}
    for name, why in told.items():
        [line] = [line for line in out.splitlines() if line.startswith(f"{name} cannot be read: ")]
        assert why in line
    assert main(["runs", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["runs"]}
    assert rows["good"]["error"] is None
    assert "speed" in rows["key"]["error"]


def test_context_and_stride_out_of_range(fails: Fails, trained: Trained) -> None:
    trained("a")
    assert "clearformer: --context: from 1 to 8" in fails("eval", "a", "--context", "9")
    assert "clearformer: --stride: from 1 to" in fails("eval", "a", "--context", "4", "--stride", "5")
    assert "--split" in fails("eval", "a", "--split", "test")


def test_json_stays_alone_on_standard_output(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    trained("a")
    for command in (
        ["eval", "a", "--json"],
        ["generate", "a", "--json", "--max-new-tokens", "3"],
        ["runs", "--json"],
    ):
        capsys.readouterr()
        assert main(command) == 0
        assert isinstance(json.loads(capsys.readouterr().out), dict)


def test_what_int8_weights_cost_is_told_beside_the_text(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    trained("a")
    assert main(["generate", "a", "--json", "--max-new-tokens", "3", "--int8"]) == 0

    told = capsys.readouterr()
    assert len(json.loads(told.out)["samples"][0]["tokens"]) == 3
    words = r"int8 weights: \d\.\d MB instead of \d\.\d; held-out loss \d\.\d{4} nats per token, without "
    assert re.search(words + r"int8 \d\.\d{4} \(sample of [\d,]+ tokens\)", told.err)
    run = load("a")
    losses = run.int8_losses()
    val: Any = read_own_data(run).prepared.splits["val"]
    int8: Any = with_int8_weights(run.model)
    own = evaluate_split(int8, val, n_windows=WINDOWS)
    assert losses.int8_loss == pytest.approx(own.loss, abs=1e-9)
    assert losses.int8_loss == pytest.approx(losses.loss, rel=0.01)
    assert losses.int8_loss != losses.loss
    assert losses.in_words() in told.err


def test_debug_shows_the_traceback_and_then_the_line(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*train(text, "train.lr=fast"), "--debug"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1] == "clearformer: train.lr takes a number; got 'fast'"


def test_a_text_of_one_line_is_trained_and_sampled_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one_line = tmp_path / "line.txt"
    one_line.write_text("to be or not to be " * 100)
    assert main(train(one_line, "--run", "a")) == 0
    assert "Next:" in capsys.readouterr().out


# --- pairs ------------------------------------------------------------------------------------------------

TINY_OTHERS = [setting for setting in TINY if not setting.startswith("train.batch_size")]


def written(folder: Path, **files: str | bytes) -> Path:
    """Some files in a folder, `a_fr` as a.fr."""
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        (folder / name.replace("_", ".")).write_bytes(data)
    return folder


@pytest.fixture
def fails_to_begin(fails: Fails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fails:
    """Runs a training that must fail before it begins; returns its one line. No run is left behind."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        line = fails("train", *TINY_OTHERS, *arguments)
        assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())
        return line

    return run


def lines(n: int, text: str = "line") -> str:
    return "".join(f"{text} {i}\n" for i in range(n))


def test_files_of_unequal_length_name_both_counts(fails_to_begin: Fails, tmp_path: Path) -> None:
    written(tmp_path, a_fr=lines(31), a_en=lines(29))
    line = fails_to_begin("data.source=a.fr", "data.target=a.en")
    assert "a.fr has 31 lines" in line
    assert "a.en has 29" in line


def test_an_empty_side_is_named(fails_to_begin: Fails, tmp_path: Path) -> None:
    written(tmp_path, a_fr="", a_en=lines(29), b_en="\n" * 29, c_en=lines(3) + "\n" + lines(25))
    assert "a.fr: there is no text in it, and a pair needs both sides" in fails_to_begin(
        "data.source=a.fr", "data.target=a.en"
    )
    assert "b.en: there is no text in it, and a pair needs both sides" in fails_to_begin(
        "data.source=a.en", "data.target=b.en"
    )
    assert "c.en, line 4: an empty line" in fails_to_begin("data.source=a.en", "data.target=c.en")
    written(tmp_path, a_tsv="a\tb\n" * 3 + "a\t \n")
    assert "a.tsv, line 4: the target is empty" in fails_to_begin("data.path=a.tsv")


def test_a_side_that_is_missing_is_asked_for(fails_to_begin: Fails, tmp_path: Path) -> None:
    written(tmp_path, a_fr=lines(9))
    assert "needs target too" in fails_to_begin("data.source=a.fr")
    assert "a.en: there is no such file" in fails_to_begin("data.source=a.fr", "data.target=a.en")


def test_invalid_utf8_in_a_side_names_file_and_line(fails_to_begin: Fails, tmp_path: Path) -> None:
    written(tmp_path, a_fr=lines(9), a_en=lines(5).encode() + b"caf\xe9\n" + lines(3).encode())
    line = fails_to_begin("data.source=a.fr", "data.target=a.en")
    assert "a.en" in line
    assert "line 6" in line


def test_a_text_that_is_no_pairs_is_told_what_pairs_are(fails_to_begin: Fails, text: Path) -> None:
    line = fails_to_begin("translate", f"data.path={text}")
    assert "line 1" in line
    assert "source<TAB>target" in line


def test_a_sentence_longer_than_the_positions_names_line_and_setting(
    fails_to_begin: Fails, tmp_path: Path
) -> None:
    long = lines(20, "a") + "a very long sentence\n"
    written(tmp_path, a_fr=lines(20, "a") + "b\n", a_en=long)
    line = fails_to_begin("data.source=a.fr", "data.target=a.en", "data.val_fraction=0", "tokenizer=char")
    assert "line 21: the target has 20 tokens" in line
    assert "model.max_seq_len=21" in line


# --- labelled texts ---------------------------------------------------------------------------------------


def test_a_label_unseen_in_training_names_line_and_label(fails_to_begin: Fails, tmp_path: Path) -> None:
    written(tmp_path, a_tsv="text\tlabel\na\tx\nb\ty\n", b_tsv="text\tlabel\na\tx\nb\tz\n")
    line = fails_to_begin("classify", "data.path=a.tsv", "data.val_path=b.tsv", "train.batch_size=2")
    assert "b.tsv, line 3: the label 'z' is not in training" in line
    assert "'x', 'y'" in line


def test_labelled_files_that_cannot_be_used(fails_to_begin: Fails, tmp_path: Path) -> None:
    rows = "text\tlabel\n" + "a\tx\nb\ty\n" * 5
    written(
        tmp_path,
        a_tsv=rows + "c\t\n",
        b_tsv=rows.encode() + b"caf\xe9\tx\n",
        c_tsv="a\tx\nb\ty\n",
        d_txt=rows,
    )
    written(tmp_path, e_tsv=rows + "a b c d e f g h i\tx\n", f_tsv="text\tlabel\na\tx\nb\tx\n")
    tiny = ("classify", "train.batch_size=2", "tokenizer=byte")
    assert "a.tsv, line 12: 'label' is empty" in fails_to_begin(*tiny, "data.path=a.tsv")
    assert "line 12" in fails_to_begin(*tiny, "data.path=b.tsv")
    assert "c.tsv: no column 'text'" in fails_to_begin(*tiny, "data.path=c.tsv")
    assert ".tsv, .csv, .jsonl" in fails_to_begin(*tiny, "data.path=d.txt")
    line = fails_to_begin(*tiny, "data.path=e.tsv", "data.val_fraction=0")
    assert "e.tsv, line 12: 19 tokens with [CLS] and [SEP]" in line
    assert "model.max_seq_len=19" in line
    assert "every training text has the label 'x'" in fails_to_begin(
        *tiny, "data.path=f.tsv", "data.val_fraction=0"
    )


# --- what does not go together ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("quick data.name=dates", "preset translate"),
        ("classify data.name=pydoc", "preset quick or masked"),
        ("model.family=encoder", "preset masked or classify"),
        ("translate train.batch_size=8", "train.objective.batch_tokens"),
        ("data.name=dtes", "did you mean 'dates'"),
        ("classify train.pretrained=bert", "there is no run 'bert'"),
    ],
)
def test_what_does_not_go_together_names_the_way_out(
    fails_to_begin: Fails, arguments: str, named: str
) -> None:
    assert named in fails_to_begin(*arguments.split())


def test_int8_of_a_run_whose_data_changed_advises_what_generate_can_do(
    text: Path, trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    trained("a")
    text.write_text(TEXT[:-100])
    assert main(["generate", "a", "--max-new-tokens", "3", "--int8"]) == 0
    told = capsys.readouterr().err
    assert "int8 weights: loss not measured: " in told
    assert told.endswith(", so held-out text may be training text: restore the data\n")
