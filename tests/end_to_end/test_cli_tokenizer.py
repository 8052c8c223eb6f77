"""`clearformer tokenizer train`, `show` and `compare`, as a user types them."""

import gzip
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clearformer.cli import main
from clearformer.cli.commands.tokenizer import app
from clearformer.errors import ClearformerError
from clearformer.text import load_tokenizer

CORPUS = "the cat and the hen and the naïve owl\n" * 3
N_CHARS = len(set(CORPUS))

TINY = (
    "train.max_steps=1",
    "train.compile=false",
    "model.d_model=16",
    "model.n_layers=1",
    "model.attention.n_heads=2",
    "model.max_seq_len=2",
)


def run(*arguments: str | Path, columns: int = 80, stdin: str | bytes | None = None) -> Result:
    words = [str(argument) for argument in arguments]
    result = CliRunner().invoke(app, words, input=stdin, env={"COLUMNS": str(columns)})
    if result.exception and not isinstance(result.exception, SystemExit | ClearformerError):
        raise result.exception
    return result


def succeed(*arguments: str | Path, columns: int = 80, stdin: str | bytes | None = None) -> Result:
    result = run(*arguments, columns=columns, stdin=stdin)
    if result.exception:
        raise result.exception
    return result


def refusal(*arguments: str | Path, stdin: str | bytes | None = None) -> str:
    """The one line that the user would read; the exit status is 2 and standard output stays empty."""
    result = run(*arguments, stdin=stdin)
    assert isinstance(result.exception, ClearformerError)
    assert result.exception.exit_status == 2
    assert result.stdout == ""
    message = str(result.exception)
    assert "\n" not in message
    return message


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(CORPUS, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("options", "kind", "size", "specials"),
    [
        (["--vocab-size", "265", "--bos", "--eos"], "bpe", 265, ("<bos>", "<eos>")),
        (["--kind", "char", "--unk"], "char", N_CHARS + 1, ("<unk>",)),
        (["--kind", "byte", "--eos"], "byte", 257, ("<eos>",)),
        (["--kind", "unigram", "--vocab-size", "293", "--bos"], "unigram", 293, ("<bos>",)),
        (
            ["--vocab-size", "265", "--family", "encoder-decoder", "--eos", "--cased"],
            "bpe",
            265,
            ("<pad>", "<bos>", "<eos>"),
        ),
    ],
)
def test_train_writes_a_tokenizer_that_loads(
    corpus: Path, tmp_path: Path, options: list[str], kind: str, size: int, specials: tuple[str, ...]
):
    out = tmp_path / "made" / "tokenizer.json"
    result = succeed("train", corpus, *options, "--out", out)
    tokenizer = load_tokenizer(out)
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.specials) == (kind, size, specials)
    assert tokenizer.decode(tokenizer.encode(CORPUS)) == CORPUS
    assert f"{kind} tokenizer, {size} tokens" in result.stderr
    assert result.stdout == ""


def test_train_wordpiece_for_an_encoder(corpus: Path, tmp_path: Path):
    arguments = ("--kind", "wordpiece", "--vocab-size", "43", "--family", "encoder")
    succeed("train", corpus, *arguments, "--out", tmp_path / "t.json")
    tokenizer = load_tokenizer(tmp_path / "t.json")
    assert (tokenizer.kind, tokenizer.vocab_size) == ("wordpiece", 43)
    assert tokenizer.specials == ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")
    assert tokenizer.decode(tokenizer.encode("The Naïve")) == "the naive"


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
@pytest.mark.parametrize("case", ["--lowercase", "--cased"])
def test_train_takes_capitals_away_if_told(corpus: Path, tmp_path: Path, kind: str, case: str):
    corpus.write_text(CORPUS + "OWL the\n")
    succeed("train", corpus, "--kind", kind, case, "--out", tmp_path / "t.json", "--vocab-size", "347")
    tokenizer = load_tokenizer(tmp_path / "t.json")
    assert tokenizer.decode(tokenizer.encode("OWL the")) == (
        "owl the" if case == "--lowercase" else "OWL the"
    )


