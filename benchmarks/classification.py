"""Accuracy of small encoders on SST-2, TREC and AG News, from scratch and after pre-training.

    python benchmarks/classification.py [--tasks sst2 trec agnews] [--folder FOLDER] [--json FILE]

Three stages for each task, each for both starts (from scratch; pre-trained):

- choice: each of a few stated settings (`TASKS`) is trained on a part of the training texts and measured on the rest
  of them; the best accuracy there wins, and the choice is written down in FOLDER/TASK.json, where it stays;
- training: five seeds of what that file names learn from all training texts, as the best classifier would;
- report: only now is the file with the reported split opened (SST-2's dev, the others' test), and measured once for
  every seed, without those of its texts that stand in training too.

Which training texts are held out for the choice follows from their own content, so that one that stands there twice is
on one side. SST-2's training texts are phrases of sentences: there whole sentences are held out, with every phrase that
stands in no other sentence, as the dev split's sentences are held out of all training phrases.

Encoders are pre-trained (`PRETRAINING`) to fill in masked tokens of SST-2's training sentences or of the English
training texts of all four data sets; no reported text is among them. Some go on from there with the same English, or
with the texts that the classifier will learn from (task-adaptive pre-training, Gururangan et al. 2020). One reads the
definitions of WordNet too (Fellbaum 1998), and then learns to tell from a noun or its definition which of WordNet's
kinds of nouns it is, such as person or location, before it learns to classify questions (an intermediate task, Phang et
al. 2018). Another reads 75,000 reviews of films (Maas et al. 2011), and may then learn to tell from a sentence whether
its reviewer liked the film. The baseline is that of `clearformer eval`, trained on the same texts as the encoder.

CLEARFORMER_DATA names the folder with `sst2`, `trec`, `agnews` and `multi30k`; WNSEARCHDIR that of WordNet 3.0's
`data.noun` and the like, by default where Debian's package wordnet-base has them; ACLIMDB the folder `aclImdb` of the
reviews (ai.stanford.edu/~amaas/data/sentiment), of which `train` is read. A killed script goes on where it stood.
Prints the table, and writes all figures to FILE.
"""

import argparse
import gzip
import hashlib
import json
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from clearformer.data.holding_out import PLACES, hold_out, own_text, place_of
from clearformer.data.labelled.reading import LabelledText
from clearformer.data.labelled.sources import AGNEWS, SST2, TREC
from clearformer.files import runs_folder, write_file

HELD_OUT = Fraction(1, 5)
CHOICE_SEEDS = (101, 102)
SEEDS = (1, 2, 3, 4, 5)
T_95 = {5: 2.776}  # Student's t for a two-sided interval of 95%, by the number of seeds
STARTS = ("scratch", "pretrained")

PLAIN = ["train.compile=false", "train.max_seconds=none"]
CLASSIFIER = "model.pooling=mean train.label_smoothing=0.1 train.ema=0.99 data.too_long=truncate"
OF_ENGLISH = "tokenizer.lowercase=true tokenizer.vocab_size=12000 model.max_seq_len=96"
OF_MORE_TEXTS = (
    "tokenizer.lowercase=true tokenizer.vocab_size=16000 model.max_seq_len=96 model.n_layers=2 model.d_model=256 "
    "model.attention.n_heads=8 data.too_long=truncate train.batch_size=128 train.max_steps=6000"
)
OF_REVIEWS = "tokenizer.lowercase=true tokenizer.vocab_size=14000"
CUT = "train.objective.wordpiece_dropout"
BEGUN_WITH = "train.pretrained="
LABELLED = ("pos", "neg")  # folders of reviews
OPINIONS = (*LABELLED, "unsup")
MIXED_KIND = "03"  # WordNet's file of the nouns above all others, of every kind


