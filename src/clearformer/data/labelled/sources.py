"""Sources of labelled texts: the user's files or a built-in set; and holding out a part of them."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from clearformer.data.builtin import languages
from clearformer.data.holding_out import hold_out
from clearformer.data.labelled.config import LabelledData
from clearformer.data.labelled.generated import generated_texts
from clearformer.data.labelled.reading import LabelledText, read_labelled
from clearformer.data.reading import check_no_file_twice, existing_file, lines_as_bytes
from clearformer.errors import DataError, did_you_mean
from clearformer.files import data_folder

MOST_NAMED = 12  # labels in a message


@dataclass(frozen=True)
class LabelledTexts:
    """All texts of a data set by split (train first), in the order they were read."""

    description: str
    """Their name and place, for messages."""
    splits: Mapping[str, Sequence[LabelledText]]
    places: Mapping[str, str]
    """The file, or the name of another source, that each split's line numbers refer to."""
    given_labels: tuple[str, ...] | None = None
    """The classes, if they are known beforehand."""
    unlearnt: Mapping[str, int] = field(default_factory=dict)
    """For each label that no training text has, the number of held-out texts that were left out."""

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The classes: the given ones, or the labels of the training texts, sorted."""
        return self.given_labels or tuple(sorted({each.label for each in self.splits["train"]}))

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of every split's texts and labels, in order."""
        digest = hashlib.sha256()
        for name, texts in self.splits.items():
            digest.update(f"{name}\0{len(texts)}\0".encode())
            for each in texts:
                length = f"{len(each.text)}\0" if "\0" in each.text + each.label else ""  # else it is clear
                digest.update(f"{length}{each.text}\0{each.label}\0".encode())
        return digest.hexdigest()

    def where(self, split: str, line: int) -> str:
        """Return a text's place, for a message."""
        return f"{self.places[split]}, line {line}"

    def check_not_empty(self) -> None:
        """Refuse a split without texts.

        Raises:
            DataError: there is one; the message names its file.
        """
        for name, texts in self.splits.items():
            if not texts:
                raise DataError(f"{self.places[name]}: there are no texts in it")

    def check_several_labels(self) -> None:
        """Refuse data that leave nothing to classify.

        Raises:
            DataError: there is only one label.
        """
        if len(self.labels) == 1:
            raise DataError(
                f"{self.description}: every training text has the label {self.labels[0]!r}: a classifier needs two "
                "or more"
            )

    def check_known_labels(self) -> None:
        """Refuse a label that is not among the classes.

        Raises:
            DataError: there is one; the message names its line.
        """
        given, known = self.given_labels is not None, set(self.labels)
        absent = "among the classes, which are" if given else "in training, which has"
        remedy = "remove the text" if given else "add training texts with it"
        for name, texts in self.splits.items():
            for each in texts:
                if each.label not in known:
                    raise DataError(
                        f"{self.where(name, each.line)}: the label {each.label!r} is not {absent} "
                        f"{_listed(self.labels)}: correct it, or {remedy}"
                    )


def open_labelled(config: LabelledData, uses_labels: bool = True) -> LabelledTexts:
    """Read and check the texts that `config` names.

    Args:
        config: The texts and their splits.
        uses_labels: Whether the labels are to be learnt; if not, any will do, as many or few as there are.

    Raises:
        DataError: there is no such name or file, a line of it cannot be used, or the texts cannot be learnt from.
    """
    if config.makes_its_own:
        description = f"{config.kind}: {config.about()}"
        texts = LabelledTexts(description, {"train": generated_texts(config)}, {"train": description})
    else:
        texts = _texts_of_files(config) if config.path is not None else _built_in_texts(config)
    texts = replace(texts, given_labels=config.labels)
    texts.check_not_empty()
    if not uses_labels:
        every = {each.label for of_split in texts.splits.values() for each in of_split}
        texts = replace(texts, given_labels=tuple(sorted(every)))
        return _hold_out(texts, config) if "val" not in texts.splits and config.held_out else texts
    texts.check_several_labels()
    if "val" not in texts.splits and config.held_out:
        texts = _hold_out(texts, config)
        texts.check_several_labels()
    texts.check_known_labels()
    return texts


