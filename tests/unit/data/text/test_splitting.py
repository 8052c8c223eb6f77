import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearformer.config import resolve
from clearformer.data import TextData
from clearformer.data.reading import Chunk
from clearformer.data.text.splitting import Piece, split_into_pieces, split_stops
from clearformer.errors import ConfigError, DataError
from clearformer.text import BPETokenizerSpec

WORDS = "the cat's  mat, \n\n a 12 naïve 漢字\t🙂x and\u00a0then\r\n them they're  \n"
BPE = BPETokenizerSpec(vocab_size=300).train([WORDS * 20])


def test_the_lectures_split_of_tiny_shakespeare() -> None:
    assert split_stops({"train": 1_115_394}, TextData()) == {"train": int(1_115_394 * 0.9), "val": 1_115_394}
    assert split_stops({"train": 1_115_394}, TextData())["train"] == 1_003_854


def test_splits_are_cut_where_the_decimals_say() -> None:
    config = TextData(val_fraction=0.2, test_fraction=0.1)
    assert split_stops({"train": 10}, config) == {
        "train": 7,
        "val": 9,
        "test": 10,
    }  # in floats, 1 - 0.1 - 0.2 is above 0.7
    assert split_stops({"train": 10}, TextData(val_fraction=0.9)) == {
        "train": 1,
        "val": 10,
    }  # and 1 - 0.9 below 0.1


def test_a_fraction_of_zero_is_no_split() -> None:
    assert split_stops({"train": 7}, TextData(val_fraction=0)) == {"train": 7}
    assert split_stops({"train": 8}, TextData(val_fraction=0, test_fraction=0.25)) == {"train": 6, "test": 8}


def test_splits_with_files_of_their_own_follow_the_text() -> None:
    both = TextData(path="a", val_path="b", test_path="c")
    assert split_stops({"train": 10, "val": 3, "test": 2}, both) == {"train": 10, "val": 13, "test": 15}
    val = TextData(path="a", val_path="b")
    assert split_stops({"train": 10, "val": 3}, val) == {"train": 10, "val": 13}
    test = TextData(path="a", test_path="c", val_fraction=0.2)
    assert split_stops({"train": 10, "test": 2}, test) == {"train": 8, "val": 10, "test": 12}
    neither = TextData(path="a", test_path="c", val_fraction=0)
    assert split_stops({"train": 10, "test": 2}, neither) == {"train": 10, "test": 12}
    with pytest.raises(DataError, match=r"^data\.val_path=b: there is no text in it$"):
        split_stops({"train": 10, "val": 0}, val)


@pytest.mark.parametrize(
    ("n_chars", "val", "test", "empty"),
    [(1, 0.1, 0, "train"), (10, 0.01, 0.05, "val"), (5, 0.999, 0, "train")],
)
def test_an_empty_split_is_refused(n_chars: int, val: float, test: float, empty: str) -> None:
    size = f"{n_chars} character" + "s" * (n_chars > 1)
    with pytest.raises(DataError, match=f"the {empty} split would be empty: the text has {size}, with"):
        split_stops({"train": n_chars}, TextData(val_fraction=val, test_fraction=test))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"val_fraction": 0.5, "test_fraction": 0.5}, "leave nothing to train on"),
        ({"val_fraction": -0.1}, "val_fraction"),
        ({"val_fraction": 1}, "val_fraction"),
        ({"name": "pydoc", "path": "a.txt"}, "name='pydoc' and path='a.txt' are both set"),
        ({"field": "body"}, "field='body' is for JSONL files of your own: set path=FILE too; 'pydoc' has"),
        ({"order": "sorted"}, "order"),
        ({"val_path": "b.txt"}, "val_path='b.txt' is for a text of your own: set path=FILE too"),
        ({"path": "a", "val_path": "b", "val_fraction": 0.2}, "val_fraction=0.2 has no effect: the val text"),
        ({"path": "a", "test_path": "b", "test_fraction": 0.2}, "test_fraction=0.2 has no effect"),
        ({"path": "a", "val_path": "b", "test_fraction": 0.2}, "give the test text as a file too"),
        ({"pth": "a.txt"}, "did you mean 'path'?"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(TextData, settings)
    assert expected in str(caught.value)


def test_a_split_may_end_inside_a_document_or_between_two() -> None:
    chunks = [Chunk("ab", False), Chunk("cd", True), Chunk("e", False), Chunk("f", True), Chunk("g", True)]
    assert list(split_into_pieces(chunks, {"train": 3, "val": 6, "test": 7})) == [
        Piece("train", "abc", True, False),
        Piece("val", "d", False, True),
        Piece("val", "ef", True, True),
        Piece("test", "g", True, True),
    ]
    # The end of the first document is that of the training split, not the start of the next.
    assert list(split_into_pieces(chunks, {"train": 4})) == [Piece("train", "abcd", True, True)]


def test_an_end_without_text_stays_with_the_document_it_ends() -> None:
    chunks = [Chunk("ab", False), Chunk("", True), Chunk("cd", False), Chunk("", True)]
    assert list(split_into_pieces(chunks, {"train": 2, "val": 4})) == [
        Piece("train", "ab", True, True),
        Piece("val", "cd", True, True),
    ]


def test_text_without_spaces_is_cut_all_the_same() -> None:
    pieces = list(
        split_into_pieces([Chunk("x" * 100, False), Chunk("", True)], {"train": 100}, piece_chars=30)
    )
    assert [len(piece.text) for piece in pieces] == [30, 30, 30, 10]


documents_in_chunks = st.lists(
    st.lists(st.text(st.sampled_from(sorted(set(WORDS))), min_size=1, max_size=40), min_size=1, max_size=5),
    min_size=1,
    max_size=5,
)


@given(documents_in_chunks, st.integers(2, 50), st.data())
def test_no_character_is_lost_and_every_document_starts_and_ends_once(
    documents: list[list[str]], piece_chars: int, data: st.DataObject
) -> None:
    chunks = [Chunk(text, i == len(parts) - 1) for parts in documents for i, text in enumerate(parts)]
    whole = "".join(text for text, _ in chunks)
    cut = data.draw(st.integers(1, len(whole)))
    pieces = list(split_into_pieces(chunks, {"train": cut, "val": len(whole)}, piece_chars))
    assert "".join(p.text for p in pieces if p.split == "train") == whole[:cut]
    assert "".join(p.text for p in pieces if p.split == "val") == whole[cut:]
    assert sum(p.starts_document for p in pieces) == sum(p.ends_document for p in pieces) == len(documents)
    assert all(len(p.text) <= piece_chars for p in pieces)


@given(st.lists(st.sampled_from(WORDS.split(" ")), min_size=1, max_size=60), st.integers(40, 60))
def test_the_tokens_of_the_pieces_are_those_of_the_whole(words: list[str], piece_chars: int) -> None:
    text = " ".join(words)
    if not text:
        return
    pieces = split_into_pieces([Chunk(text, True)], {"train": len(text)}, piece_chars)
    assert [i for piece in pieces for i in BPE.encode(piece.text)] == BPE.encode(text).tolist()