@dataclass(frozen=True)
class Pretraining:
    """The settings of an encoder that learns from other texts first; `after` names the one that it begins with."""

    settings: str
    texts: str
    """`reviews`, SST-2's sentences; `english`, the training texts of all data sets; `dictionary`, these and WordNet's
    definitions; `nouns`, WordNet's nouns; `films`, `english` and the sentences of reviews of films; `stars`, the
    sentences of those with a label; or a task, of whose texts it reads those alone that the classifier learns from, so
    that there is one for each part."""
    after: str | None = None
    learns: Literal["masked", "classify"] = "masked"
    """To fill in masked tokens, or the labels of the texts."""


PRETRAINING = {
    "sst2-masked": Pretraining(f"{OF_REVIEWS} train.batch_size=64 train.max_steps=4000", "reviews"),
    "english-masked": Pretraining(
        f"{OF_ENGLISH} data.too_long=truncate train.batch_size=128 train.max_steps=4000", "english"
    ),
    "english-longer": Pretraining(
        "data.too_long=truncate train.batch_size=128 train.max_steps=4000 train.lr=0.006",
        "english",
        after="english-masked",
    ),
    "dictionary-masked": Pretraining(OF_MORE_TEXTS, "dictionary"),
    "dictionary-nouns": Pretraining(
        "model.pooling=mean train.ema=0.99 data.too_long=truncate train.batch_size=128 train.max_steps=3000 "
        "train.lr=0.004 model.dropout=0.1",
        "nouns",
        after="dictionary-masked",
        learns="classify",
    ),
    "films-masked": Pretraining(OF_MORE_TEXTS, "films"),
    "films-stars": Pretraining(
        "model.pooling=mean train.ema=0.99 data.too_long=truncate train.batch_size=128 train.max_steps=2500 "
        "train.lr=0.004 model.dropout=0.1",
        "stars",
        after="films-masked",
        learns="classify",
    ),
    "agnews-masked": Pretraining(
        "data.too_long=truncate train.batch_size=128 train.max_steps=3000 train.lr=0.004",
        "agnews",
        after="english-masked",
    ),
}


@dataclass(frozen=True)
class Task:
    """A task's files, and the settings among which its held-out training texts choose."""

    title: str
    files: Any
    reported: str
    pretraining: str
    from_scratch: str
    grid: Mapping[str, Sequence[str]]
    """Of each start, the settings that are tried, each as `key=value ...`. One after pre-training that names no other
    begins with `pretraining`."""


