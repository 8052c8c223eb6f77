"""Kinds of data and of tokenizers of one's own: registered, recorded by name, read again, and refused in one line."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

import clearformer as cf
from clearformer.cli import main
from clearformer.config import Spec, resolve, slot_variants
from clearformer.data import Split, prepare_data
from clearformer.errors import ConfigError, DataError, TokenizerError
from clearformer.registry import (
    LabelledData,
    PairsData,
    TextData,
    VocabularyTokenizer,
    import_parts,
    register,
    unregister,
)
from clearformer.testing import check_kind
from clearformer.text import ByteTokenizerSpec, CharTokenizerSpec, load_tokenizer
from clearformer.training.config import RunConfig

SLOTS = ("data", "tokenizer")


class Counts(TextData):
    """The numbers, counted up."""

    kind: Literal["counts"] = "counts"  # type: ignore[assignment]
    n: int = 90

    def documents(self) -> Iterator[str]:
        for number in range(self.n):
            yield f"after {number} comes {number + 1}\n"


class Doubled(PairsData):
    """Each number, and its double."""

    kind: Literal["doubled"] = "doubled"  # type: ignore[assignment]
    val_fraction: float | None = 0.1

    def pairs(self) -> Iterator[tuple[str, str]]:
        for number in range(120):
            yield str(number), str(2 * number)


class Parity(LabelledData):
    """Which numbers are even."""

    kind: Literal["parity"] = "parity"  # type: ignore[assignment]

    def labelled_texts(self) -> Iterator[tuple[str, str]]:
        for number in range(150):
            yield f"the number {number}", ("odd", "even")[number % 2 == 0]


class Words(VocabularyTokenizer):
    """Words, and what stands between them."""

    def pieces(self, text: str) -> Iterable[str]:
        return re.findall(r"\w+|\W", text)


class WordsSpec(Spec):
    kind: Literal["words"] = "words"
    tokenizer_type: ClassVar[type[VocabularyTokenizer]] = Words

    def train(self, texts: Iterable[str], specials: Sequence[str] = ()) -> Words:
        return Words(
            sorted({piece for text in texts for piece in re.findall(r"\w+|\W", text)}), [*specials, "<unk>"]
        )


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    before = {slot: set(slot_variants(RunConfig.model_fields[slot])) for slot in SLOTS}
    yield
    for slot, kinds in before.items():
        for kind in set(slot_variants(RunConfig.model_fields[slot])) - kinds:
            unregister(slot, kind)  # type: ignore[arg-type]


# --- tokenizers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("specials", [(), ("<unk>",)])
def test_an_empty_piece_is_no_token(specials: tuple[str, ...]) -> None:
    class Split(VocabularyTokenizer):
        kind = "split"

        def pieces(self, text: str) -> Iterable[str]:
            return re.split("(a)", text)

    tokenizer = Split(["a", "b"], specials)
    assert tokenizer.encode("aba").tolist() == [0, 1, 0]
    assert tokenizer.encode("").tolist() == []


# --- data -------------------------------------------------------------------------------------------------


def test_pairs_that_are_none_are_told_so() -> None:
    register("data")(type("Nothing", (Doubled,), {"pairs": lambda self: iter(())}))
    with pytest.raises(DataError, match=r"^data\.kind=doubled: pairs\(\) yields no pairs$"):
        cf.train(data="doubled", quiet=True)


@pytest.mark.parametrize("kind", [Counts, Doubled, Parity])
def test_a_kind_of_data_is_trained_on_and_resumed_as_the_package_s_are(kind: Any) -> None:
    register("data")(kind)
    check_kind(kind(), d_model=12, n_layers=1, attention={"n_heads": 2})


def test_data_hold_what_the_kind_yields_and_its_settings_find_other_data() -> None:
    register("data")(Counts)
    few, many = (prepare_data(Counts(n=n), ByteTokenizerSpec()) for n in (20, 90))

    text = few.splits["train"]
    assert few.tokenizer.decode(text.read(0, 17)) == "after 0 comes 1\na"  # type: ignore[union-attr]
    assert len(few.splits["train"]) < len(many.splits["train"])
    assert few.manifest["source"]["description"] == "counts: The numbers, counted up."
    assert few.folder != many.folder
    assert prepare_data(Counts(n=20), ByteTokenizerSpec()).folder == few.folder


def test_no_pair_of_a_kind_s_own_is_on_both_sides() -> None:
    data = prepare_data(Doubled(), ByteTokenizerSpec())
    sides = {name: set(split.source_texts) for name, split in data.splits.items()}  # type: ignore[union-attr]

    assert sides["train"]
    assert sides["val"]
    assert not sides["train"] & sides["val"]


def test_a_kind_is_named_on_the_command_line_and_its_run_opens_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = tmp_path / "own_data_parts.py"
    parts.write_text(PARTS)
    brief = ["train.max_steps=3", "train.max_seconds=none", "train.compile=false", "train.device=cpu"]
    brief += ["model.d_model=8", "model.n_layers=1", "model.attention.n_heads=2", "model.max_seq_len=16"]
    names = ["data=chimes", "data.n=40", "tokenizer=cut"]

    assert main(["train", "--import", str(parts), "quick", *names, *brief, "--run", "own"]) == 0
    assert (
        main(["data", "prepare", "--import", str(parts), *names]) == 0
    )  # imported after the kinds were added
    recorded = (tmp_path / "runs" / "own" / "config.toml").read_text()
    assert 'kind = "chimes"' in recorded
    assert "n = 40" in recorded
    capsys.readouterr()
    assert main(["eval", "own", "--import", str(parts), "--json"]) == 0
    other = tmp_path / "other.txt"
    other.write_text("bong 1 bong 2\n" * 30)
    assert main(["eval", "own", "--import", str(parts), "--data", str(other)]) == 0
    capsys.readouterr()

    unregister("data", "chimes")
    assert main(["eval", "own"]) == 2
    told = capsys.readouterr().err
    assert "data.kind is one of" in told
    assert "load your own kinds with --import FILE.py" in told
    assert told.count("\n") == 1


PARTS = '''
import re
from typing import ClassVar, Literal
import clearformer as cf
from clearformer.config import Spec
from clearformer.registry import TextData, VocabularyTokenizer

@cf.register("data")
class Chimes(TextData):
    """The bells of a clock."""
    kind: Literal["chimes"] = "chimes"
    n: int = 20
    def documents(self):
        return ("bong " * (hour % 12 + 1) + f"{hour}\\n" for hour in range(self.n))

class Cut(VocabularyTokenizer):
    def pieces(self, text):
        return re.findall("[a-z]+|[^a-z]", text)

@cf.register("tokenizer")
class CutSpec(Spec):
    kind: Literal["cut"] = "cut"
    tokenizer_type: ClassVar = Cut
    def train(self, texts, specials=()):
        return Cut(sorted({p for text in texts for p in re.findall("[a-z]+|[^a-z]", text)}), [*specials, "<unk>"])
'''


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"path": "a.txt"}, "path='a.txt' has no effect: this kind makes its own data in documents()"),
        ({"name": "pydoc"}, "name='pydoc' has no effect"),
    ],
)
def test_what_a_kind_makes_lies_nowhere_else(settings: dict[str, str], line: str) -> None:
    register("data")(Counts)
    with pytest.raises(ConfigError, match=re.escape(line)):
        resolve(RunConfig, {"data": {"kind": "counts"} | settings})


def made(base: Any, method: str, value: Any) -> Any:
    """A kind of data whose method returns a value."""
    body = {"__annotations__": {"kind": Literal["odd"]}, "kind": "odd", method: lambda self: value}
    return type("Odd", (base,), {"__module__": __name__, **body})


@pytest.mark.parametrize(
    ("base", "value", "line"),
    [
        (TextData, ["a", 7], "the text odd: its function must yield strings; document 2 is 7"),
        (TextData, "a", "the text odd: its function must yield documents; it returned 'a'"),
        (
            PairsData,
            [("a", "b"), ("c", " ")],
            "data.kind=odd: pairs() must yield (source, target), two strings",
        ),
        (PairsData, [("a\nb", "c")], "data.kind=odd: each side of a pair must be one line; number 1 is"),
        (LabelledData, [("a", "b"), ("c", 3)], "data.kind=odd: labelled_texts() must yield (text, label)"),
        (LabelledData, ["ab"], "number 1 is 'ab'"),
        (TextData, ["a", "b\ud800"], r"the text odd: document 2 has half of a surrogate pair ('\ud800')"),
        (PairsData, [("a", "b\ud800")], "data.kind=odd: number 1 has half of a surrogate pair"),
        (LabelledData, [("a\ud800", "b")], "data.kind=odd: number 1 has half of a surrogate pair"),
    ],
)
def test_what_is_no_such_data_is_refused_with_its_number(base: Any, value: Any, line: str) -> None:
    with pytest.raises(DataError, match=re.escape(line)):
        prepare_data(made(base, base.made_by, value)(), ByteTokenizerSpec())


def test_an_empty_document_of_a_kind_is_none_as_in_files() -> None:
    with_empty, without = (
        prepare_data(
            made(TextData, "documents", documents)(val_fraction=0), CharTokenizerSpec(bos=True, eos=True)
        )
        for documents in (["abcd" * 5, "", "ddd" * 6, ""], ["abcd" * 5, "ddd" * 6])
    )
    one, other = (data.splits["train"] for data in (with_empty, without))
    assert isinstance(one, Split)
    assert isinstance(other, Split)
    assert one.read(0, len(one)).tolist() == other.read(0, len(other)).tolist()


def test_sides_that_share_a_tab_are_told_apart() -> None:
    one, other = ([(f"a{tab}", f"{rest}c")] * 20 for tab, rest in (("\tb", ""), ("", "b\t")))
    folders = {
        prepare_data(made(PairsData, "pairs", pairs)(val_fraction=0), ByteTokenizerSpec()).folder
        for pairs in (one, other)
    }
    assert len(folders) == 2


def test_labels_that_a_kind_makes_are_in_no_column() -> None:
    kind = made(LabelledData, "labelled_texts", [(f"text {n}", f"label {n}") for n in range(40)])

    with pytest.raises(
        DataError, match=r"held-out texts: give more texts per label, or change data.val_fraction"
    ):
        prepare_data(kind(), ByteTokenizerSpec())
    with pytest.raises(
        ConfigError, match=r"label_field='b' is for texts in files: kind=odd makes its own; remove it"
    ):
        kind(label_field="b")


def test_a_kind_of_data_that_makes_nothing_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"Odd: a kind of data must be a subclass of TextData with documents\(\)"
    ):
        register("data")(made(TextData, "texts", ()))


# --- tokenizers -------------------------------------------------------------------------------------------


def test_a_tokenizer_of_one_s_own_is_trained_with_saved_and_read_again(tmp_path: Path) -> None:
    register("tokenizer")(WordsSpec)
    tokenizer = WordsSpec().train(["two words, and two more"])
    tokenizer.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json")

    assert isinstance(again, Words)
    assert again.fingerprint() == tokenizer.fingerprint()
    assert again.decode(again.encode("more words, and two")) == "more words, and two"
    assert again.encode("three words")[0] == again.unk_id
    check_kind(WordsSpec(), d_model=12, n_layers=1, attention={"n_heads": 2})


OWN_WORDS = r"""
import re
from typing import ClassVar, Literal
from clearformer.config import Spec
from clearformer.registry import VocabularyTokenizer, register

