"""The benchmark of classification: the choice is made without the reported texts, once, and goes on after a kill."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from clearformer.data.holding_out import own_text
from clearformer.data.labelled.reading import LabelledText

GRID = {"scratch": ["train.lr=1", "train.lr=2"], "pretrained": ["train.lr=3"]}


@pytest.fixture
def benchmark(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("classification")


class Commands:
    """In place of the command line: remembers what was asked, and answers with accuracies."""

    def __init__(self, runs: Path):
        self.runs = runs
        self.asked: list[tuple[str, ...]] = []
        self.killed_at: int | None = None

    def __call__(self, *arguments: str) -> str:
        if len(self.asked) == self.killed_at:
            raise KeyboardInterrupt
        self.asked.append(arguments)
        if arguments[0] == "eval":
            return json.dumps({"accuracy": 0.9, "baseline": {"accuracy": 0.8}, "n": 3, "n_left_out": 1})
        accuracy = 0.7 if "train.lr=2" in arguments else 0.6
        run = self.runs / arguments[arguments.index("--run") + 1]
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text(json.dumps({"val_share": 1.0, "val_accuracy": accuracy}) + "\n")
        return ""


@pytest.fixture
def commands(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Any, Commands]]:
    """A place in a folder where no command is run, with TREC's training file and a reported one that none can read."""
    data = tmp_path / "data/trec"
    data.mkdir(parents=True)
    (data / "train.txt").write_text("".join(f"{n % 6} question number {n} ?\n" for n in range(60)))
    (data / "test.txt").mkdir()
    monkeypatch.setenv("CLEARFORMER_DATA", str(data.parent))
    trec = benchmark.TASKS["trec"]
    own = type(trec)(trec.title, Published(trec.files, data), "test", "none", trec.from_scratch, GRID)
    monkeypatch.setitem(benchmark.TASKS, "trec", own)

    def begin(pretrains: bool = False) -> tuple[Any, Commands]:
        if not pretrains:
            monkeypatch.setattr(benchmark, "pretrain", lambda place, wanted, part: wanted)
        place = benchmark.Workplace(tmp_path / "work")
        answers = Commands(place.folder / "runs")
        monkeypatch.setattr(type(place), "clearformer", lambda self, *arguments: answers(*arguments))
        return place, answers

    return begin


class Published:
    """TREC's files, of which that of the test texts is a folder until `appear` is called."""

    def __init__(self, files: Any, folder: Path):
        self.readers, self._folder = files.readers, folder

    def find(self) -> dict[str, Path]:
        return {"train": self._folder / "train.txt", "test": self._folder / "test.txt"}


def appear(folder: Path) -> None:
    test = folder / "data/trec/test.txt"
    test.rmdir()
    test.write_text("1 a question for the report ?\n")


def test_the_choice_reads_no_reported_text_and_is_written_down(
    benchmark: ModuleType, commands: Callable[[], tuple[Any, Commands]], tmp_path: Path
) -> None:
    place, answers = commands()

    for start in benchmark.STARTS:
        benchmark.choose(place, "trec", start)

    found = place.record("trec")
    assert found["scratch"] == {
        "tried": {"train.lr=1": {"101": 60.0, "102": 60.0}, "train.lr=2": {"101": 70.0, "102": 70.0}},
        "chosen": "train.lr=2",
    }
    assert found["pretrained"]["chosen"] == "train.lr=3"
    texts = {name: read(place.texts("trec") / f"{name}.jsonl") for name in ("all", "learning", "held_out")}
    assert sorted(texts["learning"] + texts["held_out"]) == sorted(texts["all"])
    assert not (place.texts("trec") / "reported.jsonl").exists()
    for asked in answers.asked:
        assert f"data.path={place.texts('trec')}/learning.jsonl" in asked
        assert f"data.val_path={place.texts('trec')}/held_out.jsonl" in asked
        assert not any("reported" in word or "test.txt" in word for word in asked)


def test_nothing_is_reported_before_a_choice_is_written_down(
    benchmark: ModuleType, commands: Callable[[], tuple[Any, Commands]], tmp_path: Path
) -> None:
    place, answers = commands()
    appear(tmp_path)

    with pytest.raises(KeyError, match="chosen"):
        benchmark.report(place, "trec", "scratch")

    assert not answers.asked
    assert not (place.texts("trec") / "reported.jsonl").exists()