TASKS = {
    "sst2": Task(
        "SST-2, dev",
        SST2,
        "val",
        "sst2-masked",
        OF_REVIEWS,
        {
            "scratch": [
                "train.lr=0.004 train.max_steps=1000 model.dropout=0.3",
                "train.lr=0.004 train.max_steps=1000 model.dropout=0.3 train.objective.hidden=0.2",
                "train.lr=0.004 train.max_steps=1000 model.dropout=0.5",
                f"train.lr=0.004 train.max_steps=1000 model.dropout=0.5 {CUT}=0.3",
            ],
            "pretrained": [
                "train.lr=0.004 train.max_steps=1000 model.dropout=0.3",
                "train.lr=0.002 train.max_steps=1000 model.dropout=0.3",
                "train.lr=0.008 train.max_steps=1500 model.dropout=0.2",
                "train.lr=0.004 train.max_steps=2000 model.dropout=0.2",
                f"{BEGUN_WITH}english-masked train.lr=0.001 train.max_steps=2000 model.dropout=0.2",
                f"{BEGUN_WITH}english-masked train.lr=0.002 train.max_steps=1000 model.dropout=0.2",
                f"{BEGUN_WITH}english-masked train.lr=0.002 train.max_steps=2000 model.dropout=0.2",
                f"{BEGUN_WITH}english-masked train.lr=0.002 train.max_steps=2000 model.dropout=0.2 {CUT}=0.1",
                f"{BEGUN_WITH}english-masked train.lr=0.002 train.max_steps=2000 model.dropout=0.2 train.r_drop=1",
                f"{BEGUN_WITH}english-masked train.lr=0.004 train.max_steps=2000 model.dropout=0.2",
                f"{BEGUN_WITH}english-masked train.lr=0.004 train.max_steps=2000 model.dropout=0.3",
                f"{BEGUN_WITH}english-masked train.lr=0.004 train.max_steps=4000 model.dropout=0.2",
                f"{BEGUN_WITH}english-longer train.lr=0.002 train.max_steps=2000 model.dropout=0.2",
                f"{BEGUN_WITH}films-masked train.lr=0.002 train.max_steps=2000 model.dropout=0.2",
                f"{BEGUN_WITH}films-stars train.lr=0.001 train.max_steps=1000 model.dropout=0.2",
                f"{BEGUN_WITH}films-stars train.lr=0.002 train.max_steps=1000 model.dropout=0.2",
                f"{BEGUN_WITH}films-stars train.lr=0.002 train.max_steps=2000 model.dropout=0.2",
            ],
        },
    ),
    "trec": Task(
        "TREC, test",
        TREC,
        "test",
        "english-masked",
        OF_ENGLISH,
        {
            "scratch": [
                "train.lr=0.004 train.max_steps=800 model.dropout=0.3",
                "train.lr=0.004 train.max_steps=800 model.dropout=0.3 train.objective.hidden=0.2",
                f"train.lr=0.004 train.max_steps=800 model.dropout=0.3 {CUT}=0.3",
                f"train.lr=0.004 train.max_steps=800 model.dropout=0.3 {CUT}=0.5",
                f"train.lr=0.004 train.max_steps=1500 model.dropout=0.3 {CUT}=0.3",
            ],
            "pretrained": [
                "train.lr=0.004 train.max_steps=800 model.dropout=0.3",
                "train.lr=0.004 train.max_steps=800 model.dropout=0.3 train.objective.hidden=0.2",
                "train.lr=0.004 train.max_steps=500 model.dropout=0.3",
                "train.lr=0.008 train.max_steps=1000 model.dropout=0.3",
                "train.lr=0.004 train.max_steps=1500 model.dropout=0.2",
                f"{BEGUN_WITH}dictionary-masked train.lr=0.002 train.max_steps=600 model.dropout=0.2",
                f"{BEGUN_WITH}dictionary-masked train.lr=0.004 train.max_steps=600 model.dropout=0.2",
                f"{BEGUN_WITH}dictionary-nouns train.lr=0.004 train.max_steps=600 model.dropout=0.2",
                f"{BEGUN_WITH}dictionary-nouns train.lr=0.004 train.max_steps=600 model.dropout=0.3",
                f"{BEGUN_WITH}dictionary-nouns train.lr=0.004 train.max_steps=1000 model.dropout=0.3",
            ],
        },
    ),
    "agnews": Task(
        "AG News, test",
        AGNEWS,
        "test",
        "english-masked",
        OF_ENGLISH,
        {
            "scratch": [
                "train.lr=0.002 train.max_steps=600 model.dropout=0.3",
                "train.lr=0.002 train.max_steps=600 model.dropout=0.3 train.objective.hidden=0.3",
            ],
            "pretrained": [
                "train.lr=0.001 train.max_steps=600 model.dropout=0.3 train.objective.hidden=0.3",
                "train.lr=0.002 train.max_steps=600 model.dropout=0.3 train.objective.hidden=0.3",
                "train.lr=0.004 train.max_steps=600 model.dropout=0.3 train.objective.hidden=0.3",
                "train.lr=0.004 train.max_steps=1000 model.dropout=0.3 train.objective.hidden=0.3",
                "train.lr=0.004 train.max_steps=2000 model.dropout=0.3 train.objective.hidden=0.3",
                "train.lr=0.002 train.max_steps=2000 model.dropout=0.3 train.objective.hidden=0.3",
                f"{BEGUN_WITH}agnews-masked train.lr=0.004 train.max_steps=1000 model.dropout=0.3 "
                "train.objective.hidden=0.3",
            ],
        },
    ),
}