def test_train_normalizes_if_told(corpus: Path, tmp_path: Path):
    arguments = ("--kind", "unigram", "--normalize", "nfkc", "--vocab-size", "293")
    succeed("train", corpus, *arguments, "--out", tmp_path / "t.json")
    assert load_tokenizer(tmp_path / "t.json").normalized("\ufb01") == "fi"


def test_train_makes_one_vocabulary_of_two_languages(tmp_path: Path):
    (tmp_path / "en").write_text("the hen the hen the hen the\n")
    (tmp_path / "de").write_text("die Henne die Henne die\n")
    for kind in ("bpe", "unigram"):
        out = tmp_path / f"{kind}.json"
        succeed(
            "train", tmp_path / "en", tmp_path / "de", "--kind", kind, "--vocab-size", "311", "--out", out
        )
        tokenizer = load_tokenizer(out)
        for word in ("the", "die"):
            assert len(tokenizer.encode(f"x {word}")) - len(tokenizer.encode("x")) == 1


def test_train_reads_every_file_and_keeps_line_ends(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"a\r\n")
    (tmp_path / "b.txt").write_bytes(b"b")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "c.txt.gz").write_bytes(gzip.compress(b"c"))
    paths = [tmp_path / name for name in ("a.txt", "b.txt", "folder")]
    succeed("train", *paths, "--kind", "char", "--out", tmp_path / "t.json")
    assert load_tokenizer(tmp_path / "t.json").spellings == ("\n", "\r", "a", "b", "c")


def test_the_next_command_can_be_pasted(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["/somewhere/clearformer/__main__.py"])
    out = tmp_path / "my tok.json"
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    *_, shown, used = succeed("train", corpus, "--out", out).stderr.splitlines()
    for following, said in (
        (shown.removeprefix("next: "), "bpe tokenizer"),
        (used.strip(), "runs/quick-corpus"),
    ):
        python, option, program, *words = shlex.split(following)
        assert [python, option, program] == ["python", "-m", "clearformer"]
        of_training = TINY if words[0] == "train" else ()
        assert main([*words, *of_training]) == 0
        assert said in capsys.readouterr().out


def test_the_next_command_is_for_the_family_and_the_field(tmp_path: Path):
    (tmp_path / "docs.jsonl").write_text('{"body": "a text of words"}\n')
    out, given = tmp_path / "t.json", (tmp_path / "docs.jsonl", "--field", "body", "--force")
    for family, words in (
        ("decoder", f"train tokenizer=file tokenizer.path={out} data.path="),
        ("encoder", f"train masked tokenizer=file tokenizer.path={out} data.path="),
        (
            "encoder-decoder",
            f"train translate tokenizer=file tokenizer.path={out} data.source=FILE data.target=FILE",
        ),
    ):
        *_, used = succeed("train", *given, "--out", out, "--family", family).stderr.splitlines()
        assert words in used
        assert used.endswith(" data.field=body") == (family != "encoder-decoder")


def test_the_next_command_names_the_field_of_the_file_that_it_reads(tmp_path: Path):
    docs, notes, out = (tmp_path / name for name in ("docs.jsonl", "notes.txt", "t.json"))
    docs.write_text('{"body": "a text of words"}\n')
    notes.write_text("more words\n")
    for first, second, ending in ((docs, notes, f"{docs} data.field=body"), (notes, docs, f"{notes}")):
        given = (first, second, "--field", "body", "--out", out, "--force")
        *_, used = succeed("train", *given).stderr.splitlines()
        assert used.endswith(f" data.path={ending}")


def test_byte_needs_no_file(tmp_path: Path):
    succeed("train", "--kind", "byte", "--out", tmp_path / "t.json")
    assert load_tokenizer(tmp_path / "t.json").vocab_size == 256


def test_train_says_when_the_corpus_gives_fewer_tokens(corpus: Path, tmp_path: Path):
    result = succeed("train", corpus, "--vocab-size", "5000", "--out", tmp_path / "t.json")
    assert "fewer tokens than the 5,000 requested" in result.stderr


def test_train_replaces_a_file_only_when_forced(corpus: Path, tmp_path: Path):
    out = tmp_path / "t.json"
    out.write_text("mine")
    assert "exists: choose another --out, or add --force" in refusal("train", corpus, "--out", out)
    assert out.read_text() == "mine"
    succeed("train", corpus, "--out", out, "--force")
    assert load_tokenizer(out).kind == "bpe"