def _hold_out(texts: LabelledTexts, config: LabelledData) -> LabelledTexts:
    """Take a validation split from the training texts (see `holding_out`).

    A held-out text with a label that no training text has is left out: the label cannot be learnt, and moving the text
    to training would make its split depend on other texts.
    """
    drawn = hold_out(texts.splits["train"], {"val": config.held_out}, "text")
    learnt = set(texts.given_labels or (each.label for each in drawn["train"]))
    val = [each for each in drawn["val"] if each.label in learnt]
    unlearnt = Counter(each.label for each in drawn["val"] if each.label not in learnt)
    if not val:
        column = f"is data.label_field={config.label_field} the right column? Otherwise "
        raise DataError(
            f"{texts.description}: no label has both training and held-out texts: "
            f"{column if config.path is not None else ''}give more texts per label, or change "
            f"data.val_fraction={float(config.held_out)} (0 holds none out)"
        )
    splits = {"train": drawn["train"], "val": val} | {k: v for k, v in texts.splits.items() if k != "train"}
    places = {"val": texts.places["train"]} | dict(texts.places)
    return replace(texts, splits=splits, places=places, unlearnt=unlearnt)


# --- the user's own ----------------------------------------------------------------------------------------


def _texts_of_files(config: LabelledData) -> LabelledTexts:
    given = {"train": ("path", config.path), "val": ("val_path", config.val_path)}
    given["test"] = ("test_path", config.test_path)
    paths = {name: existing_file(field, path) for name, (field, path) in given.items() if path is not None}
    check_no_file_twice({given[name][0]: path for name, path in paths.items()})
    splits = {
        name: list(read_labelled(path, config.text_field, config.label_field, config.column_names))
        for name, path in paths.items()
    }
    return LabelledTexts(str(paths["train"]), splits, {name: str(path) for name, path in paths.items()})


# --- built in ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelledBuiltIn:
    """A set of labelled texts that is known by name."""

    about: str
    size: str
    where: Callable[[], str | None]
    """Returns where it is on this machine, or None if it is not there."""
    read: Callable[[], LabelledTexts]
    """Reads the texts, with the set's own splits."""


@dataclass(frozen=True)
class _Files:
    """The files of a known set in `$CLEARFORMER_DATA`, plain or with `.gz`, and their readers."""

    title: str
    names: Mapping[str, str]
    readers: Mapping[str, Callable[[Path], Iterator[LabelledText]]]
    """The reader of each split's file."""
    label_names: Mapping[str, str]
    """Names for the labels in the files; empty if these are words already."""
    home: str

    def find(self) -> dict[str, Path] | None:
        """Return the file of each split if all are on this machine, else None."""
        own = data_folder()
        if own is None:
            return None
        found = {}
        for split, name in self.names.items():
            paths = [own / f"{name}{ending}" for ending in ("", ".gz")]
            path = next((path for path in paths if path.is_file()), None)
            if path is None:
                return None
            found[split] = path
        return found

    def where(self) -> str | None:
        found = self.find()
        return str(found["train"].parent) if found else None

    def read(self) -> LabelledTexts:
        found = self.find()
        if found is None:
            raise DataError(
                f"data.name={self.names['train'].partition('/')[0]}: not on this machine: set CLEARFORMER_DATA to a "
                f"folder that has {' and '.join(self.names.values())}, plain or .gz (from {self.home})"
            )
        splits = {
            split: [each._replace(label=self._named(each.label)) for each in self.readers[split](path)]
            for split, path in found.items()
        }
        description = f"{self.title}, {found['train'].parent}"
        return LabelledTexts(description, splits, {split: str(path) for split, path in found.items()})

    def _named(self, label: str) -> str:
        return self.label_names.get(label, label)