def test_every_seed_of_the_choice_learns_from_all_training_texts_and_is_measured_once(
    benchmark: ModuleType, commands: Callable[[], tuple[Any, Commands]], tmp_path: Path
) -> None:
    place, answers = commands()
    benchmark.choose(place, "trec", "scratch")
    answers.asked.clear()
    appear(tmp_path)

    benchmark.report(place, "trec", "scratch")

    trained = [asked for asked in answers.asked if asked[0] == "train"]
    measured = [asked for asked in answers.asked if asked[0] == "eval"]
    assert [asked[-3] for asked in measured] == [str(place.texts("trec") / "reported.jsonl")] * 5
    assert all("--unseen" in asked for asked in measured)
    assert [asked[asked.index("--run") + 1] for asked in trained] == [asked[1] for asked in measured]
    for seed, asked in enumerate(trained, start=1):
        assert {"train.lr=2", f"seed={seed}", "data.val_fraction=0.0"} <= set(asked)
        assert f"data.path={place.texts('trec')}/all.jsonl" in asked
        assert not any("reported" in word for word in asked)
    told = benchmark.summary(place, ["trec"])
    assert (told["trec"]["scratch"]["mean"], told["trec"]["scratch"]["interval_95"]) == (90.0, 0.0)
    assert "| TREC, test | 90.0 ± 0.0 | - | 80.0 |" in benchmark.table(told)


def test_a_killed_script_asks_for_no_run_twice(
    benchmark: ModuleType, commands: Callable[[], tuple[Any, Commands]], tmp_path: Path
) -> None:
    appear(tmp_path)
    done: list[tuple[str, ...]] = []
    for killed_at in (1, 4, None):
        place, answers = commands()
        answers.killed_at = killed_at
        try:
            benchmark.choose(place, "trec", "scratch")
            benchmark.report(place, "trec", "scratch")
        except KeyboardInterrupt:
            pass
        done += answers.asked

    assert (
        len(done) == 4 + 5 + 5 + 1
    )  # a seed that was trained and not yet measured is asked for again, and resumed
    assert len(benchmark.summary(place, ["trec"])["trec"]["scratch"]["reported"]) == 5


def test_a_choice_stands_once_it_is_made(
    benchmark: ModuleType, commands: Callable[[], tuple[Any, Commands]]
) -> None:
    place, answers = commands()
    benchmark.choose(place, "trec", "scratch")
    n_asked = len(answers.asked)

    benchmark.choose(place, "trec", "scratch")
    assert len(answers.asked) == n_asked
    benchmark.TASKS["trec"].grid["scratch"].append("train.lr=4")
    with pytest.raises(SystemExit, match="the choice was made among other settings"):
        benchmark.choose(place, "trec", "scratch")
    benchmark.TASKS["trec"].grid["scratch"].pop()