# --- texts -------------------------------------------------------------------------------------------------


def texts_of(task: str, split: str) -> list[LabelledText]:
    """One split of a task as published; no other file of it is opened."""
    files = TASKS[task].files
    return list(files.readers[split](files.find()[split]))


def write_training_texts(task: str, folder: Path) -> None:
    """Writes `all.jsonl`, and what it is split into: `learning.jsonl` and `held_out.jsonl`."""
    texts = texts_of(task, "train")
    learning, held_out = (sentences_apart if task == "sst2" else texts_apart)(texts)
    for name, kept in (("learning", learning), ("held_out", held_out), ("all", texts)):
        write_texts(folder / f"{name}.jsonl", kept)


def texts_apart(texts: Sequence[LabelledText]) -> tuple[list[LabelledText], list[LabelledText]]:
    """The texts to learn from and those held out, as `data.val_fraction` splits them."""
    splits = hold_out(texts, {"val": HELD_OUT}, "text")
    return splits["train"], splits["val"]


def sentences_apart(texts: Sequence[LabelledText]) -> tuple[list[LabelledText], list[LabelledText]]:
    """The phrases that stand in some sentence to learn from, and the sentences held out."""
    sentences = longest([each.text for each in texts])
    held_out = {each for each in sentences if place_of(own_text(each)) < HELD_OUT * PLACES}
    stretches = {stretch for each in sentences if each not in held_out for stretch in stretches_of(each)}
    learning = [each for each in texts if " ".join(each.text.split()) in stretches]
    return learning, [each for each in texts if each.text in held_out]


def longest(phrases: Iterable[str]) -> list[str]:
    """The phrases that stand in no longer one."""
    inside: set[str] = set()
    kept = []
    for phrase in sorted(set(phrases), key=lambda text: (-len(text.split()), text)):
        if " ".join(phrase.split()) not in inside:
            kept.append(phrase)
            inside.update(stretches_of(phrase))
    return kept


def stretches_of(text: str) -> set[str]:
    """The words of a text from any one to any later one."""
    words = text.split()
    return {" ".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}


def write_texts(path: Path, texts: Iterable[LabelledText]) -> None:
    lines = (json.dumps({"text": each.text, "label": each.label}) + "\n" for each in texts)
    write_file(path, "".join(lines).encode())


def pretraining_texts(name: str) -> list[LabelledText]:
    """The texts on which an encoder is pre-trained, shuffled; those of `nouns` and `stars` have labels that count."""
    if name == "reviews":
        phrases = {each.text: each for each in texts_of("sst2", "train")}
        texts = [phrases[sentence] for sentence in longest(phrases)]
    elif name == "english":
        texts = english()
    elif name == "dictionary":
        texts = pretraining_texts("english")
        texts += [
            LabelledText(f"{', '.join(each.words)}: {each.gloss}", "dictionary", 0)
            for part in ("noun", "verb", "adj", "adv")
            for each in wordnet(part)
        ]
    elif name == "nouns":
        texts = list(nouns())
    elif name == "films":
        texts = pretraining_texts("english") + [
            each for opinion in OPINIONS for each in film_reviews(opinion)
        ]
        texts = list({each.text: each for each in texts}.values())
    else:
        texts = [each for opinion in LABELLED for each in film_reviews(opinion)]
    random.Random(0).shuffle(texts)
    return texts


def english() -> list[LabelledText]:
    """The English training texts of all data sets."""
    sources = {"reviews": longest([each.text for each in texts_of("sst2", "train")])}
    sources |= {"questions": [each.text for each in texts_of("trec", "train")]}
    sources |= {"news": [each.text for each in texts_of("agnews", "train")]}
    captions = Path(os.environ["CLEARFORMER_DATA"]) / "multi30k/train.en.gz"
    with gzip.open(captions, "rt", encoding="utf-8") as file:
        sources["captions"] = file.read().splitlines()
    return [LabelledText(text, source, 0) for source, those in sources.items() for text in those]


