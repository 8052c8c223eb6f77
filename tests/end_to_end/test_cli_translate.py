"""`clearformer translate`, and beam search by `clearformer generate`, as they are typed."""

import gzip
import io
import json
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest
import torch

from clearformer.cli import main
from clearformer.config import resolve
from clearformer.decoding import generate, search, translate
from clearformer.decoding.text import translations
from clearformer.model import build
from clearformer.run import load
from clearformer.text import CharTokenizerSpec
from clearformer.training.config import RunConfig
from clearformer.training.store.checkpoint import Checkpoint, Progress, save_checkpoint
from clearformer.training.store.folder import RunFolder
from clearformer.training.store.state import weights_of

M = 23
LINES = ["abc", "", "fed cba", "g", "abc"]
Says = Callable[..., tuple[str, str]]
Fails = Callable[..., str]


def make_run(folder: Path, family: str, objective: str, kind: str) -> None:
    """A run with three checkpoints of random weights."""
    tokenizer = CharTokenizerSpec(bos=True, eos=True).train(["abcdefg "])
    config = resolve(
        RunConfig,
        {
            "model": {
                "family": family,
                "vocab_size": tokenizer.vocab_size,
                "d_model": 14,
                "n_layers": 1,
                "max_seq_len": M,
                "tie_embeddings": False,
                "init": {"kind": "gaussian"},
                "attention": {"kind": "multihead", "n_heads": 2},
            },
            "data": {"kind": kind},
            "train": {"objective": {"kind": objective}, "dtype": "float32", "max_steps": 3},
        },
    )
    run = RunFolder(folder)
    run.create(config, tokenizer, "0" * 64)
    for step in (1, 2, 3):
        torch.manual_seed(step)
        weights = weights_of(build(config.model))
        save_checkpoint(run.checkpoints, Checkpoint(Progress(step=step), weights, {}))


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    make_run(tmp_path / "runs" / "pairs", "encoder-decoder", "translation", "pairs")
    make_run(tmp_path / "runs" / "text", "decoder", "next_token", "text")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Says:
    """Runs a command that must succeed; returns what it prints, on standard output and standard error."""

    def run(*arguments: str | Path) -> tuple[str, str]:
        capsys.readouterr()
        assert main([*map(str, arguments)]) == 0
        captured = capsys.readouterr()
        return captured.out, captured.err

    return run


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Fails:
    """Runs a command that must fail; returns its one line."""

    def run(*arguments: str | Path) -> str:
        capsys.readouterr()
        assert main([*map(str, arguments)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        [line] = captured.err.splitlines()
        assert line.startswith("clearformer: ")
        return line

    return run


# --- lines out for lines in -------------------------------------------------------------------------------


def test_one_line_comes_out_for_one_line_in(says: Says, file: Path) -> None:
    expected = [found[0].text for found in translate(load("pairs"), LINES, beams=3)]

    out, _ = says("translate", "pairs", file, "--beams", "3")

    assert out.split("\n") == [*expected, ""]
    assert expected[1] == ""
    assert expected[0] == expected[4]
    assert len(set(expected)) > 2


def test_standard_input_is_read_as_a_file_is(
    says: Says, file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, _ = says("translate", "pairs", file)
    packed = tmp_path / "in.txt.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert says("translate", "pairs", packed)[0] == out

    for arguments in ([], ["-"]):
        stdin = io.TextIOWrapper(io.BytesIO(file.read_bytes().replace(b"\n", b"\r\n")))
        monkeypatch.setattr(sys, "stdin", stdin)
        assert says("translate", "pairs", *arguments)[0] == out


def test_nothing_in_is_nothing_out(says: Says, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("")

    assert says("translate", "pairs", empty) == ("", "")


def test_several_translations_say_which_line_they_are_of(says: Says, file: Path) -> None:
    expected = translate(load("pairs"), LINES, beams=3, n_best=2)

    out, _ = says("translate", "pairs", file, "--beams", "3", "--n-best", "2")

    rows = [line.split("\t") for line in out.removesuffix("\n").split("\n")]
    assert [(int(n), int(rank)) for n, rank, *_ in rows] == [
        (n, rank) for n, found in enumerate(expected, 1) for rank in range(1, len(found) + 1)
    ]
    assert [text for *_, text in rows] == [t.text for found in expected for t in found]
    assert float(rows[0][2]) == pytest.approx(expected[0][0].score, abs=1e-4)


def test_the_lines_of_a_long_file_come_as_soon_as_they_are_translated(
    says: Says, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["translate", "pairs", str(file), "--n-best", "2", "--batch-tokens", "4"]
    whole, _ = says(*arguments)
    monkeypatch.setattr(translations, "BATCHES_IN_GROUP", 1)  # with <eos> the first line alone
    assert says(*arguments)[0] == whole

    batches = iter([translations.beam_search])  # of the first group alone
    monkeypatch.setattr(
        translations, "beam_search", lambda *arguments, **options: next(batches)(*arguments, **options)
    )
    assert main(arguments) == 1
    assert capsys.readouterr().out == "".join(
        line for line in whole.splitlines(keepends=True) if line[0] == "1"
    )


def test_settings_are_those_of_translate(says: Says, file: Path) -> None:
    options = ["--beams", "2", "--length-penalty", "2.5", "--length-penalty-kind", "gnmt", "--early-stopping"]
    expected = translate(
        load("pairs", "2"),
        LINES,
        beams=2,
        length_penalty=2.5,
        length_penalty_kind="gnmt",
        early_stopping="never",
        max_new_tokens=5,
    )

    out, _ = says(
        *("translate", "pairs", file, *options, "never", "--max-new-tokens", "5", "--batch-tokens", "9"),
        *("--checkpoint", "2", "--json"),
    )

    found = json.loads(out)
    assert [[t["tokens"] for t in line] for line in found["lines"]] == [
        [t.tokens for t in f] for f in expected
    ]
    assert [line[0]["score"] for line in found["lines"]] == pytest.approx([f[0].score for f in expected])
    assert (found["step"], found["length_penalty"], found["early_stopping"]) == (2, 2.5, "never")
    assert found["scores"] is None


def test_checkpoints_are_averaged(says: Says, file: Path) -> None:
    expected = [found[0].text for found in translate(load("pairs", average=2), LINES, beams=1)]

    out, _ = says("translate", "pairs", file, "--beams", "1", "--average", "2")

    assert out.split("\n") == [*expected, ""]
    assert out != says("translate", "pairs", file, "--beams", "1")[0]


def test_checkpoints_are_averaged_to_generate_too(says: Says) -> None:
    options = ["--prompt", "abc", "--max-new-tokens", "9", "--temperature", "0"]
    [expected] = generate(load("text", average=2), "abc", max_new_tokens=9, temperature=0)

    out, _ = says("generate", "text", *options, "--average", "2")

    assert out == f"abc{expected.text}\n"
    assert out != says("generate", "text", *options)[0]


def test_with_references_scores_and_signatures_are_on_standard_error(
    says: Says, file: Path, tmp_path: Path
) -> None:
    out, _ = says("translate", "pairs", file)
    reference = tmp_path / "reference.txt"
    reference.write_text(out.replace("\n", " x\n", 1))

    again, err = says("translate", "pairs", file, "--reference", reference)
    found = json.loads(says("translate", "pairs", file, "--reference", reference, "--json")[0])

    assert again == out
    assert "exact match 80.00% of 5" in err
    assert "BLEU " in err
    assert found["scores"]["bleu"]["signature"] in err
    assert found["scores"]["chrf"]["signature"] in err


def test_a_translation_that_was_cut_is_told(says: Says, file: Path) -> None:
    found = translate(load("pairs"), LINES, max_new_tokens=1)
    first = next(n for n, f in enumerate(found, start=1) if f[0].cut)

    _, err = says("translate", "pairs", file, "--max-new-tokens", "1")

    assert f"line {first}" in err
    assert "cut" in err


# --- bad input --------------------------------------------------------------------------------------------


def test_a_line_that_is_no_utf8_is_named(
    fails: Fails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"abc\n\xe9\n")

    assert f"{bad}, line 2: not UTF-8" in fails("translate", "pairs", bad)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\nc\xff\n")))
    assert "standard input, line 3: not UTF-8 (byte 0xff" in fails("translate", "pairs")


@pytest.mark.parametrize("arguments", [("translate", "pairs"), ("generate", "text", "--prompt", "-")])
def test_standard_input_that_is_compressed_is_said_to_be(
    fails: Fails, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(b"abc\n"))))
    assert "standard input: compressed by gzip: unpack it first" in fails(*arguments)


@pytest.mark.parametrize("name", ["file.txt", "beams.txt"])
def test_a_file_with_the_name_of_an_option_is_named_by_its_own(
    fails: Fails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("a" * M + "\n")
    assert f"{name}, line 1: {M + 1} tokens" in fails("translate", "pairs", name)
    assert "--" not in fails("translate", "pairs", name)


def test_a_line_longer_than_the_positions_is_named(fails: Fails, tmp_path: Path) -> None:
    long = tmp_path / "long.txt"
    long.write_text("abc\n" + "a" * M + "\n")

    line = fails("translate", "pairs", long)

    assert f"{long}, line 2: {M + 1} tokens with <eos>" in line
    assert f"at most {M}" in line


def test_a_file_called_like_an_option_is_no_option(fails: Fails, tmp_path: Path) -> None:
    (tmp_path / "file 2.txt").write_text("a" * M + "\n")
    with chdir(tmp_path):
        assert ": file 2.txt, line 1: " in fails("translate", "pairs", "file 2.txt")


def test_references_of_another_number_are_refused_with_both(fails: Fails, file: Path, tmp_path: Path) -> None:
    reference = tmp_path / "reference.txt"
    reference.write_text("a\nb\n")

    line = fails("translate", "pairs", file, "--reference", reference)

    assert f"{reference} has 2 lines and {file} has 5" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--early-stopping", "maybe"], "--early-stopping takes false, true, never; got 'maybe'"),
        (["--length-penalty-kind", "wu"], "--length-penalty-kind is one of hf, gnmt; got 'wu'\n"),
        (["--n-best", "6"], "--n-best: from 1 to the number of beams, 5; got 6"),
        (["--average", "4"], "has 3 checkpoints up to step 3, but 4 are needed"),
        (["--dtype", "float8"], "--dtype takes float32 or bfloat16; got 'float8'"),
    ],
)
def test_options_out_of_range_are_named(fails: Fails, file: Path, arguments: list[str], message: str) -> None:
    assert message in fails("translate", "pairs", file, *arguments) + "\n"


def test_a_file_that_is_not_there_is_named(fails: Fails, tmp_path: Path) -> None:
    assert str(tmp_path / "none.txt") in fails("translate", "pairs", tmp_path / "none.txt")


def test_a_name_that_is_empty_is_said_to_be(fails: Fails, file: Path) -> None:
    assert "FILE: the name is empty (is a shell variable unset?)" in fails("translate", "pairs", "")
    assert "--reference: the name is empty" in fails("translate", "pairs", file, "--reference", "")


def test_standard_input_is_not_waited_for_in_vain(fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # reading it would raise
    assert "there is no run 'nope'" in fails("translate", "nope")
    assert "text does not translate" in fails("translate", "text")


def test_standard_input_is_read_once(fails: Fails, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    assert "--reference: the sentences are read from standard input" in fails(
        "translate", "pairs", "--reference", "-"
    )
    assert f"--reference: standard input has 2 lines and {file} has 5 lines" in fails(
        "translate", "pairs", file, "--reference", "-"
    )


def test_each_family_is_sent_to_its_own_command(fails: Fails, file: Path) -> None:
    line = fails("translate", "text", file)
    assert line.endswith("text does not translate; it continues texts: clearformer generate text")
    assert "use clearformer translate" in fails("generate", "pairs", "--prompt", "abc")


def test_an_option_without_effect_is_named_as_it_is_typed(fails: Fails) -> None:
    given = ("generate", "text", "--prompt", "abc", "--beams", "2")
    assert fails(*given, "--compile").endswith(
        "--compile: beam search does not have it; omit --compile or --beams"
    )
    assert fails(*given, "--top-k", "3").endswith(
        "--top-k: beam search does not sample; omit --top-k or --beams"
    )


# --- generate ---------------------------------------------------------------------------------------------


def test_drafts_change_no_text_on_the_command_line(says: Says) -> None:
    options = ["generate", "text", "--prompt", "abcabc", "--max-new-tokens", "9"]

    plain = says(*options)[0]

    assert says(*options, "--lookup", "4")[0] == plain
    assert json.loads(says(*options, "--lookup", "4", "--json")[0])["samples"][0]["text"] in plain


def test_drafts_and_a_compiled_step_exclude_each_other(fails: Fails) -> None:
    line = fails("generate", "text", "--prompt", "abc", "--lookup", "4", "--compile")
    assert "--lookup: a compiled step cannot read drafts; omit lookup or compiling" in line


def test_int8_weights_of_a_run_without_data_say_that_their_cost_is_unknown(says: Says) -> None:
    out, err = says("generate", "text", "--prompt", "abc", "--max-new-tokens", "9", "--int8")

    assert out.startswith("abc")
    assert err.startswith("int8 weights: loss not measured: ")


@pytest.mark.parametrize(("option", "value"), [("--top-k", "3"), ("--top-p", "0.5"), ("--min-p", "0.3")])
def test_greedy_decoding_and_what_limits_chance_exclude_each_other(
    says: Says, fails: Fails, option: str, value: str
) -> None:
    greedy = ("generate", "text", "--prompt", "abc", "--max-new-tokens", "3", "--temperature", "0")
    line = fails(*greedy, option, value)

    assert f"{option}: temperature 0 does not sample; omit {option} or --temperature" in line
    assert says(*greedy, "--seed", "2") == says(*greedy)
    says(*greedy[:-1], "0.5", option, value)


# --- generate --beams -------------------------------------------------------------------------------------


def test_generate_with_beams_is_the_likeliest_text(says: Says) -> None:
    found = search(load("text"), "abc", beams=3, num=2, max_new_tokens=7)
    options = ["--prompt", "abc", "--beams", "3", "--num", "2", "--max-new-tokens", "7"]

    assert says("generate", "text", *options)[0] == "\n---\n".join(f"abc{f.text}" for f in found) + "\n"
    samples = json.loads(says("generate", "text", *options, "--json")[0])["samples"]
    assert [s["tokens"] for s in samples] == [f.tokens for f in found]
    assert [s["score"] for s in samples] == [f.score for f in found]


@pytest.mark.parametrize(
    "option",
    [
        "--temperature",
        "--top-k",
        "--top-p",
        "--min-p",
        "--repetition-penalty",
        "--seed",
        "--stop",
    ],
)
def test_beams_and_what_samples_are_drawn_by_exclude_each_other(fails: Fails, option: str) -> None:
    line = fails("generate", "text", "--beams", "2", option, "1")

    assert f"{option}: beam search does not sample; omit {option} or --beams" in line


def test_more_texts_than_beams_are_refused(fails: Fails) -> None:
    line = fails("generate", "text", "--prompt", "abc", "--beams", "2", "--num", "3")
    assert "--num: from 1 to the number of beams, 2; got 3" in line