def test_train_finds_a_file_in_the_home_folder(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "t.json").write_text("mine")
    assert "exists: choose another --out" in refusal("train", corpus, "--out", "~/t.json")
    assert (tmp_path / "t.json").read_text() == "mine"


def test_train_does_not_write_beside_the_special_tokens_of_another_tokenizer(corpus: Path, tmp_path: Path):
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    out = tmp_path / "tokenizer.json"
    for more in ((), ("--force",)):
        message = refusal("train", corpus, "--out", out, *more)
        assert "tokenizer_config.json exists and names the special tokens of tokenizer.json" in message
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name at least one text file"),
        (["missing.txt"], "missing.txt: there is no such file"),
        (["empty"], "holds no text"),
        (["empty.txt"], "empty.txt is empty"),
        (["binary.txt"], "binary.txt: looks binary"),
        (["corpus.txt", "--vocab-size", "100"], "--vocab-size 100 is too small"),
        (["corpus.txt", "--vocab-size", "0"], "--vocab-size 0 is too small"),
        (
            ["corpus.txt", "--kind", "char", "--vocab-size", "300"],
            "--vocab-size does not apply to --kind char",
        ),
        (["corpus.txt", "--unk"], "--unk does not apply to --kind bpe"),
        (
            ["corpus.txt", "--kind", "bep"],
            "--kind takes one of char, byte, bpe, wordpiece, unigram; got 'bep'; did you mean 'bpe'?",
        ),
        (["corpus.txt", "--kind", "file"], "got 'file'"),
        (["corpus.txt", "--field", "body"], "--field body has no effect"),
        (["corpus.txt", "--kind", "char", "--lowercase"], "--lowercase does not apply to --kind char"),
        (["corpus.txt", "--kind", "byte", "--cased"], "--cased does not apply to --kind byte"),
        (["corpus.txt", "--normalize", "nfkc"], "--normalize does not apply to --kind bpe"),
        (["corpus.txt", "--kind", "wordpiece", "--vocab-size", "1"], "--vocab-size 1 is too small"),
        (["corpus.txt", "--kind", "wordpiece", "--vocab-size", "9"], "the corpus's 12 characters"),
        (["corpus.txt", "--kind", "unigram", "--vocab-size", "275"], "--vocab-size 275 is too small"),
        (
            ["corpus.txt", "--vocab-size", "257", "--family", "encoder"],
            "--vocab-size 257 is too small",
        ),
    ],
)
def test_train_refuses_in_one_line(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
):
    monkeypatch.chdir(corpus.parent)
    (corpus.parent / "empty").mkdir()
    (corpus.parent / "empty.txt").touch()
    (corpus.parent / "binary.txt").write_bytes(bytes(range(256)))
    assert message in refusal("train", *arguments)
    assert not (corpus.parent / "tokenizer.json").exists()


def test_show_lists_index_id_token_and_bytes():
    lines = [line.split() for line in succeed("show", "é b\n", "--tokenizer", "char").stdout.splitlines()]
    assert ["0", "3", "é", "c3", "a9"] in lines
    assert ["1", "1", "␣", "20"] in lines
    assert ["3", "0", "\\n", "0a"] in lines
    assert " ".join(lines[-1]) == "4 characters, 5 bytes, 4 tokens, 1.00 characters per token"


def test_show_makes_every_control_character_visible_and_reads_no_markup():
    out = succeed("show", "\x1b[31m[bold]x[/bold] :smile: \u202e", "--tokenizer", "char").stdout
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "\\x1b" in out
    assert "\\u202e" in out
    assert "[" in out


@pytest.mark.parametrize("columns", [30, 80])
def test_show_fits_the_terminal(corpus: Path, tmp_path: Path, columns: int):
    succeed("train", corpus, "--out", tmp_path / "t.json")
    out = succeed("show", CORPUS, "--tokenizer", tmp_path / "t.json", columns=columns).stdout
    assert max(len(line) for line in out.splitlines()) <= columns