def test_an_encoder_goes_on_from_another_with_the_texts_to_learn_from(
    benchmark: ModuleType, commands: Callable[..., tuple[Any, Commands]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "pretraining_texts", lambda name: [])
    monkeypatch.setitem(benchmark.PRETRAINING, "base", benchmark.Pretraining("train.max_steps=9", "english"))
    further = benchmark.Pretraining("train.max_steps=2", "agnews", after="base")
    monkeypatch.setitem(benchmark.PRETRAINING, "further", further)
    place, answers = commands(pretrains=True)

    def settings(chosen: str, part: str) -> list[str]:
        return benchmark.settings_of(place, "agnews", "pretrained", f"train.lr=1 {chosen}", part)

    first = settings("train.pretrained=further", "learning")
    assert [each for each in first if "pretrained" in each] == ["train.pretrained=further-learning"]
    assert "train.lr=1" in first
    settings("train.pretrained=further", "all")
    settings("train.pretrained=base", "all")
    assert settings("train.pretrained=further", "learning") == first

    base, learning, everything = answers.asked
    names = [each[each.index("--run") + 1] for each in answers.asked]
    assert names == ["base", "further-learning", "further-all"]
    texts = place.texts("agnews")
    assert {"train.max_steps=9", "data.val_fraction=0.01"} <= set(base)
    assert not any("pretrained" in each for each in base)
    assert {"train.pretrained=base", "train.max_steps=2", f"data.path={texts}/learning.jsonl"} <= set(
        learning
    )
    assert f"data.val_path={texts}/held_out.jsonl" in learning  # the choice's texts are not read before
    assert {"train.pretrained=base", f"data.path={texts}/all.jsonl", "data.val_fraction=0.01"} <= set(
        everything
    )
    assert not any("reported" in word for asked in answers.asked for word in asked)
    assert set(place.record("pretraining")) == set(names)


def test_wordnets_nouns_are_learnt_with_their_kinds_and_all_its_definitions(
    benchmark: ModuleType,
    commands: Callable[..., tuple[Any, Commands]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    licence = "  1 This software and database is provided as is.\n"
    noun = "00001740 03 n 01 entity 0 000 | that which exists\n"
    dog = '02084071 05 n 02 dog 0 domestic_dog 0 001 @ 02083346 n 0000 | a member of the genus Canis; "the dog"\n'
    cad = '09886220 18 n 02 cad 0 dog 2 001 @ 09630641 n 0000 | someone who is morally reprehensible; "you dog"  \n'
    (tmp_path / "data.noun").write_text(licence + noun + dog + cad)
    (tmp_path / "data.adj").write_text(
        "00217728 00 a 01 beautiful(a) 0 000 | delighting the senses or exciting\n"
    )
    for part in ("verb", "adv"):
        (tmp_path / f"data.{part}").write_text(licence)
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path))
    monkeypatch.setattr(benchmark, "english", lambda: [])

    assert sorted(each.text for each in benchmark.pretraining_texts("dictionary")) == [
        "beautiful: delighting the senses or exciting",
        'cad, dog: someone who is morally reprehensible; "you dog"',
        'dog, domestic dog: a member of the genus Canis; "the dog"',
        "entity: that which exists",
    ]
    nouns = {(each.text, each.label) for each in benchmark.pretraining_texts("nouns")}
    assert {
        ("dog", "05"),
        ("dog", "18"),
        ("domestic dog", "05"),
        ("a member of the genus Canis", "05"),
    } < nouns
    assert not any(text == "entity" for text, _ in nouns)

    monkeypatch.setitem(benchmark.PRETRAINING, "base", benchmark.Pretraining("", "nouns", learns="classify"))
    place, answers = commands(pretrains=True)
    benchmark.settings_of(place, "trec", "pretrained", "train.pretrained=base", "all")
    [asked] = answers.asked
    assert "classify" in asked
    assert "masked" not in asked
    (tmp_path / "data.noun").unlink()
    with pytest.raises(SystemExit, match=r"data\.noun: not there; install WordNet"):
        benchmark.pretraining_texts("nouns")


def test_reviews_of_films_are_read_by_sentences_and_their_stars_learnt_by_those_that_have_them(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reviews = {
        "pos/0_9.txt": 'I loved it! <br /><br />"You won\'t regret it." A must see',
        "neg/0_1.txt": "I didn't like it.Not at all. Dull.",
        "unsup/0_0.txt": f"I loved it! {'so ' * 61}what.",
    }
    for name, text in reviews.items():
        path = tmp_path / "train" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    monkeypatch.setenv("ACLIMDB", str(tmp_path))
    monkeypatch.setattr(benchmark, "english", lambda: [benchmark.LabelledText("a good film", "reviews", 0)])
    stars = {("I loved it!", "pos"), ("\"You wo n't regret it.", "pos"), ("A must see", "pos")}
    stars |= {("I did n't like it.", "neg"), ("Not at all.", "neg")}

    assert {(each.text, each.label) for each in benchmark.pretraining_texts("stars")} == stars
    texts = [each.text for each in benchmark.pretraining_texts("films")]
    assert sorted(texts) == sorted({"a good film"} | {text for text, _ in stars})
    shutil.rmtree(tmp_path / "train" / "neg")
    with pytest.raises(SystemExit, match="neg: not there; unpack the Large Movie Review Dataset"):
        benchmark.pretraining_texts("stars")


def test_the_words_of_a_start_from_scratch_are_not_asked_of_a_pretrained_encoder(
    benchmark: ModuleType, commands: Callable[..., tuple[Any, Commands]]
) -> None:
    place, _ = commands()

    def settings(start: str, chosen: str) -> set[str]:
        return set(benchmark.settings_of(place, "sst2", start, chosen, "learning"))

    assert {"tokenizer.vocab_size=14000", "train.lr=1"} <= settings("scratch", "train.lr=1")
    begun = settings("pretrained", "train.pretrained=english-masked train.lr=1")
    assert {"train.pretrained=english-masked", "train.lr=1"} <= begun
    assert "train.pretrained=sst2-masked" in settings("pretrained", "train.lr=1")
    assert not any(each.startswith("tokenizer.") for each in begun)


def test_held_out_sentences_leave_no_phrase_of_their_own(benchmark: ModuleType) -> None:
    sentences = [f"{a} film with {b} and {c}" for a in "abcde" for b in "fghij" for c in "klmno"]
    words = [each.split() for each in sentences]
    phrases = [" ".join(piece) for each in words for piece in (each, each[:2], each[-2:], each[1:])]
    learning, held_out = benchmark.sentences_apart([LabelledText(each, "1", 1) for each in phrases])

    assert {each.text for each in held_out} <= set(sentences)
    assert 10 <= len({each.text for each in held_out}) <= 40
    kept = set(sentences) - {each.text for each in held_out}
    assert {each.text for each in learning} == {
        phrase for phrase in phrases if any(f" {phrase} " in f" {sentence} " for sentence in kept)
    }


def test_a_text_that_stands_twice_is_on_one_side(benchmark: ModuleType) -> None:
    texts = [LabelledText(f" text{space}{n}", "1", n) for n in range(200) for space in (" ", "  ")]
    learning, held_out = benchmark.texts_apart(texts)

    assert len(learning) + len(held_out) == 400
    assert 20 <= len(held_out) / 2 <= 60
    assert not {own_text(each.text) for each in learning} & {own_text(each.text) for each in held_out}


def read(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]
