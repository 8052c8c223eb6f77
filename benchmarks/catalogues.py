"""A second pair of languages from what a machine has: translated messages of its programs, learned and measured.

    python benchmarks/catalogues.py FOLDER [--languages en-fr] [--search /usr/share/locale ...] [--only-gather]
                                    [--json FILE] [--settings key=value ...]

Reads every message catalogue (.mo, or .po) of the target language below the searched folders, writes its messages as
aligned lines into FOLDER, trains the preset `translate` on them and prints the BLEU and chrF of the held-out test
messages, by beam search of 5. --settings are further ones of the run. The same command goes on with a run that was
ended.

A message is one line, white space collapsed, with the mark of a keyboard short cut taken out; of a source with several
translations the most frequent one counts. Messages that differ in nothing but case, digits, punctuation and
placeholders are on one side of the split: which, is decided by a hash of the words that remain. Training loses the
messages whose translation says the same as a held-out one's. What is still near in its letters (cosine of TF-IDF of 3
to 5 characters of at least 0.8 with a training source) is counted, and the rest of the test is measured by itself too.
Beside it stands what a translation memory gives: the translation of the training message that is the nearest.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from babel.messages.mofile import read_mo
from babel.messages.pofile import read_po
from sklearn.feature_extraction.text import TfidfVectorizer
from training_runs import last_metrics

from clearformer.device import processor_name
from clearformer.evaluation.translation import TranslationScores, evaluate_translation, score_translations
from clearformer.run import load

SETTINGS = {
    "tokenizer.vocab_size": 8000,
    "data.max_length": 80,
    "train.objective.batch_tokens": 2048,
    "train.max_seconds": 900,
}
HELD_OUT = {"val": 0.01, "test": 0.02}
MOST_CHARACTERS = 300
NEAR = 0.8
BEAMS = 5
RUN = "run"

Pairs = list[tuple[str, str]]


def main() -> None:
    """Gather, train, measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--languages", default="en-fr")
    parser.add_argument("--search", type=Path, nargs="+", default=[Path("/usr/share/locale")])
    parser.add_argument("--only-gather", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--settings", nargs="+", default=[], metavar="key=value")
    options = parser.parse_args()
    source, target = options.languages.split("-")
    catalogues = sorted(file for folder in options.search for file in catalogues_in(folder, target))
    splits, counts = split(messages(catalogues))
    files = write(splits, options.folder, source, target)
    told: dict[str, Any] = {
        "machine": processor_name(),
        "torch": torch.__version__,
        "languages": options.languages,
        "catalogues": sorted({file.stem for file in catalogues}),
        "n_catalogues": len(catalogues),
        **counts,
    }
    print(json.dumps(counts), file=sys.stderr)
    if not options.only_gather:
        chosen = SETTINGS | dict(setting.split("=", 1) for setting in options.settings)
        train(files | chosen, options.folder)
        told |= {"settings": chosen, **figures(options.folder, splits)}
    text = json.dumps(told, indent=1)
    if options.json:
        options.json.write_text(text + "\n")
    print(text)


# --- messages ---------------------------------------------------------------------------------------------


def catalogues_in(folder: Path, language: str) -> Iterator[Path]:
    """The catalogues of a language: .../fr/LC_MESSAGES/*.mo, and .po where there is no .mo of the name."""
    for messages_folder in folder.rglob(f"{language}/LC_MESSAGES"):
        yield from messages_folder.glob("*.mo")
        yield from (po for po in messages_folder.glob("*.po") if not po.with_suffix(".mo").exists())


def messages(catalogues: Iterable[Path]) -> Pairs:
    """Each source once, with its most frequent translation, in the order of their first places."""
    translations: dict[str, Counter[str]] = defaultdict(Counter)
    for file in catalogues:
        for source, target in read(file):
            translations[source][target] += 1
    return [(source, found.most_common(1)[0][0]) for source, found in translations.items()]


def read(file: Path) -> Iterator[tuple[str, str]]:
    """The messages of a catalogue that are worth learning, as lines."""
    try:
        with file.open("rb") as stream:
            catalogue = read_mo(stream) if file.suffix == ".mo" else read_po(stream)
    except (OSError, ValueError, LookupError) as error:
        print(f"{file}: left out: {error}", file=sys.stderr)
        return
    for message in catalogue:
        # Of plurals the first form of either side: one of something.
        sides = [side[0] if isinstance(side, list | tuple) else side for side in (message.id, message.string)]
        source, target = lines(*(side or "" for side in sides))
        is_text = words(source) and words(target) and source != target
        if is_text and max(len(source), len(target)) <= MOST_CHARACTERS:
            yield source, target


def lines(*sides: str) -> list[str]:
    """Both sides on one line each, without the mark of a short cut ("_Open", "&Open") where both have one."""
    texts = [" ".join(side.split()) for side in sides]
    for mark in "_&":
        if all(len(re.findall(rf"{mark}(?=\w)", text)) == 1 for text in texts):
            texts = [re.sub(rf"{mark}(?=\w)", "", text) for text in texts]
    return texts


def words(text: str) -> str:
    """The words of a message in lower case, without placeholders, markup, digits and punctuation."""
    plain = re.sub(r"%\(\w+\)\w|%[\d$#+.-]*l*\w|\{\w*\}|<[^>]*>|&\w+;", " ", text.casefold())
    return " ".join(re.findall(r"[^\W\d_]+", plain))


# --- splits -----------------------------------------------------------------------------------------------


def split(pairs: Pairs) -> tuple[dict[str, Pairs], dict[str, int]]:
    """The pairs of training and those held out, and how many there are of what."""
    splits: dict[str, Pairs] = {"train": [], **{name: [] for name in HELD_OUT}}
    for pair in pairs:
        splits[split_of(words(pair[0]))].append(pair)
    held_out = {words(target) for name in HELD_OUT for _, target in splits[name]}
    train = [pair for pair in splits["train"] if words(pair[1]) not in held_out]
    counts = {
        "n_messages": len(pairs),
        "n_left_out_of_training": len(splits["train"]) - len(train),
    }
    splits["train"] = train
    return splits, counts | {f"n_{name}": len(each) for name, each in splits.items()}


def split_of(text: str) -> str:
    """The split of all messages of the same words."""
    place = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64
    for name, share in HELD_OUT.items():
        if place < share:
            return name
        place -= share
    return "train"


def write(splits: dict[str, Pairs], folder: Path, source: str, target: str) -> dict[str, str]:
    """Write each split as two aligned files; the settings that name them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in splits.items():
        for side, language in enumerate((source, target)):
            (folder / f"{name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    return {
        f"data.{prefix}{side}": str(folder / f"{name}.{language}")
        for prefix, name in (("", "train"), ("val_", "val"))
        for side, language in (("source", source), ("target", target))
    }


def train(settings: dict[str, Any], folder: Path) -> None:
    """Train the run in the folder, or go on with it; SystemExit where that fails, which it has said itself."""
    command = [sys.executable, "-m", "clearformer", "train", "translate", "--run", RUN, "--resume"]
    done = subprocess.run(
        [*command, *(f"{key}={value}" for key, value in settings.items())],
        env=os.environ | {"CLEARFORMER_RUNS": str(folder)},
        stdout=sys.stderr,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.returncode)


# --- figures ----------------------------------------------------------------------------------------------


def figures(folder: Path, splits: dict[str, Pairs]) -> dict[str, Any]:
    """The figures of the test's translations, of all and of those that no training message is near to."""
    run, last = load(str(folder / RUN)), last_metrics(RUN, folder)
    sources, references = (list(side) for side in zip(*splits["test"], strict=True))
    known, known_translations = (list(side) for side in zip(*splits["train"], strict=True))
    start = time.perf_counter()
    translated = evaluate_translation(run, sources, references, beams=BEAMS).scores
    translating_seconds = time.perf_counter() - start
    likeness, nearest = nearest_of(sources, known)
    remembered = score_translations([known_translations[n] for n in nearest], references)
    far = [place for place, like in enumerate(likeness) if like < NEAR]
    return {
        "steps": run.step,
        "training_seconds": last["seconds"],
        "val_loss": last["val_loss"],
        "n_parameters": sum(p.numel() for p in run.model.parameters()),
        "n_near": len(sources) - len(far),
        "beams": BEAMS,
        "test": translated.to_json(),
        "test_not_near": part(translated, far).to_json(),
        "memory": remembered.to_json(),
        "memory_not_near": part(remembered, far).to_json(),
        "translating_seconds": round(translating_seconds, 1),
    }


def nearest_of(sources: list[str], training: list[str]) -> tuple[list[float], list[int]]:
    """How near the nearest training source is to each by its letters, from 0 to 1, and its place."""
    vectors: Any = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), min_df=2, sublinear_tf=True)
    known = vectors.fit_transform([words(text) for text in training])
    likeness, places = [], []
    for row in vectors.transform([words(text) for text in sources]):
        cosines = (known @ row.T).toarray().ravel()
        places.append(int(np.argmax(cosines)))
        likeness.append(float(cosines[places[-1]]))
    return likeness, places


def part(scores: TranslationScores, places: list[int]) -> TranslationScores:
    """The scores of some of the translations."""
    hypotheses, references = scores.hypotheses, scores.references
    return score_translations([hypotheses[n] for n in places], [references[n] for n in places])


if __name__ == "__main__":
    main()