def test_show_folds_nothing_that_goes_to_another_program(corpus: Path, tmp_path: Path):
    succeed("train", corpus, "--out", tmp_path / "t.json")
    command = ["tokenizer", "show", "naïve the", "--merges", "--tokenizer", str(tmp_path / "t.json")]
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    piped = subprocess.run(
        [sys.executable, "-m", "clearformer", *command],
        capture_output=True,
        env=environment | {"PYTHONUTF8": "1"},
        check=True,
    )
    lines = piped.stdout.decode().splitlines()
    assert max(len(line) for line in lines) > 80
    assert len([line for line in lines if "->" in line]) == 2


def test_show_reads_standard_input_as_it_is():
    out = succeed("show", "-", "--json", stdin="hé\n").stdout
    assert [token["id"] for token in json.loads(out)["tokens"]] == list("hé\n".encode())


def test_show_json_is_one_object(corpus: Path, tmp_path: Path):
    succeed("train", corpus, "--vocab-size", "300", "--out", tmp_path / "t.json")
    shown = json.loads(
        succeed("show", "the naïve", "--tokenizer", tmp_path / "t.json", "--merges", "--json").stdout
    )
    tokenizer = load_tokenizer(tmp_path / "t.json")
    assert shown["kind"] == "bpe"
    assert shown["vocab_size"] == tokenizer.vocab_size
    assert (shown["n_chars"], shown["n_bytes"], shown["n_tokens"]) == (9, 10, len(shown["tokens"]))
    assert shown["chars_per_token"] == 9 / shown["n_tokens"]
    assert [token["id"] for token in shown["tokens"]] == tokenizer.encode("the naïve").tolist()
    assert "".join(token["bytes"] for token in shown["tokens"]) == "the naïve".encode().hex()
    assert shown["merges"][0][0] == ["t", "h", "e"]
    assert shown["merges"][0][-1] == ["the"]


def test_show_of_nothing_has_no_ratio():
    assert json.loads(succeed("show", "", "--json").stdout)["chars_per_token"] is None
    assert "0 tokens" in succeed("show", "").stdout


def test_show_merges_as_they_happen(corpus: Path, tmp_path: Path):
    succeed("train", corpus, "--out", tmp_path / "t.json")
    out = succeed("show", "hen the", "--merges", "--tokenizer", tmp_path / "t.json").stdout
    assert "\nh e n -> he n\n" in out
    assert " -> ␣ the -> ␣the\n" in out


def test_show_breaks_merges_only_before_an_arrow(corpus: Path, tmp_path: Path):
    succeed("train", corpus, "--out", tmp_path / "t.json")
    arguments = ("show", "naïve the", "--merges", "--tokenizer", tmp_path / "t.json")
    wide, narrow = (succeed(*arguments, columns=columns).stdout.split("\n\n")[1] for columns in (200, 24))
    assert "\n    -> " in narrow
    chains = [line for line in wide.splitlines() if "->" in line]
    assert len(chains) == 2
    assert "\n".join(chains) in narrow.replace("\n    ->", " ->")


def test_show_cuts_a_long_table_and_says_so():
    out = succeed("show", "a" * 1234).stdout
    assert "... and 734 more; --json prints all" in out
    assert "1,234 characters" in out


def test_show_finds_a_run_by_folder_and_by_name(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    succeed("train", corpus, "--kind", "char", "--out", tmp_path / "runs" / "first" / "tokenizer.json")
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    by_folder = succeed("show", "the", "--tokenizer", tmp_path / "runs" / "first").stdout
    assert f"char tokenizer, {N_CHARS} tokens" in by_folder
    assert succeed("show", "the", "--tokenizer", "first").stdout == by_folder
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first").mkdir()  # no tokenizer is in it
    assert succeed("show", "the", "--tokenizer", "first").stdout == by_folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--tokenizer", "byt"], "did you mean 'byte'"),
        (["x", "--tokenizer", ""], "--tokenizer: the name is empty"),
        (["x", "--tokenizer", "corpus.txt"], "corpus.txt: not JSON"),
        (["x", "--tokenizer", "."], "tokenizer.json: there is no such file"),
        (["x", "--merges"], "--merges needs BPE, and this is a byte tokenizer"),
        (["", "--tokenizer", "char"], "no text to take the characters from"),
        (["a\udcff"], "TEXT: not UTF-8 (byte 0xff, character 2)"),
    ],
)
def test_show_refuses_in_one_line(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
):
    monkeypatch.chdir(corpus.parent)
    assert message in refusal("show", *arguments)


