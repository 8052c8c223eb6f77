"""Where a run learned something: TracIn's identities, counterfactuals to the bit, and what is refused."""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import clearformer as cf
from clearformer import lens
from clearformer.errors import DataError, RunError, UserError
from clearformer.lens.learning.agreement import rank_correlation
from clearformer.lens.learning.counterfactual import rows_left_out
from clearformer.lens.learning.preconditioning import preconditioner_of, steps_of
from clearformer.lens.learning.prediction import gradients_of, prediction_of
from clearformer.lens.learning.reopening import Moment, reopen
from clearformer.lens.learning.tracin import direction, inner_product, products
from clearformer.model import ModelConfig, build
from clearformer.training.optim.optimizers import Adam, AdamW, Muon
from clearformer.training.optim.schedules import WarmupStableDecay
from clearformer.training.store.checkpoint import load_checkpoint
from clearformer.training.store.folder import LrFactors
from clearformer.training.store.state import TrainState
from clearformer.training.tasks import NextTokenTask, Task
from clearformer.training.tasks.rows import rows_of_batch

TEXT = "".join(f"der Käse Nummer {n} schläft, le café {n * n} dort; " for n in range(16))
PROMPT, TARGET = "der Käs", "e"
STEPS, EVERY = 12, 4


def trained(name: str, **changes: Any) -> Any:
    """A run that is trained in a second, and keeps all of its checkpoints."""
    settings: dict[str, Any] = {
        "max_steps": STEPS,
        "max_seconds": None,
        "batch_size": 6,
        "grad_accum_steps": 2,
        "checkpoint_every": EVERY,
        "keep_last": 10,
        "log_every": 1,
        "device": "cpu",
        "dtype": "float32",
        "compile": False,
        "lr": 0.01,
        "optimizer": {"kind": "adamw"},
        "sample_every": None,
    }
    model = {
        "d_model": 12,
        "n_layers": 2,
        "max_seq_len": 13,
        "dropout": 0.1,
        "attention": {"n_heads": 2},
    }
    return cf.train(
        "quick",
        run=name,
        data={"path": str(Path("text.txt").resolve()), "order": "epochs"},
        model=model,
        tokenizer={"kind": "char"},
        train=settings | changes,
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a text, runs and a cache."""
    home = tmp_path_factory.mktemp("learned")
    (home / "text.txt").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("CLEARFORMER_RUNS", str(home / "runs"))
        patch.setenv("CLEARFORMER_CACHE", str(home / "cache"))
        yield home


@pytest.fixture(scope="module")
def run(home: Path) -> Any:
    trained("plain")
    return cf.load("plain")


def copy_of(home: Path, name: str) -> Path:
    """The plain run under another name."""
    target = home / "runs" / name
    shutil.copytree(home / "runs" / "plain", target, symlinks=True)
    return target


def fingerprint(folder: Path) -> dict[str, tuple[str, int]]:
    """Every file of a folder: its contents and when it was changed."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# --- preconditioners --------------------------------------------------------------------------------------


def moved(optimizers: list[Any], model: Any, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """By how much one step of the optimizers moves each parameter, with these gradients."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        p.grad = gradients[name].clone()
    for optimizer in optimizers:
        optimizer.step()
    return {name: p.detach() - before[name] for name, p in model.named_parameters()}


def small_model() -> Any:
    torch.manual_seed(3)
    config = ModelConfig(vocab_size=11, d_model=12, n_layers=1, max_seq_len=7)
    return build(config).double()


@pytest.mark.parametrize("spec", [Adam(), AdamW(weight_decay=0.0)])
def test_of_a_gradient_that_stays_the_same_adam_makes_what_its_step_is(spec: Any) -> None:
    model = small_model()
    optimizers = spec.build(model, 1e-4)
    gradients = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    for _ in range(4):
        moved(optimizers, model, gradients)
    step = moved(optimizers, model, gradients)
    found = steps_of(model, optimizers, gradients)
    for name in gradients:
        torch.testing.assert_close(found[name], -step[name], rtol=1e-4, atol=1e-9)


def test_of_its_momentum_muon_makes_an_orthogonal_matrix() -> None:
    model = small_model()
    optimizers = Muon(momentum=0.9).build(model, 0.02)
    gradients = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    moved(optimizers, model, gradients)
    muon = optimizers[0]
    seen = set()
    for name, parameter in model.named_parameters():
        if parameter not in muon.state:
            continue
        momentum = muon.state[parameter]["momentum"]
        zeros = {each: torch.zeros_like(g) for each, g in gradients.items()}
        found = steps_of(model, optimizers, zeros | {name: momentum})[name] / 0.02
        tall = max(1.0, found.shape[0] / found.shape[1])
        torch.testing.assert_close(
            torch.linalg.svdvals(found), torch.full((min(found.shape),), tall**0.5, dtype=found.dtype)
        )
        seen.add(found.shape[0] > found.shape[1])
    assert seen == {True, False}


@pytest.mark.parametrize("spec", [Adam(), Muon()])
def test_preconditioners_are_symmetric(spec: Any) -> None:
    model = small_model()
    optimizers = spec.build(model, 0.01)
    draw = lambda: {name: torch.randn_like(p) for name, p in model.named_parameters()}  # noqa: E731
    moved(optimizers, model, draw())
    one, other = draw(), draw()
    left = inner_product(steps_of(model, optimizers, one), other)
    right = inner_product(one, steps_of(model, optimizers, other))
    assert left == pytest.approx(right, rel=1e-6)


@pytest.mark.parametrize("spec", [Adam(), Muon()])
def test_numbers_that_no_batch_has_moved_are_not_moved(spec: Any) -> None:
    """As the embedding of a token that comes later, or a matrix before whose outputs all is 0."""
    model = small_model()
    optimizers = spec.build(model, 0.01)
    seen = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    for name, gradient in seen.items():
        gradient[0 if gradient.ndim == 1 or "embed" in name else slice(None)] = 0
    moved(optimizers, model, seen)
    steps = steps_of(model, optimizers, {name: torch.ones_like(p) for name, p in model.named_parameters()})
    for name, step in steps.items():
        assert (step[seen[name] == 0] == 0).all(), name
        assert step.isfinite().all()
    assert any(step.any() for step in steps.values())


def test_what_was_never_moved_is_not_and_unknown_optimizers_are_refused() -> None:
    model = small_model()
    gradients = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    assert not any(step.any() for step in steps_of(model, Muon().build(model, 0.1), gradients).values())
    with pytest.raises(UserError, match="TracIn supports adam, adamw and muon"):
        steps_of(model, [torch.optim.Rprop(model.parameters())], gradients)


# --- TracIn -----------------------------------------------------------------------------------------------


def test_a_step_of_sgd_changes_the_loss_as_the_product_says_ever_better_as_it_shrinks(run: Any) -> None:
    opened = reopen(run)
    prediction = prediction_of(run, PROMPT, target=TARGET)
    moment = opened.moment(8)
    model = moment.state.model.double().eval()
    batch = rows_of_batch(opened.task, 9, [2])
    gradients = gradients_of(model, opened.task.loss(model, *batch))
    of_prediction = prediction.gradients(model)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    errors = []
    for lr in (1e-1, 1e-2, 1e-3):
        sgd = [torch.optim.SGD(model.parameters(), lr=lr)]
        estimate = inner_product(of_prediction, steps_of(model, sgd, gradients))
        before = prediction.value(model)
        moved(sgd, model, gradients)
        change = prediction.value(model) - before
        errors.append(abs(-change / estimate - 1))
        model.load_state_dict(start, strict=False)
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] == pytest.approx(errors[1] / 10, rel=0.2)


def test_the_windows_of_a_batch_sum_to_the_batch(run: Any) -> None:
    opened = reopen(run)
    prediction = prediction_of(run, PROMPT, target=TARGET)
    moment = opened.moment(4)
    moment.state.model.double().eval()
    along = direction(moment, prediction)
    rows = products(moment, opened.task, along, [(5, row) for row in range(6)])
    whole = opened.task.loss(moment.state.model, *opened.task.batch(5, 0, 1))
    assert sum(rows) == pytest.approx(inner_product(along, gradients_of(moment.state.model, whole)), rel=1e-7)
    assert max(rows) != min(rows)


def test_a_score_is_the_sum_over_checkpoints(run: Any) -> None:
    found = lens.tracin(run, PROMPT, target=TARGET, sample=5, seed=2)
    alone = [
        lens.tracin(run, PROMPT, target=TARGET, sample=5, seed=2, checkpoints=[step]) for step in (4, 8, 12)
    ]
    assert found.checkpoints == [4, 8, 12]
    for window in found.windows:
        parts = [next(each.score for each in one.windows if each.id == window.id) for one in alone]
        assert window.score == pytest.approx(sum(parts), rel=1e-9)
    assert found.windows == sorted(found.windows, key=lambda each: -each.score)
    # one of them by hand, with the optimizer's state as it lies in the file
    opened, window = reopen(run), found.windows[0]
    moment = opened.moment(8)
    model, prediction = moment.state.model.eval(), prediction_of(run, PROMPT, target=TARGET)
    step, row = window.seen[0]
    inputs, targets = opened.task.batch(step, 0, 1)
    losses = torch.nn.functional.cross_entropy(model(inputs).transpose(1, 2), targets, reduction="none")
    gradients = gradients_of(model, losses[row].sum() / targets.numel())
    of_prediction = prediction.gradients(model)
    saved = load_checkpoint(opened.checkpoint_folder(8)).optimizer
    rate = next(
        line["lr"]
        for line in map(json.loads, run.folder.metrics_file.read_text().splitlines())
        if line["step"] == 8
    )
    total = 0.0
    for name, gradient in gradients.items():
        v = saved[f"{name}.exp_avg_sq"] / (1 - 0.999 ** saved[f"{name}.step"].item())
        total += (rate * of_prediction[name] * gradient / (v.sqrt() + 1e-8)).sum().item()
    assert next(each.score for each in alone[1].windows if each.id == window.id) == pytest.approx(
        total, rel=1e-4
    )


def test_windows_are_named_with_their_bytes_and_when_they_were_seen(run: Any, home: Path) -> None:
    found = lens.tracin(run, PROMPT, target=TARGET, sample=None, checkpoints=[STEPS])
    raw, opened = (home / "text.txt").read_bytes(), reopen(run)
    assert found.n_windows == len(found.windows) > 20
    for window in found.windows:
        [span] = window.spans
        assert span.file == str(home / "text.txt")
        assert raw[span.start : span.stop].decode() == window.text
        for step, row in window.seen:
            inputs, targets = opened.task.batch(step, 0, 1)
            ids = [*inputs[row].tolist(), targets[row, -1].item()]
            assert run.tokenizer.decode(np.array(ids)) == window.text
    assert sum(len(each.seen) for each in found.windows) == STEPS * 6
    assert any(len(each.seen) > 1 for each in found.windows)


def test_windows_of_some_steps_and_a_sample_of_them(run: Any) -> None:
    some = lens.tracin(run, PROMPT, target=TARGET, steps=(3, 5), sample=None, checkpoints=[8])
    assert some.n_windows == len(some.windows) == 12
    assert {step for each in some.windows for step, _ in each.seen} == {3, 4}
    sample = lens.tracin(run, PROMPT, target=TARGET, steps=(3, 5), sample=4, checkpoints=[8])
    assert len(sample.windows) == 4
    scores = {each.id: each.score for each in some.windows}
    assert all(each.score == pytest.approx(scores[each.id], rel=1e-9) for each in sample.windows)
    other = lens.tracin(run, PROMPT, target=TARGET, steps=(3, 5), sample=4, seed=1, checkpoints=[8])
    assert {each.id for each in other.windows} != {each.id for each in sample.windows}


def test_the_result_shows_itself(run: Any, tmp_path: Path) -> None:
    found = lens.tracin(run, PROMPT, sample=30, checkpoints=[STEPS])
    values = json.loads(json.dumps(found.to_dict()))
    assert values["windows"][0].keys() == {"id", "score", "seen", "spans", "text"}
    assert values["windows"][0]["spans"][0].keys() == {"file", "start", "stop"}
    assert len(repr(found)) < 300
    assert all(each.score > 0 for each in found.largest())
    assert all(each.score < 0 for each in found.smallest())
    assert [row[0][0] for row in found.table().rows] == sorted(row[0][0] for row in found.table().rows)
    assert "30 of" in found._repr_html_()
    pytest.importorskip("matplotlib")
    assert found.figure(tmp_path / "learned.svg").exists()


@pytest.mark.parametrize("optimizer", ["muon", "adam"])
def test_other_optimizers_an_average_and_bfloat16_are_reopened(optimizer: str, home: Path) -> None:
    name = f"with-{optimizer}"
    trained(name, optimizer={"kind": optimizer}, ema=0.9, max_steps=6, checkpoint_every=3)
    run = cf.load(name)
    found = lens.tracin(run, PROMPT, sample=6)
    assert len({each.score for each in found.windows}) == 6
    raw = load_checkpoint(run.folder.checkpoints / "step-00000006").optimizer
    weight = reopen(run).moment(6).state.model.embed.weight
    assert torch.equal(weight.detach(), raw["embed.weight.weight_now"])  # gradients were taken there
    assert lens.counterfactual(run, PROMPT, without=[]).same_weights
    mean = cf.load(name, average=2)
    with pytest.raises(UserError, match="run: its weights are the mean of several checkpoints"):
        lens.tracin(mean, PROMPT)
    with pytest.raises(UserError, match="run: its weights are the mean of several checkpoints"):
        lens.counterfactual(mean, PROMPT, without=[])


# --- counterfactuals --------------------------------------------------------------------------------------


def test_leaving_out_nothing_gives_the_run_to_the_bit_and_leaves_it_alone(run: Any) -> None:
    before, drawn = fingerprint(run.folder.path), torch.get_rng_state()
    with torch.inference_mode():
        again = lens.counterfactual(run, PROMPT, target=TARGET, without=[])
    assert (again.start, again.step, again.change, again.estimate) == (0, STEPS, 0.0, 0.0)
    assert again.same_weights
    manifest = json.loads((run.folder.checkpoints / "step-00000012" / "manifest.json").read_text())
    assert again.sha256 == manifest["model.safetensors"]["sha256"]
    for name, weight in run.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name])
    assert fingerprint(run.folder.path) == before
    assert torch.equal(torch.get_rng_state(), drawn)


def test_from_the_nearest_checkpoint_it_is_the_same_as_from_the_start(run: Any, home: Path) -> None:
    near = lens.counterfactual(run, PROMPT, target=TARGET, without=[(9, 1), (10, 5)])
    assert near.start == 8
    assert not near.same_weights
    assert near.change != 0
    copy = copy_of(home, "last-alone")
    for step in (4, 8):
        shutil.rmtree(copy / "checkpoints" / f"step-{step:08d}")
    far = lens.counterfactual(cf.load("last-alone"), PROMPT, target=TARGET, without=[(10, 5), (9, 1)])
    assert far.start == 0
    assert far.sha256 == near.sha256
    assert far.left_out == [(9, 1), (10, 5)]


def test_rows_are_given_as_windows_ids_and_steps(run: Any) -> None:
    opened = reopen(run)
    window = next(each for each in lens.tracin(run, PROMPT, sample=None).windows if len(each.seen) > 1)
    assert rows_left_out(opened, [window]) == sorted(window.seen) == rows_left_out(opened, [window.id])
    assert rows_left_out(opened, [window, window.seen[0], (0, 3)])[0] in {(0, 3), min(window.seen)}


def test_a_step_without_rows_is_one_on_the_mean_of_the_rest(home: Path) -> None:
    """Without dropout, and with one part: gradients of the rest by hand give the weights that come out."""
    trained("one-step", max_steps=1, checkpoint_every=1, optimizer={"kind": "adam"}, grad_clip_norm=None)
    run = cf.load("one-step")
    opened = reopen(run)
    found = lens.counterfactual(run, PROMPT, without=[(0, 0), (0, 4)])
    with torch.random.fork_rng():
        state = TrainState.build(opened.config, torch.device("cpu"))
    torch.manual_seed(opened.config.seed * 1_000_003)  # the dropout of step 0
    loss = torch.zeros(())
    for part in range(2):  # rows 0 to 2, and 3 to 5
        inputs, targets = opened.task.batch(0, part, 2)
        kept = [row for row in range(3) if row + 3 * part not in (0, 4)]
        logits = state.model(inputs)[kept]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets[kept], reduction="sum")
        loss = loss + losses / (4 * targets.shape[1])
    gradients = gradients_of(state.model, loss)
    for name, weight in found.model.named_parameters():
        was = dict(state.model.named_parameters())[name].detach()
        expected = was - opened.config.train.lr * gradients[name] / (gradients[name].abs() + 1e-8)
        moves = gradients[name].abs() > 1e-5  # where Adam's first step is not decided by rounding
        torch.testing.assert_close(weight.detach()[moves], expected[moves], rtol=1e-3, atol=1e-6)


def test_without_a_text_it_is_the_held_out_loss(run: Any) -> None:
    found = lens.counterfactual(run, without=[(11, 0)])
    assert found.before == pytest.approx(run.evaluate().loss, rel=1e-9)
    assert found.after != found.before
    assert found.estimate is None
    assert "held-out" in found.caption()


def test_tracins_ranking_is_compared_with_the_truth(run: Any, tmp_path: Path) -> None:
    found = lens.check_tracin(run, PROMPT, target=TARGET, windows=3, steps=(8, 12), sample=6)
    assert len(found.compared) == 3
    scores = [each.window.score for each in found.compared]
    assert scores == sorted(scores, reverse=True)
    changes = [each.change for each in found.compared]
    assert found.rank_correlation == pytest.approx(rank_correlation(scores, changes))
    one = found.compared[1]
    again = lens.counterfactual(run, PROMPT, target=TARGET, without=[one.window])
    assert (again.change, again.estimate) == (one.change, one.estimate)
    assert (
        json.loads(json.dumps(found.to_dict()))["compared"][0]["window"]["id"] == found.compared[0].window.id
    )
    pytest.importorskip("matplotlib")
    assert found.figure(tmp_path / "agreement.svg").exists()


def test_rank_correlation_is_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    for _ in range(5):
        one, other = rng.integers(0, 6, (2, 13)).astype(float)
        assert rank_correlation(one, other) == pytest.approx(stats.spearmanr(one, other).statistic)
    assert np.isnan(rank_correlation([1, 1, 1], [1, 2, 3]))


# --- what is refused --------------------------------------------------------------------------------------


def given(anything: Any) -> Any:
    """A value of no type that a checker knows."""
    return anything


REFUSED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "steps": (
        "steps: this run took the steps 0 to 11; got 3 to 13",
        lambda r: lens.tracin(r, PROMPT, steps=(3, 13)),
    ),
    "sample": ("sample: 1 or more; got 0", lambda r: lens.tracin(r, PROMPT, sample=0)),
    "row": (
        "has the rows 0 to 5; there is no row 6",
        lambda r: lens.counterfactual(r, PROMPT, without=[(3, 6)]),
    ),
    "step": ("there is no step 12", lambda r: lens.counterfactual(r, PROMPT, without=[(12, 0)])),
    "window": ("never saw window 1", lambda r: lens.counterfactual(r, PROMPT, without=[1])),
    "shape": ("without: a window of", lambda r: lens.counterfactual(r, PROMPT, without=given(["abc"]))),
    "words": ("steps: give the first step", lambda r: lens.tracin(r, PROMPT, steps=given(("a", 3)))),
    "one step": ("steps: give the first step", lambda r: lens.tracin(r, PROMPT, steps=given(3))),
    "numpy": ("never saw window 1", lambda r: lens.counterfactual(r, PROMPT, without=given([np.int64(1)]))),
    "none": ("without: give a list", lambda r: lens.counterfactual(r, PROMPT, without=given(None))),
    "seed": ("seed: 0 or more; got -1", lambda r: lens.tracin(r, PROMPT, seed=-1)),
    "a word": ("sample: a whole number; got 'x'", lambda r: lens.tracin(r, PROMPT, sample=given("x"))),
    "list": ("without: give a list", lambda r: lens.counterfactual(r, PROMPT, without=given(3))),
    "one checkpoint": ("checkpoints: give a list", lambda r: lens.tracin(r, PROMPT, checkpoints=given(4))),
    "its name": (
        "checkpoints: a whole number; got '4'",
        lambda r: lens.tracin(r, PROMPT, checkpoints=given("4")),
    ),
    "half a step": ("without: a window", lambda r: lens.counterfactual(r, PROMPT, without=given([(3.5, 0)]))),
    "digits": ("without: a window", lambda r: lens.counterfactual(r, PROMPT, without=given(["31"]))),
    "number": (
        "windows: a whole number",
        lambda r: lens.check_tracin(r, PROMPT, windows=given(3.0), sample=4),
    ),
    "few": ("windows: from 3 to the 4 scored", lambda r: lens.check_tracin(r, PROMPT, windows=5, sample=4)),
    "target": ("'qu' is no", lambda r: lens.tracin(r, PROMPT, target="qu")),
    "position": ("position 7 is beyond the text", lambda r: lens.tracin(r, PROMPT, position=7)),
    "run": ("give a run, such as cf.load", lambda r: lens.tracin(r.model, [1, 2])),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_asked_is_refused_in_one_line(what: str, run: Any) -> None:
    message, ask = REFUSED[what]
    with pytest.raises(UserError) as refused:
        ask(run)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_run_before_its_first_step_has_seen_no_window(run: Any) -> None:
    start = cf.load(run.name, checkpoint=0)
    with pytest.raises(UserError, match="the run never saw window 5"):
        lens.counterfactual(start, PROMPT, without=[5])
    assert lens.counterfactual(start, PROMPT, without=[]).same_weights


def test_a_held_out_split_is_asked_for_before_the_run_is_trained_again(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NextTokenTask, "evaluate", lambda *_: None)
    monkeypatch.setattr(sys.modules[lens.counterfactual.__module__], "train_again", pytest.fail)
    with pytest.raises(
        UserError, match="text: this run has no held-out split to measure a loss on; give a text"
    ):
        lens.counterfactual(run, without=[])


def test_a_checkpoint_that_is_not_kept_is_refused(run: Any) -> None:
    with pytest.raises(RunError, match=r"keeps 4, 8, 12 up to step 12, but not 5; train.keep_last"):
        lens.tracin(run, PROMPT, checkpoints=[4, 5])


def test_a_run_that_was_not_trained_here_is_refused(run: Any, home: Path) -> None:
    kept = cf.Run(run.model, run.tokenizer).save("kept")
    with pytest.raises(RunError, match="its training data are unknown"):
        lens.tracin(kept, PROMPT)
    with pytest.raises(RunError, match="this run has no folder"):
        lens.tracin(cf.Run(run.model, run.tokenizer), PROMPT)


def test_data_that_have_changed_are_refused(run: Any, home: Path) -> None:
    text = home / "text.txt"
    try:
        text.write_text(TEXT + "more ")
        with pytest.raises(DataError, match="the data have changed since this run started"):
            lens.tracin(run, PROMPT)
        text.unlink()
        with pytest.raises(DataError, match="there is no such file"):
            lens.counterfactual(run, PROMPT, without=[])
    finally:
        text.write_text(TEXT)


def test_rates_that_no_second_run_can_have_are_refused(run: Any, home: Path) -> None:
    """Of a run of before its rates were recorded."""
    folder = copy_of(home, "by-the-clock")
    (folder / "lr_factors.f64").unlink()
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace('max_seconds = "none"', "max_seconds = 5.0"))
    with pytest.raises(RunError, match=r"followed the clock \(train.max_seconds=5\)"):
        lens.counterfactual(cf.load("by-the-clock"), PROMPT, without=[])
    assert lens.tracin(cf.load("by-the-clock"), PROMPT, sample=2).windows
    folder = copy_of(home, "longer")
    (folder / "lr_factors.f64").unlink()
    (folder / "config.toml").write_text(config.replace("max_steps = 12", "max_steps = 24"))
    with pytest.raises(RunError, match="it was resumed with another length"):
        lens.counterfactual(cf.load("longer"), PROMPT, without=[])


def test_an_objective_that_tells_of_no_examples_is_refused(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NextTokenTask, "example_ids", Task.example_ids)
    with pytest.raises(
        UserError, match=r"train.objective.kind=next_token: this objective's task does not say"
    ):
        lens.tracin(run, PROMPT)


def test_an_optimizer_of_one_s_own_is_not_the_one_that_it_is_derived_from() -> None:
    class Signs(torch.optim.SGD):
        """Steps by the gradient's sign."""

    weights = [torch.nn.Parameter(torch.zeros(1))]
    assert preconditioner_of(torch.optim.SGD(weights, lr=1.0))(torch.ones(1), {}, {}) == 1
    with pytest.raises(UserError, match="what Signs does to one window's gradient is unknown"):
        preconditioner_of(Signs(weights, lr=1.0))


def test_without_an_estimate_the_truth_is_told_all_the_same(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training again has taken its time by then."""
    monkeypatch.setattr("clearformer.lens.learning.preconditioning.PRECONDITIONERS", {})
    found = lens.counterfactual(run, PROMPT, without=[(3, 0)])
    assert found.change != 0
    assert found.estimate is None


def test_a_step_s_rate_is_the_recorded_one_or_follows_the_clock(run: Any, home: Path) -> None:
    """At the last checkpoint of a run by the wall clock the rate of now is 0."""
    folder = copy_of(home, "by-the-wall-clock")
    moment = reopen(cf.load("by-the-wall-clock")).moment(12)
    assert moment.lr_factor(3) == LrFactors.read(folder / "lr_factors.f64")[3]
    schedule = WarmupStableDecay(decay=1.0)
    train = moment.config.train.replace(
        max_steps=None, max_wall_seconds=60.0, schedule=schedule, warmup_steps=0
    )
    late = replace(moment.progress, wall_before=10.0, wall_seconds=58.0, wall_after=2.0)
    by_clock = Moment(moment.config.replace(train=train), moment.state, late, np.zeros(0))
    rates = [by_clock.lr_factor(step) for step in (0, 6, 12)]
    assert rates[0] > rates[1] > rates[2] == 0