def _read_trec(path: Path) -> Iterator[LabelledText]:
    """Read lines of a label, a space and a question, in Latin-1 as published."""
    for line in lines_as_bytes(path):
        if text := line.content.decode("latin-1").strip():
            label, _, question = text.partition(" ")
            yield LabelledText(question.strip(), label, line.number)


def _read_agnews(path: Path) -> Iterator[LabelledText]:
    return read_labelled(path, "text", "label", columns=("text", "label"))


SST2 = _Files(
    title="SST-2, phrases and sentences of film reviews",
    names={"train": "sst2/train.tsv", "val": "sst2/dev.tsv"},
    # The text column has another name in GLUE's development file than in its training file.
    readers={
        "train": partial(read_labelled, text_field="sentence", label_field="label"),
        "val": partial(read_labelled, text_field="content", label_field="label"),
    },
    label_names={"0": "negative", "1": "positive"},
    home="gluebenchmark.com/tasks",
)
AGNEWS = _Files(
    title="AG News, some 10,000 of its training texts",
    names={"train": "agnews/train10k.tsv", "test": "agnews/test.tsv"},
    readers=dict.fromkeys(("train", "test"), _read_agnews),
    label_names={},
    home="AG's corpus of news articles",
)
TREC = _Files(
    title="TREC, what a question asks for",
    names={"train": "trec/train.txt", "test": "trec/test.txt"},
    readers=dict.fromkeys(("train", "test"), _read_trec),
    label_names={
        "0": "description",
        "1": "entity",
        "2": "abbreviation",
        "3": "human",
        "4": "location",
        "5": "number",
    },
    home="cogcomp.seas.upenn.edu/Data/QA/QC, the labels as numbers",
)


def _read_languages() -> LabelledTexts:
    named = languages.named_languages()
    texts = [LabelledText(name, language, number) for number, (name, language) in enumerate(named, start=1)]
    description = languages.source_of_names()
    return LabelledTexts(description, {"train": texts}, {"train": description})


LABELLED_BUILT_IN = {
    "languages": LabelledBuiltIn(
        about="names of countries, languages and currencies, by language; the default",
        size="about 19,000 names in 26 languages",
        where=lambda: "Babel's copy of CLDR" if languages.has_babel() else None,
        read=_read_languages,
    ),
    "sst2": LabelledBuiltIn(
        about="SST-2: phrases of film reviews, positive or negative",
        size="67,349 phrases, 872 sentences for validation",
        where=SST2.where,
        read=SST2.read,
    ),
    "agnews": LabelledBuiltIn(
        about="AG News: articles about the world, sports, business or science",
        size="10,001 articles, 7,600 for testing",
        where=AGNEWS.where,
        read=AGNEWS.read,
    ),
    "trec": LabelledBuiltIn(
        about="TREC: questions, by the kind of thing they ask for",
        size="5,452 questions of six kinds, 500 for testing",
        where=TREC.where,
        read=TREC.read,
    ),
}


def _built_in_texts(config: LabelledData) -> LabelledTexts:
    name = config.name or config.default_name
    if name not in LABELLED_BUILT_IN:
        hint = did_you_mean(name, LABELLED_BUILT_IN) or f"; choose from {', '.join(LABELLED_BUILT_IN)}"
        raise DataError(
            f"data.name={name}: no such labelled texts{hint} (for your own texts: data.path=FILE)"
        )
    texts = LABELLED_BUILT_IN[name].read()
    if "val" in texts.splits and config.val_fraction is not None:
        raise DataError(
            f"data.val_fraction={config.val_fraction} has no effect: {name} has validation texts of its own"
        )
    return texts


def _listed(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - MOST_NAMED} more" if len(labels) > MOST_NAMED else ""
    return ", ".join(map(repr, labels[:MOST_NAMED])) + more