def test_show_refuses_standard_input_that_is_no_text():
    assert "standard input, line 2: not UTF-8 (byte 0xff" in refusal("show", "-", stdin=b"a\n\xff")


def test_show_refuses_a_character_that_the_tokenizer_lacks(corpus: Path, tmp_path: Path):
    succeed("train", corpus, "--kind", "char", "--out", tmp_path / "t.json")
    assert "'!' (U+0021) at line 1, column 4" in refusal("show", "the!", "--tokenizer", tmp_path / "t.json")


def test_show_the_lectures_line_with_gpt2():
    if "CLEARFORMER_DATA" not in os.environ:
        pytest.skip("CLEARFORMER_DATA is not set")
    line = "First Citizen:\nBefore we proceed any further, hear me speak.\n"
    out = succeed("show", line, "--tokenizer", "gpt2", "--merges").stdout
    assert "61 characters, 61 bytes, 15 tokens, 4.07 characters per token" in out
    assert "50,257 tokens" in out


SAYINGS = (
    "".join(f"the {animal} walks and the {animal} talked to me\n" for animal in ("hen", "owl", "cat", "ox"))
    * 5
)


@pytest.fixture
def sayings(tmp_path: Path) -> Path:
    path = tmp_path / "sayings.txt"
    path.write_text(SAYINGS, encoding="utf-8")
    return path


def test_compare_is_one_object_of_every_kind_and_size(sayings: Path):
    result = succeed(
        "compare", sayings, "--vocab-size", "277,281", "--kinds", "bpe,wordpiece,unigram,byte,char", "--json"
    )
    compared = json.loads(result.stdout)
    assert compared["trained_on"] == f"the first 90% of {sayings}"
    assert compared["measured_on"] == f"the last 10% of {sayings}"
    rows = compared["tokenizers"]
    pairs = [kind for kind in ("bpe", "wordpiece", "unigram") for _ in range(2)]
    assert [row["kind"] for row in rows] == [*pairs, "byte", "char"]
    assert [row["vocab_size"] for row in rows[:2]] == [277, 281]
    by_kind = {row["kind"]: row for row in rows}
    assert by_kind["byte"]["bytes_per_token"] == 1
    assert by_kind["byte"]["n_tokens"] == by_kind["char"]["n_tokens"] == by_kind["bpe"]["n_bytes"]
    assert len({(row["n_words"], row["n_lines"], row["n_bytes"]) for row in rows}) == 1
    assert {row["lossless"] for row in rows if row["kind"] != "wordpiece"} == {True}
    assert "".join(by_kind["bpe"]["example"]) == compared["example"]
    assert rows[1]["tokens_per_word"] < rows[0]["tokens_per_word"] < by_kind["byte"]["tokens_per_word"]


