"""Tables and paragraphs in terminals of any width."""

import pytest

from clearformer.cli.tables import definitions, paragraph, table

HEADS = ("component", "parameters", "share")
ROWS = [("embedding", "16,640", "0.6%"), ("a bird 数", "2,102,272", ""), ("total", "2,921,984", "100.0%")]


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("COLUMNS", raising=False)
    return monkeypatch


def test_numbers_stand_under_their_heads(columns: pytest.MonkeyPatch) -> None:
    columns.setenv("COLUMNS", "80")
    assert table(HEADS, ROWS).splitlines() == [
        "component   parameters    share",
        "embedding       16,640     0.6%",
        "a bird 数    2,102,272",
        "total        2,921,984   100.0%",
    ]


@pytest.mark.parametrize("width", ["10", "20", "30"])
def test_where_there_is_no_room_each_row_is_a_list(columns: pytest.MonkeyPatch, width: str) -> None:
    columns.setenv("COLUMNS", width)
    assert table(HEADS, ROWS[1:]).splitlines() == [
        "a bird 数",
        "  parameters: 2,102,272",
        "total",
        "  parameters: 2,921,984",
        "  share: 100.0%",
    ]


@pytest.mark.parametrize("width", ["31", "200", None])
def test_a_table_is_as_wide_as_it_is_and_no_wider(columns: pytest.MonkeyPatch, width: str | None) -> None:
    """Without a terminal, where the output goes to a file, nothing is broken."""
    if width:
        columns.setenv("COLUMNS", width)
    assert max(map(len, table(HEADS, ROWS).splitlines())) == 31


def test_a_paragraph_is_broken_between_words(columns: pytest.MonkeyPatch) -> None:
    text = "By formula: 2,921,984 parameters, 2,916,864 without biases-and-norms."
    assert paragraph(text) == text
    columns.setenv("COLUMNS", "30")
    assert paragraph(text).splitlines() == [
        "By formula: 2,921,984",
        "parameters, 2,916,864 without",
        "biases-and-norms.",
    ]


def test_definitions_stand_beside_their_names_or_below(columns: pytest.MonkeyPatch) -> None:
    pairs = [("quick", "A small decoder that is good within a minute on two cores."), ("gpt2", "GPT-2.")]
    assert definitions(pairs).splitlines() == [
        "quick  A small decoder that is good within a minute on two cores.",
        "gpt2   GPT-2.",
    ]
    columns.setenv("COLUMNS", "60")
    assert definitions(pairs).splitlines() == [
        "quick  A small decoder that is good within a minute on two",
        "       cores.",
        "gpt2   GPT-2.",
    ]
    columns.setenv("COLUMNS", "40")
    assert definitions(pairs).splitlines() == [
        "quick",
        "  A small decoder that is good within a",
        "  minute on two cores.",
        "gpt2",
        "  GPT-2.",
    ]