def nouns() -> Iterator[LabelledText]:
    """WordNet's nouns, each alone, and their definitions, with the kind of noun; a word may be of several."""
    seen = set()
    for each in wordnet("noun"):
        for text in (*each.words, each.gloss.split(";")[0]):
            if each.kind != MIXED_KIND and (text, each.kind) not in seen:
                seen.add((text, each.kind))
                yield LabelledText(text, each.kind, 0)


def film_reviews(opinion: str) -> Iterator[LabelledText]:
    """The sentences of 3 to 60 words of one folder of reviews: `pos` or `neg`, by stars, or `unsup`, unlabelled."""
    folder = Path(os.environ.get("ACLIMDB", "aclImdb")) / "train" / opinion
    if not folder.is_dir():
        sys.exit(
            f"{folder}: not there; unpack the Large Movie Review Dataset (ai.stanford.edu/~amaas/data/sentiment), and "
            "name its folder aclImdb in ACLIMDB"
        )
    for path in sorted(folder.glob("*.txt")):
        for sentence in sentences_of(path.read_text(encoding="utf-8")):
            if 3 <= len(sentence.split()) <= 60:
                yield LabelledText(sentence, opinion, 0)


def sentences_of(review: str) -> list[str]:
    """The sentences of a review, cut where a mark that ends one precedes a capital; `don't` as SST-2's `do n't`."""
    text = re.sub(r"n't\b", " n't", re.sub(r"<br\s*/?>", " ", review))
    return [" ".join(each.split()) for each in re.split(r"(?<=[.!?])[\"')]*\s*(?=[A-Z\"(])", text)]


@dataclass(frozen=True)
class Synset:
    """WordNet's words of one meaning, its definition with examples, and the file in which its editors keep it."""

    words: tuple[str, ...]
    gloss: str
    kind: str


def wordnet(part: str) -> Iterator[Synset]:
    """The synsets of WordNet's `data.noun`, `data.verb`, `data.adj` or `data.adv` (wndb(5WN))."""
    path = Path(os.environ.get("WNSEARCHDIR", "/usr/share/wordnet")) / f"data.{part}"
    if not path.exists():
        sys.exit(
            f"{path}: not there; install WordNet 3.0 (Debian: wordnet-base), or name its folder in WNSEARCHDIR"
        )
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("  "):  # the licence
            data, gloss = line.split(" | ", 1)
            _, kind, _, n_words, *rest = data.split()
            words = rest[: 2 * int(n_words, 16) : 2]  # domestic_dog, or of adjectives beautiful(a)
            written = tuple(re.sub(r"\(.*\)$", "", word).replace("_", " ") for word in words)
            yield Synset(written, " ".join(gloss.split()), kind)