def test_compare_measures_the_end_of_every_file_or_what_is_held_out(sayings: Path, tmp_path: Path):
    other = tmp_path / "other.txt"
    other.write_text("ÄÖÜ " * 50, encoding="utf-8")
    arguments = ("compare", sayings, other, "--kinds", "char", "--json")
    (row,) = json.loads(succeed(*arguments).stdout)["tokenizers"]
    ends = SAYINGS[len(SAYINGS) * 9 // 10 :].replace("\n", "") + "ÄÖÜ " * 5
    assert (row["n_unknown"], row["n_bytes"]) == (0, len(ends.encode()))
    held = tmp_path / "held.txt"
    held.write_text("the zebra\r\n\nzz\n", encoding="utf-8")
    compared = json.loads(succeed(*arguments, "--held-out", held).stdout)
    (row,) = compared["tokenizers"]
    assert (row["n_lines"], row["n_words"], row["n_bytes"], row["n_unknown"]) == (2, 3, 11, 5)
    assert compared["measured_on"] == str(held)
    assert compared["trained_on"] == f"{sayings}, {other}"


def test_compare_existing_tokenizers_alone_or_beside_trained_ones(sayings: Path, tmp_path: Path):
    succeed("train", sayings, "--vocab-size", "277", "--out", tmp_path / "t.json")
    existing = ("--tokenizer", tmp_path / "t.json", "--tokenizer", "byte")
    compared = json.loads(succeed("compare", sayings, *existing, "--json").stdout)
    assert compared["trained_on"] is None
    rows = compared["tokenizers"]
    assert [(row["name"], row["vocab_size"]) for row in rows] == [
        (str(tmp_path / "t.json"), 277),
        ("byte", 256),
    ]
    rows = json.loads(succeed("compare", sayings, *existing, "--kinds", "char", "--json").stdout)[
        "tokenizers"
    ]
    assert [row["kind"] for row in rows] == ["char", "bpe", "byte"]


def test_compare_trains_the_kinds_that_are_named_beside_existing_tokenizers(sayings: Path):
    for kinds in ("bpe,wordpiece,unigram", "unigram,char"):
        arguments = (
            "compare",
            sayings,
            "--tokenizer",
            "byte",
            "--kinds",
            kinds,
            "--vocab-size",
            "293",
            "--json",
        )
        compared = json.loads(succeed(*arguments).stdout)
        assert [row["kind"] for row in compared["tokenizers"]] == [*kinds.split(","), "byte"]
        assert compared["trained_on"] == f"the first 90% of {sayings}"


def test_compare_in_lower_case(sayings: Path):
    rows = json.loads(succeed("compare", sayings, "--lowercase", "--vocab-size", "293", "--json").stdout)[
        "tokenizers"
    ]
    assert [row["lossless"] for row in rows] == [False] * 3


def test_compare_gives_every_tokenizer_the_lower_case_text(sayings: Path, tmp_path: Path):
    sayings.write_text(SAYINGS.title())
    held = tmp_path / "held.txt"
    held.write_text("The İbis\n", encoding="utf-8")
    arguments = (
        "compare",
        sayings,
        "--held-out",
        held,
        "--tokenizer",
        "byte",
        "--kinds",
        "char,bpe",
        "--lowercase",
    )
    compared = json.loads(succeed(*arguments, "--vocab-size", "277", "--json").stdout)
    assert compared["example"] == "the i\u0307bis"
    assert {row["n_bytes"] for row in compared["tokenizers"]} == {len(compared["example"].encode())}
    char = compared["tokenizers"][0]
    assert char["vocab_size"] == len(set(SAYINGS.lower())) + 1
    assert compared["measured_on"] == f"{held} in lower case"
    assert compared["trained_on"] == f"{sayings} in lower case"


def test_the_example_of_a_text_without_spaces_is_short(tmp_path: Path):
    text = tmp_path / "zh.txt"
    text.write_text("人人生而自由" * 1000, encoding="utf-8")
    compared = json.loads(succeed("compare", text, "--kinds", "char", "--json").stdout)
    assert compared["example"] == ("人人生而自由" * 1000)[-600:][:200]


def test_compare_shows_no_ratio_to_the_tokens_of_a_text_that_has_none(sayings: Path, tmp_path: Path):
    held = tmp_path / "held.txt"
    held.write_text("\u200b\n", encoding="utf-8")  # BERT's normaliser takes it away
    arguments = ("compare", sayings, "--held-out", held, "--kinds", "wordpiece", "--vocab-size", "293")
    row = next(line for line in succeed(*arguments, columns=100).stdout.splitlines() if "no" in line.split())
    assert row.split()[2:] == ["0.000", "0.00", "-", "-", "no"]


def test_compare_learns_nothing_from_the_text_to_measure_on(tmp_path: Path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("the hen the hen\n" * 9)
    held = tmp_path / "texts" / "held.txt"
    held.write_text("zigzag zigzag zigzag zigzag\n" * 9)
    arguments = ("compare", tmp_path / "texts", "--held-out", held, "--kinds", "bpe", "--vocab-size", "300")
    assert "z|i|g|z|a|g" in succeed(*arguments, columns=100).stdout
    arguments = ("compare", held, "--held-out", held, "--tokenizer", "byte", "--json")
    assert json.loads(succeed(*arguments).stdout)["tokenizers"][0]["bytes_per_token"] == 1


def test_compare_names_the_tokenizer_that_lacks_a_character(sayings: Path, tmp_path: Path):
    succeed("train", sayings, "--kind", "char", "--out", tmp_path / "t.json")
    held = tmp_path / "held.txt"
    held.write_text("the hen\n\nthe zebra\n")
    message = refusal("compare", sayings, "--held-out", held, "--tokenizer", tmp_path / "t.json")
    assert message.startswith(f"--tokenizer {tmp_path / 't.json'}, {held}: 'z' (U+007A) is not among")


@pytest.mark.parametrize("columns", [60, 100])
def test_compare_prints_a_table_and_an_example_cut_by_each(sayings: Path, columns: int):
    out = succeed(
        "compare", sayings, "--vocab-size", "293", "--kinds", "bpe,wordpiece", columns=columns
    ).stdout
    lines = out.splitlines()
    assert max(len(line) for line in lines[1:]) <= columns
    rows = [line for line in lines if line.startswith(("bpe", "wordpiece")) and not line.endswith(":")]
    assert [line.split()[0] for line in rows] == ["bpe", "wordpiece"]
    assert "  the|" in out
    assert "the|␣" in out


@pytest.mark.parametrize("out", ["", ".", "/", "folder"])
def test_a_folder_is_no_file_to_write(
    out: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    message = refusal("train", corpus, "--kind", "byte", "--out", out, "--force")
    assert message.startswith("--out: ")
    assert " is a folder; name a file, such as " in message


def test_a_file_beside_the_one_to_write_is_named(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "odd_config.json").write_text("{")
    message = refusal("train", corpus, "--kind", "byte", "--out", tmp_path / "odd.json")
    assert message.startswith(f"{tmp_path / 'odd.json'}: odd_config.json beside it is damaged")
    result = run("train", corpus, "--kind", "byte", "--out", corpus / "t.json")
    assert isinstance(result.exception, ClearformerError)
    assert "cannot be written" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.txt"], "missing.txt: there is no such file"),
        (["short.txt"], "short.txt: too short to hold out a part of it"),
        (["corpus.txt", "--kinds", "bpe,wordpeice"], "got 'wordpeice'; did you mean 'wordpiece'?"),
        (
            ["corpus.txt", "--kinds", "gpt2"],
            "--kinds takes a list of char, byte, bpe, wordpiece, unigram; got 'gpt2'",
        ),
        (["corpus.txt", "--vocab-size", "1000,many"], "--vocab-size takes whole numbers"),
        (["corpus.txt", "--vocab-size", "300,0"], "--vocab-size 0 is too small"),
        (["corpus.txt", "--vocab-size", "100", "--kinds", "bpe"], "or --kinds byte"),
        (["corpus.txt", "--vocab-size", "5000000"], "--vocab-size takes a number of at most"),
        (["corpus.txt", "--held-out", "corpus.txt"], "corpus.txt is also held out"),
        (
            ["corpus.txt", "--vocab-size", "300", "--kinds", "char,byte"],
            "--vocab-size: no tokenizer of a chosen",
        ),
        (
            ["corpus.txt", "--vocab-size", "300", "--tokenizer", "byte"],
            "or add bpe, wordpiece or unigram to --kinds",
        ),
        (
            ["corpus.txt", "--kinds", ""],
            "--kinds takes a list of char, byte, bpe, wordpiece, unigram; got ''",
        ),
        (["corpus.txt", "--tokenizer", "nothing"], "--tokenizer nothing: neither a file"),
        (["corpus.txt", "--tokenizer", ""], "--tokenizer: the name is empty"),
        (["corpus.txt", "--tokenizer", "char"], "use --kinds char"),
        (["corpus.txt", "--tokenizer", "corpus.txt"], "corpus.txt: not JSON"),
        (["corpus.txt", "--held-out", "blank.txt", "--kinds", "byte"], "no text to measure on"),
        (
            ["corpus.txt", "--held-out", "missing.txt", "--kinds", "byte"],
            "missing.txt: there is no such file",
        ),
        (["corpus.txt", "--held-out", "missing.txt"], "--held-out "),
        (["missing.txt", "--held-out", "corpus.txt", "--tokenizer", "byte"], "missing.txt: there is no such"),
    ],
)
def test_compare_refuses_in_one_line(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
):
    monkeypatch.chdir(corpus.parent)
    (corpus.parent / "short.txt").write_text("short")
    (corpus.parent / "blank.txt").write_text("\n \n")
    assert message in refusal("compare", *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--vocab-size", "300,0"],
        ["--held-out", "blank.txt"],
        ["--held-out", "missing.txt"],
        ["--held-out", "binary.txt"],
    ],
)
def test_compare_finds_what_is_wrong_before_it_trains(sayings: Path, tmp_path: Path, arguments: list[str]):
    (tmp_path / "blank.txt").write_text("\n \n")
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)))
    arguments = [str(tmp_path / each) if each.endswith(".txt") else each for each in arguments]
    result = run("compare", sayings, "--kinds", "bpe", *arguments)
    assert isinstance(result.exception, ClearformerError)
    assert "training" not in result.stderr


