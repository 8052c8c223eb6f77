import gzip
import hashlib
import io
import json
import os
import sys
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from clearformer.data import BUILT_IN, TextData, open_source
from clearformer.data.text import sources
from clearformer.data.text.sources import (
    Source,
    check_field_is_read,
    find_shakespeare,
    topics_that_stand_alone,
)
from clearformer.errors import DataError

PLAY = b"Enter a small stand-in for the plays.\n"


def text_of(source: Source) -> str:
    return "".join(chunk.text for chunk in source.documents())


def source_at(path: Path) -> Source:
    return open_source(TextData(path=str(path)))


def refusal(config: TextData) -> str:
    with pytest.raises(DataError) as caught:
        open_source(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test data and an empty cache; the cache's folder."""
    monkeypatch.delenv("CLEARFORMER_DATA", raising=False)
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def small_shakespeare(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Tiny Shakespeare were `PLAY`."""
    monkeypatch.setattr(sources, "SHAKESPEARE_SHA256", hashlib.sha256(PLAY).hexdigest())


def answer_with(monkeypatch: pytest.MonkeyPatch, content: bytes | Exception) -> list[str]:
    """The network gives `content`; the addresses asked for."""
    asked = []

    def urlopen(url: str, timeout: float) -> io.BytesIO:
        asked.append(url)
        assert timeout > 0
        if isinstance(content, Exception):
            raise content
        return io.BytesIO(content)

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    return asked


def test_the_order_of_a_folder_is_the_same_on_every_system(tmp_path: Path) -> None:
    """That of the names' parts, by their characters: Windows would put a before B."""
    for name in ("B.txt", "a-b/x.txt", "a/b.txt", "a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    source = source_at(tmp_path)
    found = [path.relative_to(tmp_path).as_posix() for path in source.files]  # type: ignore[attr-defined]
    assert found == ["B.txt", "a/b.txt", "a-b/x.txt", "a.txt"]


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    contents = {
        "b/c.md": b"third ",
        "a.txt": b"first ",
        "b/a.txt.gz": gzip.compress(b"second ", mtime=0),
        "c.jsonl": json.dumps({"text": "fourth"}).encode(),
        "notes.pdf": b"\0",
        ".hidden.txt": b"hidden",
        ".git/a.txt": b"hidden",
    }
    for name, content in contents.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    source = source_at(tmp_path)
    assert text_of(source) == "first second third fourth"
    assert sum(chunk.ends_document for chunk in source.documents()) == 4
    assert source.description == f"{tmp_path} (files: 4, 1 of other kinds left out)"


def test_a_file_is_read_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("print()\n")
    assert text_of(source_at(path)) == "print()\n"


def test_a_path_may_start_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_text("at home")
    assert text_of(open_source(TextData(path="~/a.txt"))) == "at home"


def test_a_missing_file_is_named_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "poems.txt").write_text("x")
    message = refusal(TextData(path=str(tmp_path / "poem.txt")))
    assert message == (
        f"data.path={tmp_path}/poem.txt: there is no such file or folder; did you mean 'poems.txt'?"
    )


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    assert "a.txt is empty: give a file with text" in refusal(TextData(path=str(tmp_path / "a.txt")))


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    assert ".jsonl" in refusal(TextData(path=str(tmp_path)))
    assert refusal(TextData(path=str(tmp_path))).endswith("it has no files")
    (tmp_path / "a.pdf").touch()
    assert "it has a.pdf: rename it" in refusal(TextData(path=str(tmp_path)))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in refusal(TextData(path=str(tmp_path / "pipe")))


def test_a_path_that_leads_through_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    assert "no such file" in refusal(TextData(path=str(tmp_path / "a.txt" / "b.txt")))


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    assert "did you mean 'shakespeare'?" in refusal(TextData(name="shakespere"))
    assert "choose from pydoc, shakespeare" in refusal(TextData(name="wikipedia"))


def test_identity_changes_with_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    seen = [source_at(tmp_path).identity()]
    assert source_at(tmp_path).identity() == seen[0]
    (tmp_path / "a.txt").write_text("eno")
    seen.append(source_at(tmp_path).identity())
    (tmp_path / "a.txt").rename(tmp_path / "b.txt")
    seen.append(source_at(tmp_path).identity())
    (tmp_path / "c.txt").write_text("two")
    seen.append(source_at(tmp_path).identity())
    (tmp_path / "d.jsonl").write_text('{"text": "a", "body": "b"}\n')
    seen.append(source_at(tmp_path).identity())
    seen.append(open_source(TextData(path=str(tmp_path), field="body")).identity())
    assert all(json.dumps(a) != json.dumps(b) for i, a in enumerate(seen) for b in seen[:i])


def test_pydoc_is_the_default_and_needs_no_file(empty_machine: Path) -> None:
    source = open_source(TextData())
    text = text_of(source)
    assert 'The "assert" statement' in text
    assert "Python" in source.description
    assert source.identity()["python"] == sys.version.split()[0]
    assert text == text_of(open_source(TextData(name="pydoc")))
    assert not empty_machine.exists()


def test_hardly_anything_is_in_pydoc_twice() -> None:
    """A topic that is a section of another would stand in the training text and in the held-out text."""
    text = text_of(open_source(TextData()))
    paragraphs = [part for part in text.split("\n\n") if len(part) > 100]
    assert sum(map(len, set(paragraphs))) > 0.99 * sum(map(len, paragraphs))


def test_topics_that_are_sections_of_longer_ones_are_left_out() -> None:
    section = "Loops\n*****\n\nA note [1].\n" + "".join(f"Sentence {i} about loops.\n" for i in range(20))
    within = section.replace("*", "=").replace("[1]", "[7]")
    topics = {
        "loops": section,
        "all": f"Statements\n****\n\nThere are some.\n\n{within}",
        "while": "While\n*****\n\nSentence 3 about loops.\nAnd a good deal that is not about loops.\n",
        "twin-b": "The same\n",
        "twin-a": "The same\n",
    }
    assert topics_that_stand_alone(topics) == ["all", "twin-a", "while"]


def test_a_python_without_the_whole_package_has_no_place_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pydoc_data.topics", raising=False)
    monkeypatch.setitem(sys.modules, "pydoc_data", None)
    assert BUILT_IN["pydoc"].where() is None


def test_a_python_without_its_reference_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match="install the whole standard library"):
        open_source(TextData()).identity()


def test_shakespeare_is_found_in_the_data_folder_first(
    empty_machine: Path, small_shakespeare: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answer_with(monkeypatch, OSError("no network here"))
    cached = empty_machine / "data" / "shakespeare" / "input.txt"
    own = tmp_path / "mine" / "shakespeare" / "input.txt"
    assert BUILT_IN["shakespeare"].where() is None
    for place in (cached, own):
        place.parent.mkdir(parents=True)
        place.write_bytes(PLAY)
        monkeypatch.setenv("CLEARFORMER_DATA", str(tmp_path / "mine"))
        source = open_source(TextData(name="shakespeare"))
        assert source.description == f"Tiny Shakespeare, {place}"
        assert text_of(source) == PLAY.decode()
    assert not asked


def test_shakespeare_is_downloaded_once(
    empty_machine: Path, small_shakespeare: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answer_with(monkeypatch, PLAY)
    for _ in range(2):
        assert text_of(open_source(TextData(name="shakespeare"))) == PLAY.decode()
    assert asked == [sources.SHAKESPEARE_URL]
    assert [path.name for path in (empty_machine / "data" / "shakespeare").iterdir()] == ["input.txt"]


@pytest.mark.parametrize("content", [b"<html>not found</html>", PLAY[:-1], PLAY + b"!"])
def test_a_wrong_download_is_not_kept(
    empty_machine: Path, small_shakespeare: None, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    answer_with(monkeypatch, content)
    assert "wrong SHA-256" in refusal(TextData(name="shakespeare"))
    assert find_shakespeare() is None
    assert not empty_machine.exists()


@pytest.mark.parametrize(
    "failure", [urllib.error.URLError("Name or service not known"), TimeoutError("timed out")]
)
def test_without_network_both_ways_out_are_named(
    empty_machine: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    answer_with(monkeypatch, failure)
    message = refusal(TextData(name="shakespeare"))
    assert str(empty_machine / "data" / "shakespeare" / "input.txt") in message
    assert "CLEARFORMER_DATA" in message
    assert str(failure.args[0]) in message


def test_another_text_in_shakespeares_place_is_refused(empty_machine: Path) -> None:
    place = empty_machine / "data" / "shakespeare" / "input.txt"
    place.parent.mkdir(parents=True)
    place.write_bytes(PLAY)
    assert f"{place} is not Tiny Shakespeare" in refusal(TextData(name="shakespeare"))
    assert place.read_bytes() == PLAY


def test_the_data_folders_shakespeare_is_the_known_one(data_dir: Path) -> None:
    text = text_of(open_source(TextData(name="shakespeare")))
    assert len(text) == 1_115_394
    assert len(set(text)) == 65


# --- names and folders that cannot be read ----------------------------------------------------------------


def test_a_folder_within_that_cannot_be_read_is_refused_and_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("read")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "b.txt").write_text("not read")
    scandir = os.scandir

    def denied(folder: Any) -> Any:
        if str(folder).endswith("private"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", denied)
    message = refusal(TextData(path=str(tmp_path)))
    assert message.startswith(
        f"data.path={tmp_path}: {tmp_path}/private in it cannot be read: Permission denied"
    )


def test_a_link_s_own_name_says_what_it_is(tmp_path: Path) -> None:
    """As in a cache of Hugging Face, whose files have hashes for names."""
    (tmp_path / "blob").write_text('{"text": "read"}\n')
    (tmp_path / "t.jsonl").symlink_to("blob")
    assert text_of(source_at(tmp_path / "t.jsonl")) == "read"


def test_links_to_folders_are_followed_once(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("one ")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.txt").write_text("two")
    (tmp_path / "texts" / "more").symlink_to(tmp_path / "other")
    (tmp_path / "other" / "back").symlink_to(tmp_path / "texts")
    assert text_of(source_at(tmp_path / "texts")) == "one two"


def test_held_out_files_in_the_training_s_folder_are_not_trained_on(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("learnt")
    (tmp_path / "valid").mkdir()
    (tmp_path / "valid" / "b.txt").write_text("held out")
    for val_path in (tmp_path / "valid", tmp_path / "valid" / "b.txt"):
        splits = open_source(TextData(path=str(tmp_path), val_path=str(val_path))).by_split()
        assert {name: text_of(source) for name, source in splits.items()} == {
            "train": "learnt",
            "val": "held out",
        }
    text = str(tmp_path / "a.txt")
    assert refusal(TextData(path=text, val_path=text)) == (
        f"data.path={text} is also held out: give other files to train on"
    )
    folder = str(tmp_path / "valid")
    assert refusal(TextData(path=folder, val_path=folder)).endswith(
        "all of its texts are held out: give other ones to train on"
    )


def test_a_hidden_folder_is_not_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("read")
    (tmp_path / ".git").mkdir()
    looked_into = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: looked_into.append(str(folder)) or scandir(folder))
    assert text_of(source_at(tmp_path)) == "read"
    assert looked_into == [str(tmp_path)]


def test_the_folder_of_a_run_beside_the_texts_is_no_text(tmp_path: Path) -> None:
    """As when a text's own folder is where one works."""
    (tmp_path / "a.txt").write_text("read")
    run = tmp_path / "runs" / "quick"
    (run / "checkpoints").mkdir(parents=True)
    for name in ("config.toml", "env.json"):
        (tmp_path / name).touch()  # the folder itself was asked for
        (run / name).touch()
    for text in (run / "metrics.jsonl", run / "checkpoints" / "about.txt"):
        text.write_text('{"step": 1}\n')
    assert text_of(source_at(tmp_path)) == "read"
    source: Any = source_at(run)
    assert source.files == [run / "checkpoints" / "about.txt", run / "metrics.jsonl"]


def test_a_name_that_is_too_long_is_one_line(tmp_path: Path) -> None:
    assert "cannot be read: File name too long" in refusal(TextData(path=str(tmp_path / ("a" * 300))))


@pytest.mark.parametrize("name", ["~nobody-of-this-name/a.txt", "circle"])
def test_a_path_that_leads_nowhere_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("circle").symlink_to("circle")
    message = refusal(TextData(path=name))
    assert "there is no such file or folder" in message
    assert "did you mean" not in message  # a link that leads nowhere is no way out


def test_a_file_in_a_folder_may_have_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("read")
    source = source_at(tmp_path)
    assert text_of(source) == "read"
    json.dumps(source.identity()).encode()
    source.description.encode()


def test_a_text_below_a_folder_whose_name_is_no_utf8_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "a.txt").write_text("x")
    monkeypatch.chdir(folder)
    message = refusal(TextData(path="a.txt"))
    assert "is not UTF-8" in message
    message.encode()


# --- where a character stands -----------------------------------------------------------------------------


def test_a_character_s_place_is_its_file_line_and_column(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab\nc")
    (tmp_path / "b.jsonl").write_text('\n{"text": "de"}\n{"text": ""}\n{"text": "f\\ng"}\n')
    (tmp_path / "c.txt").write_text("\nhé!\n")
    source = source_at(tmp_path)
    text = text_of(source)
    places = {
        "b": "a.txt, line 1, column 2",
        "c": "a.txt, line 2, column 1",
        "e": "b.jsonl, line 2",
        "g": "b.jsonl, line 4",
        "!": "c.txt, line 2, column 3",
    }
    assert {sign: source.place(text.index(sign)) for sign in places} == {
        sign: f"{tmp_path}/{place}" for sign, place in places.items()
    }


def test_a_character_of_pydoc_has_a_topic_for_its_place() -> None:
    source = open_source(TextData())
    place = source.place(text_of(source).index('The "assert" statement'))
    assert place.endswith("topic 'assert', line 1")


def test_a_file_and_a_link_to_it_are_one_text_in_one_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.txt").write_text("x")
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "m.txt").symlink_to(tmp_path / "a.txt")
    (tmp_path / "z").symlink_to(tmp_path / "b", target_is_directory=True)
    source = open_source(TextData(path=str(tmp_path)))
    assert "".join(chunk.text for chunk in source.documents()) == "ax"


def test_a_field_where_no_json_lines_are_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(DataError, match=r"data.field=body has no effect: no file of JSON lines is read"):
        check_field_is_read("body", [open_source(TextData(path=str(tmp_path), field="body"))])
    (tmp_path / "b.jsonl").write_text('{"body": "more"}\n')
    source = open_source(TextData(path=str(tmp_path), field="body"))
    check_field_is_read("body", [source])
    assert text_of(source) == "textmore"


def test_one_file_does_not_choose_a_checkpoint_and_test_it(tmp_path: Path) -> None:
    (tmp_path / "held").mkdir()
    for name in ("a.txt", "held/x.txt"):
        (tmp_path / name).write_text("text")
    data = TextData(
        path=str(tmp_path), val_path=str(tmp_path / "held"), test_path=str(tmp_path / "held" / "x.txt")
    )
    with pytest.raises(DataError, match=r"data.val_path and data.test_path: .*x.txt is in both"):
        open_source(data)
