"""Which name was meant by one that is none, and other people's words in a message."""

import pytest

from clearformer.errors import count, did_you_mean, nearest, shortened, shown

OPTIONS = ("--config", "--run", "--resume", "--force", "--json", "--tokenizer")
KEYS = (
    "d_model",
    "n_layers",
    "max_seq_len",
    "attention",
    "lr",
    "eval_every",
    "eval_flops_fraction",
    "n_heads",
    "vocab_size",
)
RUNS = ("opt", "quick-pydoc", "winter", "nope-2")


@pytest.mark.parametrize(
    ("name", "candidates", "meant"),
    [
        ("quik", ("quick", "auto"), "quick"),
        ("Quick", ("quick", "auto"), "quick"),
        ("nanogpt_cpu", ("nanogpt-cpu", "minigpt"), "nanogpt-cpu"),
        ("wintre", RUNS, "winter"),
        ("d_modle", KEYS, "d_model"),
        ("heads", KEYS, "n_heads"),
        ("layers", KEYS, "n_layers"),
        ("vocab", KEYS, "vocab_size"),
        ("--confg", OPTIONS, "--config"),
        ("-json", OPTIONS, "--json"),
        ("eval", KEYS, None),  # two have it
        ("foo", OPTIONS, None),
        ("zzz", RUNS, None),
        ("learning_rate", KEYS, None),
        ("", RUNS, None),
    ],
)
def test_the_nearest_name_is_near(name: str, candidates: tuple[str, ...], meant: str | None) -> None:
    assert nearest(name, candidates) == meant


@pytest.mark.parametrize(
    ("path", "candidates", "meant"),
    [
        ("/nope.txt", RUNS, None),
        ("runs/wintre", RUNS, None),
        ("data/nope.txt", ("data/note.txt", "other/nope.txt"), "data/note.txt"),
        ("wintre", ("runs/winter",), None),
    ],
)
def test_a_path_is_compared_with_its_neighbours_alone(
    path: str, candidates: tuple[str, ...], meant: str | None
) -> None:
    assert nearest(path, candidates) == meant


def test_nothing_is_said_where_nothing_is_near() -> None:
    assert did_you_mean("quik", ("quick",)) == "; did you mean 'quick'?"
    assert did_you_mean("/nope.txt", RUNS) == ""


def test_other_people_s_words_are_cut() -> None:
    assert shown("a\nb") == r"'a\nb'"
    assert len(shortened("x" * 100_000)) == len(shown(["y"] * 100_000)) == 80
    assert shown(10**5000) == "a number with thousands of digits"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one two", "one two"),
        (" one\n two ", "one two"),
        ("0123456789", "0123456789"),
        ("0123456 890", "0123456..."),
    ],
)
def test_what_is_shown_of_a_text_is_one_short_line(text: str, line: str) -> None:
    assert shortened(text, most=10) == line


def test_one_is_no_plural() -> None:
    assert [count(n, "token") for n in (0, 1, 1000)] == ["0 tokens", "1 token", "1,000 tokens"]
    assert count(2, "batch", "batches") == "2 batches"