def test_the_field_of_jsonl_is_an_option(tmp_path: Path):
    texts = [f"{animal} walks here" for animal in ("hen", "owl")]
    file, held = tmp_path / "body.jsonl", tmp_path / "held.jsonl"
    file.write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    held.write_text(json.dumps({"body": "a zebu"}))
    succeed("train", file, "--field", "body", "--kind", "char", "--out", tmp_path / "t.json")
    assert load_tokenizer(tmp_path / "t.json").spellings == tuple(sorted(set("".join(texts))))
    arguments = ("compare", file, "--kinds", "char", "--json")
    compared = json.loads(succeed(*arguments, "--field", "body", "--held-out", held).stdout)
    assert compared["example"] == "a zebu"
    for arguments in (("train", file, "--out", tmp_path / "other.json"), ("compare", file)):
        assert refusal(*arguments) == (
            f"{file}, line 1: no field 'text'; it has 'body' (choose the text field with --field NAME)"
        )
        assert refusal(*arguments, "--field", "").startswith("--field: the name is empty")


def test_a_file_is_named_as_it_is_typed(tmp_path: Path):
    (tmp_path / "empty.txt").touch()
    for command in ("train", "compare"):
        assert (
            refusal(command, tmp_path / "a.txt") == f"{tmp_path / 'a.txt'}: there is no such file or folder"
        )
        assert refusal(command, tmp_path / "empty.txt").startswith(f"{tmp_path / 'empty.txt'} is empty: ")