# --- runs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workplace:
    """A folder of texts and runs, and of what is known of each task."""

    folder: Path

    def texts(self, task: str) -> Path:
        return self.folder / "texts" / task

    def record(self, task: str) -> dict[str, Any]:
        """What is known of a task: what was tried and chosen, and the reported accuracies, by start."""
        path = self.folder / f"{task}.json"
        if path.exists():
            return json.loads(path.read_text())
        return {start: {} for start in STARTS} if task in TASKS else {}

    @contextmanager
    def changing(self, task: str) -> Iterator[dict[str, Any]]:
        """A task's record, which is written as it is when the block ends."""
        record = self.record(task)
        yield record
        write_file(self.folder / f"{task}.json", (json.dumps(record, indent=1) + "\n").encode())

    def train(self, name: str, *arguments: str) -> None:
        """Train a run, or the rest of one that was cut off; one that had no checkpoint yet begins anew."""
        run = self.folder / "runs" / name
        begun = any(run.glob("checkpoints/step-*"))
        if run.exists() and not begun:
            shutil.rmtree(run)
        self.clearformer("train", *arguments, *PLAIN, "--run", name, *(["--resume"] if begun else []))

    def held_out_accuracy(self, name: str) -> float:
        """The accuracy in percent after a run's last step on all that was held out of it."""
        lines = (self.folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
        whole = [entry for entry in map(json.loads, lines) if entry.get("val_share") == 1.0]
        return round(100 * whole[-1]["val_accuracy"], 2)

    def clearformer(self, *arguments: str) -> str:
        """What a command prints."""
        environment = os.environ | {"CLEARFORMER_RUNS": str(self.folder / "runs")}
        command = [sys.executable, "-m", "clearformer", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout


def settings_of(place: Workplace, task: str, start: str, chosen: str, part: str) -> list[str]:
    """The settings of a run that classifies, but for its texts, of which it learns from this part."""
    settings = f"{CLASSIFIER} {chosen} train.checkpoint_every=none".split()
    if start == "scratch":
        return [*settings, *TASKS[task].from_scratch.split()]
    named = [each for each in settings if each.startswith(BEGUN_WITH)]
    wanted = named[0].removeprefix(BEGUN_WITH) if named else TASKS[task].pretraining
    return [
        *(each for each in settings if each not in named),
        BEGUN_WITH + pretrain(place, wanted, part),  # whose words and context the run takes over
    ]


def pretrain(place: Workplace, wanted: str, part: str) -> str:
    """Pre-train an encoder, unless that is done; return its run's name."""
    settings, read, after, learns = astuple(PRETRAINING[wanted])
    name = f"{wanted}-{part}" if read in TASKS else wanted
    if name in place.record("pretraining"):
        return name
    if after is not None:
        settings += f" {BEGUN_WITH}{pretrain(place, after, part)}"
    texts = texts_of_part(place, read, part) if read in TASKS else texts_of_no_task(place, read)
    texts += ["data.kind=labelled"] if learns == "masked" else []
    place.train(name, learns, *texts, *settings.split(), "train.eval_every=1000")
    accuracy = place.held_out_accuracy(name)
    with place.changing("pretraining") as record:
        record[name] = {"settings": settings, "held_out": accuracy}
    return name


def texts_of_no_task(place: Workplace, name: str) -> list[str]:
    """Write what an encoder is pre-trained on, and return the settings that read it."""
    path = place.folder / "texts" / f"{name}.jsonl"
    write_texts(path, pretraining_texts(name))
    return [f"data.path={path}", "data.val_fraction=0.01"]


def texts_of_part(place: Workplace, task: str, part: str) -> list[str]:
    """Return the settings that read a part of a task's training texts, and measure on what that leaves out."""
    texts = place.texts(task)
    held_out = f"data.val_path={texts}/held_out.jsonl" if part == "learning" else "data.val_fraction=0.01"
    return [f"data.path={texts}/{part}.jsonl", held_out]


# --- the three stages --------------------------------------------------------------------------------------


def choose(place: Workplace, task: str, start: str) -> None:
    """Try the settings on training texts alone, and write down the best.

    A choice that stands is kept: to choose among others after the report would be to choose by the report.
    """
    grid = list(TASKS[task].grid[start])
    found = place.record(task)[start]
    if "chosen" in found:
        if set(found["tried"]) != set(grid):
            sys.exit(
                f"{place.folder / task}.json: the choice was made among other settings: take another --folder"
            )
        return
    write_training_texts(task, place.texts(task))
    for settings in grid:
        for seed in CHOICE_SEEDS:
            attempt(place, task, start, settings, seed)
    tried = place.record(task)[start]["tried"]
    best = max(grid, key=lambda settings: statistics.mean(tried[settings].values()))
    with place.changing(task) as record:
        record[start]["chosen"] = best


def attempt(place: Workplace, task: str, start: str, settings: str, seed: int) -> None:
    """Train with some settings on the texts to learn from, and measure on those held out, unless that is done."""
    if str(seed) in place.record(task)[start].get("tried", {}).get(settings, {}):
        return
    texts = place.texts(task)
    name = f"{task}-{start}-choice-{hashlib.sha256(settings.encode()).hexdigest()[:8]}-{seed}"
    data = [f"data.path={texts}/learning.jsonl", f"data.val_path={texts}/held_out.jsonl"]
    place.train(
        name, "classify", *data, *settings_of(place, task, start, settings, "learning"), f"seed={seed}"
    )
    accuracy = place.held_out_accuracy(name)
    tell(f"{task}, {start}, {settings}: {accuracy} held out")
    with place.changing(task) as record:
        record[start].setdefault("tried", {}).setdefault(settings, {})[str(seed)] = accuracy


def report(place: Workplace, task: str, start: str) -> None:
    """Train the seeds of the choice that is written down, and measure each on the reported split."""
    chosen = place.record(task)[start]["chosen"]
    reported = place.texts(task) / "reported.jsonl"
    write_texts(reported, texts_of(task, TASKS[task].reported))
    texts = [f"data.path={place.texts(task)}/all.jsonl", "data.val_fraction=0.0"]
    for seed in SEEDS:
        if str(seed) not in place.record(task)[start].get("reported", {}):
            name = f"{task}-{start}-{seed}"
            place.train(
                name, "classify", *texts, *settings_of(place, task, start, chosen, "all"), f"seed={seed}"
            )
            scores = place.clearformer("eval", name, "--data", str(reported), "--unseen", "--json")
            found = figures(json.loads(scores))
            tell(f"{name}: {found}")
            with place.changing(task) as record:
                record[start].setdefault("reported", {})[str(seed)] = found


def figures(scores: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of an evaluation, accuracies in percent."""
    return {
        "accuracy": round(100 * scores["accuracy"], 2),
        "baseline": round(100 * scores["baseline"]["accuracy"], 2),
        "texts": scores["n"],
        "left_out": scores["n_left_out"],
    }


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# --- the table ---------------------------------------------------------------------------------------------


def summary(place: Workplace, tasks: Iterable[str]) -> dict[str, Any]:
    """All figures, with mean and interval of the tasks and starts that are whole."""
    told: dict[str, Any] = {"pretraining": place.record("pretraining")}
    for task in tasks:
        told[task] = place.record(task)
        for found in told[task].values():
            accuracies = [each["accuracy"] for each in found.get("reported", {}).values()]
            if len(accuracies) == len(SEEDS):
                found["mean"] = round(statistics.mean(accuracies), 2)
                spread = statistics.stdev(accuracies) / math.sqrt(len(SEEDS))
                found["interval_95"] = round(T_95[len(SEEDS)] * spread, 2)
    return told


def table(told: Mapping[str, Any]) -> str:
    """Mean and 95% interval of every task, beside the baseline."""
    lines = ["| | from scratch | after pre-training | baseline |", "|---|---|---|---|"]
    for task in TASKS:
        if task in told:
            cells = [_cell(told[task][start]) for start in STARTS]
            baselines = {each["baseline"] for start in STARTS for each in _reported(told[task][start])}
            cells.append(", ".join(map(str, sorted(baselines))) or "-")
            lines.append(f"| {TASKS[task].title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(found: Mapping[str, Any]) -> str:
    return f"{found['mean']} ± {found['interval_95']}" if "mean" in found else "-"


def _reported(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(found.get("reported", {}).values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--folder", type=Path, default=runs_folder() / "classification")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    place = Workplace(arguments.folder.absolute())
    place.folder.mkdir(parents=True, exist_ok=True)
    for task in arguments.tasks:
        for start in STARTS:
            choose(place, task, start)
        for start in STARTS:
            report(place, task, start)
    told = summary(place, TASKS)
    if arguments.json:
        arguments.json.write_text(json.dumps(told, indent=1) + "\n")
    print(table(told))


if __name__ == "__main__":
    main()
