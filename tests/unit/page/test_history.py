"""The page's views of a run's training and of its data: numbers, marks, replayed steps, and what takes long."""

import asyncio
import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import websockets

import clearformer as cf
from clearformer import lens
from clearformer.cli import main
from clearformer.lens.gradients import loss_change
from clearformer.page import look
from clearformer.page.beginning import LEAST_ROWS, MOST_ROWS, corpus_rows, first_that_fits
from clearformer.page.long import EndedError, LongComputations
from clearformer.page.opened import OpenedRuns, weight_bytes
from clearformer.page.selection import Selection
from clearformer.page.views import View, find_view

from ..lens.trainings import EVERY, SETTINGS, STEPS, home_with_data, trained
from .conftest import Client, entered
from .test_export import only, opened
from .test_server import card, same

KINDS = tuple(SETTINGS)
LINE = "the bank"
VIEWS = {"training", "events", "loss_changes", "corpus", "learned"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with home_with_data(tmp_path_factory.mktemp("page")):
        yield {kind: trained(kind) for kind in KINDS}


@pytest.fixture(scope="module")
def pages(runs: dict[str, Any]) -> Iterator[dict[str, Client]]:
    opened = {kind: look(run, browser=False) for kind, run in runs.items()}
    clients = {kind: Client(each) for kind, each in opened.items()}
    for client in clients.values():
        client.enter()
    yield clients
    for each in opened.values():
        each.close()


@pytest.mark.parametrize("kind", KINDS)
def test_every_view_of_a_trained_run_is_what_its_python_gives(pages: dict[str, Client], kind: str) -> None:
    """The snippet that the page copies is run, and each number that was sent is compared."""
    page = pages[kind]
    told = card(page)
    [shown] = told["runs"]
    assert shown["views"].keys() >= VIEWS
    assert told["first"]["n_rows"] == MOST_ROWS
    for name in VIEWS:
        chosen = told["first"] | {"before": 2, "after": EVERY, "sample": 3, "n_rows": 2}
        answer = page.view(name, **chosen)
        scope: dict[str, Any] = {}
        exec(answer["python"], scope)  # noqa: S102  (our own snippet)
        same(answer["found"], scope["found"])
        assert page.table(name, **chosen)["rows"] == scope["found"].table().rows


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_of_the_corpus_is_what_torch_predicts(
    pages: dict[str, Client], runs: dict[str, Any], kind: str
) -> None:
    """As the page selects it: the row's text, its output, what is masked, and the position."""
    page, run = pages[kind], runs[kind]
    first = card(page)["first"]
    found = page.view("corpus", **(first | {"n_rows": 3, "split": "train"}))["found"]
    row = found["rows"][1]
    column = int(np.flatnonzero(np.isfinite(found["losses"][1]))[0])
    every, n = row["masked_every"], found["ids"].shape[1]
    masked = (
        [
            row["position"] + c
            for c in range(column % every, n, every)
            if found["ids"][1, c] >= 0 and c not in row["special"]
        ]
        if every
        else []
    )
    target = int(found["ids"][1, column])
    inputs = lens.read(run, row["text"], row["output"], masked=masked)
    with torch.inference_mode():
        output = run.model(*inputs.arguments)
    logits = output[0] if output.dim() == 2 else output[0, row["position"] + column]
    if row["read_alike"]:
        assert found["losses"][1, column] == pytest.approx(
            -F.log_softmax(logits, -1)[target].item(), abs=1e-5
        )
    chosen = first | {
        "text": row["text"],
        "output": row["output"],
        "masked": masked,
        "position": row["position"] + column,
        "target": found["labels"][str(target)],
    }
    ledger = page.view("ledger", **chosen)["found"]
    assert ledger["target"] == found["labels"][str(target)]
    logit = ledger["logit"] if ledger["capped"] is None else ledger["capped"]
    assert logit == pytest.approx(logits[target].item(), abs=1e-4)


def test_the_python_of_a_mean_of_checkpoints_opens_that_mean(runs: dict[str, Any]) -> None:
    run = cf.load(runs["decoder"].name, average=2)
    view, selection = find_view("tokens", run), Selection(text="the bank")
    scope: dict[str, Any] = {}
    exec(view.as_python(run, selection), scope)  # noqa: S102  (our own snippet)
    mean: Any = view.call(run, selection)
    assert np.array_equal(scope["found"].losses, mean.losses, equal_nan=True)
    alone = cf.lens.tokens(cf.load("decoder"), "the bank")
    assert not np.array_equal(scope["found"].losses, alone.losses, equal_nan=True)


def test_the_command_writes_the_mean_of_several_checkpoints_and_says_so(
    runs: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, "tokens")
    file, name = tmp_path / "mean.html", runs["decoder"].name
    assert main(["look", name, "--export", str(file), "--text", "the bank", "--average", "2"]) == 0
    _, blocks = opened(file)
    assert f"{name} step {STEPS}, mean of 2 checkpoints, reading" in blocks["index"]["about"]
    assert blocks["index"]["run"]["average"] == 2
    [answer] = [blocks[f"answer-{i}"] for i in range(len(blocks["index"]["answers"]))]
    expected = lens.tokens(cf.load(name, average=2), "the bank").losses
    assert answer["found"]["losses"] == pytest.approx(expected, nan_ok=True)
    assert main(["look", name, "--export", str(tmp_path / "no.html"), "--average", "99"]) == 2
    assert "--average: " in capsys.readouterr().err


@pytest.mark.parametrize("step", [0, STEPS - 1])
def test_the_python_of_a_number_opens_the_step_that_it_is_of(
    runs: dict[str, Any], step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Step 0 too, and one that is not kept."""
    run = cf.replay(runs["decoder"], step) if step else cf.load("decoder", 0)
    found = lens.cell(run, "the bank", row=1, column=2)
    exec(found.snippet, {})  # noqa: S102  (our own snippet)
    assert float(capsys.readouterr().out) == pytest.approx(found.value, abs=1e-6)


def test_less_is_read_at_first_where_the_model_is_large() -> None:
    assert corpus_rows(10_000_000, 256) == MOST_ROWS
    assert LEAST_ROWS < corpus_rows(40_000_000, 1024) < MOST_ROWS
    assert corpus_rows(1_000_000_000, 2048) == LEAST_ROWS


def test_the_ledger_between_the_marks_is_the_change_of_the_loss(
    pages: dict[str, Client], runs: dict[str, Any]
) -> None:
    first = card(pages["decoder"])["first"]
    found = pages["decoder"].view("loss_changes", **(first | {"before": 0, "after": EVERY}))["found"]
    for step, loss in ((0, found["before"]), (EVERY, found["after"])):
        run = cf.load("decoder", step)
        tokens = torch.from_numpy(run.tokenizer.encode(first["text"]).astype(np.int64))
        with torch.inference_mode():
            own = F.cross_entropy(run.model(tokens[None, :-1])[0], tokens[1:]).item()
        assert loss == pytest.approx(own, abs=1e-5)
    total = sum(part["value"] for part in found["parts"])
    assert total + found["residue"] == pytest.approx(found["after"] - found["before"], abs=1e-7)
    assert "the mark after is not set" in pages["decoder"].refusal("loss_changes", **(first | {"before": 0}))


def test_a_step_that_is_not_kept_is_looked_at_once_it_is_replayed(
    pages: dict[str, Client], runs: dict[str, Any]
) -> None:
    page, run = pages["decoder"], runs["decoder"]
    step = STEPS - 2
    assert step not in run.kept_steps()
    chosen = card(page)["first"] | {"checkpoint": str(step)}
    assert f"no checkpoint '{step}'" in page.refusal("tokens", **chosen)
    status, _, body = page.ask("POST", "/api/replay", chosen)
    assert (status, json.loads(body)) == (200, {"step": step, "replayed": [step]})
    answer = page.view("tokens", **chosen)
    same(answer["found"], lens.tokens(cf.replay("decoder", step), chosen["text"]))
    assert f"cf.replay('decoder', {step})" in answer["python"]
    assert card(page)["runs"][0]["replayed"] == [step]
    for wrong, words in ((str(STEPS + 1), f"has taken {STEPS} steps"), ("best", "a step number")):
        status, _, body = page.ask("POST", "/api/replay", chosen | {"checkpoint": wrong})
        assert status == 400
        assert words in json.loads(body)["error"]


def test_marks_may_stand_on_any_step(
    pages: dict[str, Client], runs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    page, marked = pages["decoder"], (3, STEPS - 2)
    assert not set(marked) & set(runs["decoder"].kept_steps())
    chosen = card(page)["first"] | {"before": marked[0], "after": marked[1]}
    answer = page.view("loss_changes", **chosen)
    before, after = (cf.replay("decoder", step) for step in marked)
    same(answer["found"], lens.loss_changes(before, after, chosen["text"]))
    scope: dict[str, Any] = {}
    exec(answer["python"], scope)  # noqa: S102  (our own snippet)
    same(answer["found"], scope["found"])
    for step in marked:
        assert page.ask("POST", "/api/replay", chosen | {"checkpoint": str(step)})[0] == 200
    monkeypatch.setattr(loss_change, "replay_run", lambda *_: pytest.fail("it was made again"))
    again = page.view("loss_changes", **chosen)
    assert again["found"]["sum"] == answer["found"]["sum"]
    monkeypatch.undo()
    too_far = page.refusal("loss_changes", **(chosen | {"after": STEPS + 1}))
    assert f"has taken {STEPS} steps" in too_far


def test_a_replayed_step_stays_open_longer_than_one_that_is_kept(
    runs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clearformer.page.opened.MOST_BYTES", 2 * weight_bytes(runs["decoder"]))
    opened = OpenedRuns([runs["decoder"]])
    opened.replay("decoder", STEPS - 2, lambda *_: None)
    made = opened.get("decoder", str(STEPS - 2))
    first = opened.get("decoder", "0")
    assert opened.get("decoder", "4").step == 4
    assert opened.get("decoder", str(STEPS - 2)) is made
    assert opened.get("decoder", "0") is not first
    assert opened.replayed("decoder") == [STEPS - 2]
    monkeypatch.setattr("clearformer.page.opened.MOST_BYTES", weight_bytes(runs["decoder"]))
    assert opened.get("decoder", "4").step == 4  # even if there is room for one alone
    assert opened.get("decoder", str(STEPS - 2)) is made


def test_a_replay_is_answered_with_the_steps_that_are_still_open(
    runs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clearformer.page.opened.MOST_BYTES", weight_bytes(runs["decoder"]))
    for page in entered(look(runs["decoder"], browser=False)):
        for step in (STEPS - 2, STEPS - 1):
            chosen = card(page)["first"] | {"checkpoint": str(step)}
            _, _, body = page.ask("POST", "/api/replay", chosen)
            assert json.loads(body) == {"step": step, "replayed": [step]}
        assert "no checkpoint" in page.refusal("tokens", **(chosen | {"checkpoint": str(STEPS - 2)}))


def test_a_step_beside_its_own_run_is_that_step_in_a_notebook(runs: dict[str, Any]) -> None:
    pytest.importorskip("anywidget")
    run = runs["decoder"]
    at_4, replayed = cf.load(run.folder.path, checkpoint=4), cf.replay(run, 3)
    for other, expected in ((run.folder.path, run), (replayed, replayed)):
        widget = lens.show(run.folder.path, LINE, "ledger", checkpoint=4, versus=other)
        assert widget.found.changes == lens.beside(lens.ledger, at_4, expected, LINE).changes
        assert widget.found.changes.logit != 0


def test_a_page_begins_with_a_text_that_the_model_reads_whole(runs: dict[str, Any]) -> None:
    run = runs["decoder"]
    ids = run.tokenizer.encode(LINE)
    limit = run.model.config.max_seq_len
    longer = np.resize(ids, limit + 9)

    def split(*rows: Any) -> Any:
        texts = [run.tokenizer.decode(row) for row in rows]
        return SimpleNamespace(texts=texts, lengths=np.array([*map(len, rows)]), row=lambda i: rows[i])

    assert first_that_fits(run, split(longer, ids)) == LINE
    assert first_that_fits(run, split(longer)) == run.tokenizer.decode(longer[: limit - 1])


def test_new_checkpoints_are_told_as_they_appear(runs: dict[str, Any]) -> None:
    run = runs["encoder"]
    [newest] = [path for path in run.folder.snapshots.iterdir() if path.name.endswith("00000004")]
    away = run.folder.path / "away"
    newest.rename(away)

    async def heard(page: Client) -> list[list[int]]:
        address = f"ws://{page.host}/api/live?run=encoder&cursor=0"
        headers = {"Origin": f"http://{page.host}", "Cookie": page.cookie}
        async with websockets.connect(address, additional_headers=headers, proxy=None) as socket:
            before = json.loads(await socket.recv())
            away.rename(newest)
            return [before["steps"], json.loads(await socket.recv())["steps"]]

    [[before, after]] = [asyncio.run(heard(page)) for page in entered(look(run, browser=False))]
    assert after == run.kept_steps()
    assert [step for step in after if step != 4] == before


# --- what takes long --------------------------------------------------------------------------------------


def test_what_takes_long_holds_up_no_quick_view(
    pages: dict[str, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = pages["decoder"]
    first = card(page)["first"]
    begun, go_on = threading.Event(), threading.Event()
    corpus = lens.corpus

    def slow(*given: Any, on_step: Any, **more: Any) -> Any:
        on_step(3, 8)
        begun.set()
        assert go_on.wait(20)
        return corpus(*given, on_step=on_step, **more)

    monkeypatch.setattr(lens, "corpus", slow)
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(page.view("corpus", **(first | {"n_rows": 2}))))
    asking.start()
    assert begun.wait(20)
    assert progress(page, "corpus") == {"done": 3, "total": 8}
    assert page.view("tokens", **first)["found"]["tokens"]
    go_on.set()
    asking.join(20)
    assert len(answers[0]["found"]["rows"]) == 2
    assert progress(page, "corpus") is None


def test_what_is_ended_says_so(pages: dict[str, Client], monkeypatch: pytest.MonkeyPatch) -> None:
    page = pages["decoder"]
    first = card(page)["first"]
    begun = threading.Event()

    def endless(*_: Any, on_step: Any, **__: Any) -> Any:
        for done in range(4000):
            on_step(done, 4000)
            begun.set()
            time.sleep(0.005)

    monkeypatch.setattr(lens, "tracin", endless)
    lines: list[str] = []
    asking = threading.Thread(target=lambda: lines.append(page.refused(409, "learned", **first)))
    asking.start()
    assert begun.wait(20)
    status, _, _ = page.ask("POST", "/api/end/learned")
    asking.join(20)
    assert status == 200
    assert lines == ["learned: cancelled before it finished; ask again"]


def test_a_page_that_is_closed_computes_no_further(
    runs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended, threads = threading.Event(), threading.Event(), set(threading.enumerate())

    def endless(*_: Any, on_step: Any, **__: Any) -> Any:
        try:
            for done in range(4000):
                on_step(done, 4000)
                begun.set()
                time.sleep(0.005)
        finally:
            ended.set()

    def ask() -> None:
        with contextlib.suppress(http.client.HTTPException, OSError):
            page.ask("POST", "/api/view/corpus", first)

    monkeypatch.setattr(lens, "corpus", endless)
    looking = look(runs["decoder"], browser=False)
    page = Client(looking)
    page.enter()
    first = card(page)["first"]
    page.view("tokens", **first)
    asking = threading.Thread(target=ask)
    asking.start()
    assert begun.wait(20)
    looking.close()
    assert ended.wait(10)
    asking.join(20)
    until = time.monotonic() + 10
    while (left := set(threading.enumerate()) - threads) and time.monotonic() < until:
        time.sleep(0.01)
    assert left == set()


def test_a_picture_of_what_takes_long_is_drawn_of_the_last_answer(
    pages: dict[str, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = pages["decoder"]
    chosen = card(page)["first"] | {"n_rows": 3}
    page.view("corpus", **chosen)
    asked: list[Any] = []
    corpus = lens.corpus

    def counted(*given: Any, **more: Any) -> Any:
        asked.append(more["rows"])
        return corpus(*given, **more)

    monkeypatch.setattr(lens, "corpus", counted)
    for rows in (3, 2, 2):
        status, _, svg = page.ask("POST", "/api/figure/corpus.svg", chosen | {"n_rows": rows})
        assert (status, svg[:5]) == (200, b"<?xml")
        monkeypatch.setattr(View, "drawn", lambda *_: b"<?xml")  # one picture is enough
    assert asked == [2]
    page.view("corpus", **chosen)
    assert asked == [2, 3]  # a view is always asked anew: the run may go on


def progress(page: Client, name: str) -> Any:
    status, _, body = page.ask("GET", f"/api/progress/{name}")
    assert status == 200
    return json.loads(body)


def test_two_windows_wait_for_the_same_and_both_get_it() -> None:
    long, done = LongComputations(), threading.Event()

    def other() -> None:
        with long.turn("one", never) as on_step:
            on_step(7, 8)
            done.set()

    with long.turn("one", never) as on_step:
        threading.Thread(target=other).start()
        for _ in range(40):
            on_step(2, 3)
            assert long.progress("one") == (2, 3)
            time.sleep(0.005)
    assert done.wait(20)


def test_who_ends_a_computation_ends_all_that_wait_for_it() -> None:
    long, ended = LongComputations(), threading.Event()

    def other() -> None:
        with pytest.raises(EndedError, match="one: cancelled"), long.turn("one", never):
            raise AssertionError
        ended.set()

    def first() -> None:
        with long.turn("one", never) as on_step:
            threading.Thread(target=other).start()
            while len(long._wanted["one"]) < 2:
                time.sleep(0.005)
            long.end("one")
            assert ended.wait(20)
            on_step(1, 3)

    with pytest.raises(EndedError, match="one: cancelled before it finished"):
        first()
    assert long.progress("one") is None


def never() -> bool:
    return False


def test_what_nobody_waits_for_any_more_ends() -> None:
    long, left = LongComputations(), threading.Event()

    def computed() -> None:
        with long.turn("one", left.is_set) as on_step:
            on_step(1, 3)
            left.set()
            on_step(2, 3)

    with pytest.raises(EndedError, match="one: cancelled"):
        computed()
    with long.turn("two", never):  # its turn has ended with it
        pass


def test_a_long_view_ends_when_its_page_goes_away(
    pages: dict[str, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would keep the long views of every other page waiting."""
    page = pages["decoder"]
    begun, ended = threading.Event(), threading.Event()

    def endless(*_: Any, on_step: Any, **__: Any) -> Any:
        begun.set()
        try:
            for done in range(4000):
                on_step(done, 4000)
                time.sleep(0.005)
        finally:
            ended.set()

    monkeypatch.setattr(lens, "tracin", endless)
    connection = page.asked("POST", "/api/view/learned", card(page)["first"])
    assert begun.wait(20)
    connection.close()
    assert ended.wait(10)


def test_turns_are_taken_one_at_a_time() -> None:
    long, order = LongComputations(), []

    def other() -> None:
        with long.turn("other", never):
            order.append("other")

    with long.turn("one", never):
        thread = threading.Thread(target=other)
        thread.start()
        for _ in range(4000):
            if long.progress("other") == (0, 0):
                break
            time.sleep(0.005)
        order.append("one")
    thread.join(20)
    assert order == ["one", "other"]
    assert long.progress("other") is None


def test_a_run_that_was_not_trained_here_has_no_corpus(runs: dict[str, Any], tmp_path: Any) -> None:
    saved = cf.Run(runs["decoder"].model, runs["decoder"].tokenizer).save(tmp_path / "saved")
    for page in entered(look(saved, text="the", browser=False)):
        views = card(page)["runs"][0]["views"]
        assert "events" in views
        assert not {"corpus", "learned"} & views.keys()