def test_help_names_all_commands():
    out = succeed("--help").stdout
    for command in ("train", "show", "compare"):
        assert command in out


def test_nothing_is_no_text_and_not_the_present_folder(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus.parent)
    assert refusal("train", "", "--out", tmp_path / "t.json").startswith("PATH: the name is empty")
    assert not (tmp_path / "t.json").exists()
    assert refusal("compare", "").startswith("FILE: the name is empty")
    assert refusal("compare", corpus, "--held-out", "").startswith("--held-out: the name is empty")


def test_a_locale_without_a_language_changes_nothing() -> None:
    """Standard input and output are ASCII to the interpreter there."""
    strict = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "80"}
    shown = subprocess.run(
        [sys.executable, "-m", "clearformer", "tokenizer", "show", "-", "--tokenizer", "char"],
        input="h\xe9 \u6570".encode(),
        capture_output=True,
        env=os.environ | strict,
        check=False,
    )
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert "\u6570" in shown.stdout.decode()


def test_a_vocabulary_without_end_is_refused(tmp_path: Path) -> None:
    """The library would make room for all of it at once."""
    (tmp_path / "text.txt").write_text(CORPUS)
    for kind in ("bpe", "wordpiece", "unigram"):
        message = refusal("train", tmp_path / "text.txt", "--kind", kind, "--vocab-size", "1000000000")
        assert "--vocab-size takes a number of at most 4194304" in message
    assert "--vocab-size takes" in refusal("compare", tmp_path / "text.txt", "--vocab-size", "1000000000")