def cut(text):
    return re.findall("PATTERN", text)

class OwnWords(VocabularyTokenizer):
    def pieces(self, text):
        return cut(text)

@register("tokenizer")
class OwnWordsSpec(Spec):
    kind: Literal["own_words"] = "own_words"
    tokenizer_type: ClassVar[type] = OwnWords

    def train(self, texts, specials=()):
        return OwnWords(sorted({piece for text in texts for piece in cut(text)}), specials)
"""


def test_another_code_of_a_tokenizer_trains_and_prepares_again(tmp_path: Path) -> None:
    """The kept tokenizer and the kept tokens are of the code that made them."""
    (tmp_path / "text.txt").write_text("the cat sat, " * 40)
    data = TextData(path=str(tmp_path / "text.txt"), val_fraction=0)
    sizes = []
    for name, pattern in (("first", r"\\w+|\\W"), ("second", r"\\w|\\W")):
        file = tmp_path / f"{name}.py"
        file.write_text(OWN_WORDS.replace("PATTERN", pattern))
        import_parts(file)
        own: Any = slot_variants(RunConfig.model_fields["tokenizer"])["own_words"]
        sizes.append(len(prepare_data(data, own()).splits["train"]))
        unregister("tokenizer", "own_words")
    assert sizes[0] < sizes[1] == 40 * len("the cat sat, ")


def test_a_train_that_returns_no_tokenizer_is_told_so() -> None:
    class Forgetful(WordsSpec):
        kind: Literal["forgetful"] = "forgetful"  # type: ignore[assignment]

        def train(self, texts: Iterable[str], specials: Sequence[str] = ()) -> Any:
            WordsSpec().train(texts, specials)

    register("tokenizer")(Forgetful)
    with pytest.raises(TokenizerError, match=r"^tokenizer\.kind: train must return a tokenizer; got None"):
        check_kind(Forgetful(), d_model=12, n_layers=1, attention={"n_heads": 2})


def test_a_piece_that_the_vocabulary_lacks_is_named_with_its_place() -> None:
    with pytest.raises(TokenizerError, match=r"'t' \(U\+0074\) at line 2, column 1 begins 'two', which the"):
        Words(["one", "\n"]).encode("one\ntwo")


def test_pieces_that_leave_something_out_are_refused() -> None:
    class Leaves(Words):
        kind = "leaves"

        def pieces(self, text: str) -> Iterable[str]:
            return text.split()

    with pytest.raises(TokenizerError, match="of kind leaves have 2 characters, but the text has 3"):
        Leaves(["a", "b"]).encode("a b")


def test_a_tokenizer_s_file_of_a_kind_that_is_not_there_says_how_to_bring_it(tmp_path: Path) -> None:
    register("tokenizer")(WordsSpec)
    WordsSpec().train(["a"]).save(tmp_path / "tokenizer.json")
    unregister("tokenizer", "words")

    with pytest.raises(
        TokenizerError, match=r"tokenizer.json: there is no tokenizer of kind 'words'; .* --import"
    ):
        load_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    "content", ['{"clearformer_kind": "words"}', '{"clearformer_kind": "words", "tokens": [1]}']
)
def test_a_damaged_file_of_a_kind_of_one_s_own_is_refused(content: str, tmp_path: Path) -> None:
    register("tokenizer")(WordsSpec)
    (tmp_path / "tokenizer.json").write_text(content)

    with pytest.raises(TokenizerError, match="damaged: its tokens and specials are not lists of strings"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_a_tokenizer_of_one_s_own_is_not_written_for_others(tmp_path: Path) -> None:
    register("tokenizer")(WordsSpec)
    tokenizer = WordsSpec().train(["a b"])
    model = cf.build(cf.ModelConfig(vocab_size=tokenizer.vocab_size, d_model=16, n_layers=1))

    with pytest.raises(TokenizerError, match=r"tokenizer\.kind=words does not fit: it is a kind of your own"):
        cf.to_hf(cf.Run(model, tokenizer), tmp_path / "out")


def test_a_tokenizer_type_is_one_of_the_class_that_files_are_read_as() -> None:
    class Other(WordsSpec):
        kind: Literal["other"] = "other"  # type: ignore[assignment]
        tokenizer_type: ClassVar[Any] = str

    with pytest.raises(ConfigError, match="Other: tokenizer_type must be a subclass of"):
        register("tokenizer")(Other)
