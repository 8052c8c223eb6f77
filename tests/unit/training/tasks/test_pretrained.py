"""Beginning with the weights of an earlier run: what is taken, what begins anew, and what does not fit."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from clearformer.errors import ConfigError, RunError
from clearformer.training.loop import Training, TrainResult
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.checkpoint import (
    MODEL,
    OPTIMIZER,
    Progress,
    list_checkpoints,
    load_checkpoint,
)
from clearformer.training.store.folder import RunFolder

Trained = Callable[..., TrainResult]
Begun = Callable[..., Training]
Folders = Callable[[str], RunFolder]

BERT = ("model.masked_head=transform", "model.head_bias=true", "model.n_token_types=2")


class CrashedError(Exception):
    """What no code of ours expects."""


class Listener(Reporter):
    """Remembers what it is told; crashes after a step."""

    def __init__(self, crash_after: int = -1) -> None:
        self.crash_after, self.said = crash_after, ""

    def say(self, message: str) -> None:
        self.said += message

    def stepped(self, progress: Progress, metrics: object) -> None:
        if progress.step == self.crash_after:
            raise CrashedError


@pytest.fixture
def begin_with(run_folder: Folders) -> Callable[[str], str]:
    """The setting that begins with a run of a name."""
    return lambda name: f"train.pretrained={run_folder(name).path}"


def weights_of(folder: RunFolder) -> dict[str, torch.Tensor]:
    return dict(load_checkpoint(list_checkpoints(folder.checkpoints)[0]).model)


# --- what is taken ----------------------------------------------------------------------------------------


def test_a_classifier_begins_with_all_of_the_masked_model_but_its_head(
    trained: Trained, begun: Begun, run_folder: Folders, begin_with: Callable[[str], str]
) -> None:
    trained("masked", "masked", *BERT, "train.max_steps=3")
    fresh = begun("fresh", "classification", *BERT).model.state_dict()

    listener = Listener()
    training = begun("a", "classification", *BERT, begin_with("masked"), reporter=listener)

    theirs, own = weights_of(run_folder("masked")), training.model.state_dict()
    new = {name for name in own if name.startswith(("pooler.", "classifier."))}
    left_out = {name for name in theirs if name.startswith(("masked_head.", "head_bias"))}
    assert own.keys() - new == theirs.keys() - left_out
    assert new
    assert left_out
    for name, weight in own.items():
        assert torch.equal(weight, (fresh if name in new else theirs)[name])
    assert listener.said.endswith("step 3; new: classifier, pooler")


@pytest.mark.parametrize("task", ["next_token", "translation", "masked", "classification"])
def test_of_the_same_task_everything_is_taken(
    trained: Trained, begun: Begun, run_folder: Folders, begin_with: Callable[[str], str], task: str
) -> None:
    settings = ("model.tie_embeddings=false",)
    trained("first", task, *settings, "train.max_steps=2")

    training = begun("a", task, *settings, begin_with("first"), "train.ema=0.9", "seed=2")

    theirs = weights_of(run_folder("first"))
    assert training.state.average is not None
    for model in (training.model, training.state.average):
        assert model.state_dict().keys() == theirs.keys()
        assert all(torch.equal(weight, theirs[name]) for name, weight in model.state_dict().items())


def test_settings_that_the_weights_were_not_trained_with_are_told(
    trained: Trained, begun: Begun, begin_with: Callable[[str], str]
) -> None:
    """What has no weights, such as a position's kind, would pass without a word."""
    trained("first", "masked", "model.position=rope", "train.max_steps=2")
    listener = Listener()
    begun("a", "masked", "model.position=alibi", "model.dropout=0.3", begin_with("first"), reporter=listener)
    assert listener.said.endswith("with other settings: model.position.kind=alibi (there rope)")
    same = Listener()
    begun("b", "masked", "model.position=rope", "model.dropout=0.3", begin_with("first"), reporter=same)
    assert "other settings" not in same.said


def test_a_classifier_of_other_classes_begins_anew(
    trained: Trained, begun: Begun, run_folder: Folders, begin_with: Callable[[str], str], tmp_path: Path
) -> None:
    trained("three", "classification", "train.max_steps=2")
    two = tmp_path / "two.tsv"
    two.write_text("text\tlabel\n" + "".join(f"{n} apples\t{n % 2}\n" for n in range(20)))

    training = begun("two", "classification", f"data.path={two}", begin_with("three"))

    theirs, own = weights_of(run_folder("three")), training.model.state_dict()
    assert own["classifier.weight"].shape == (2, 6)
    for name in own.keys() - {"classifier.weight", "classifier.bias"}:
        assert torch.equal(own[name], theirs[name])


def test_the_tokens_are_those_of_the_earlier_run(
    trained: Trained, run_folder: Folders, begin_with: Callable[[str], str]
) -> None:
    trained("first", "translation", "tokenizer=char", "train.max_steps=1")
    other = run_folder("first").path.parent.parent / "other.tsv"
    other.write_text("ab\tba\nab\tab\nba\tba\n" * 3)

    outcome = trained(
        "a",
        "translation",
        f"data.path={other}",
        begin_with("first"),
        "data.val_fraction=0.0",
        "train.max_steps=1",
    )

    first = run_folder("first").read_tokenizer()
    assert outcome.task.tokenizer.to_json() == first.to_json() == run_folder("a").read_tokenizer().to_json()


# --- going on with such a run -----------------------------------------------------------------------------


@pytest.mark.parametrize("crash_after", [3, 8])
def test_a_killed_run_goes_on_whether_or_not_it_had_a_checkpoint(
    trained: Trained,
    resumed: Trained,
    run_folder: Folders,
    begin_with: Callable[[str], str],
    crash_after: int,
) -> None:
    trained("masked", "masked", "train.max_steps=5")
    settings = ("classification", begin_with("masked"), "model.dropout=0.1", "train.checkpoint_every=6")
    trained("whole", *settings)
    with pytest.raises(CrashedError):
        trained("a", *settings, reporter=Listener(crash_after))
    assert len(list_checkpoints(run_folder("a").checkpoints)) == (crash_after > 6)

    if crash_after > 6:  # then nothing of the earlier run is needed any more
        shutil.rmtree(run_folder("masked").path)
    resumed("a")

    ours, theirs = (list_checkpoints(run_folder(name).checkpoints)[0] for name in ("a", "whole"))
    for name in (MODEL, OPTIMIZER):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()


def test_a_run_resumed_before_its_first_checkpoint_begins_with_the_same_weights(
    trained: Trained, resumed: Trained, run_folder: Folders, begin_with: Callable[[str], str]
) -> None:
    """The run that it began with has gone on meanwhile; or its weights of then are gone."""
    trained("masked", "masked", "train.max_steps=5", "train.keep_last=3")
    settings = ("classification", begin_with("masked"))
    trained("whole", *settings)
    for name in ("a", "b"):
        with pytest.raises(CrashedError):
            trained(name, *settings, reporter=Listener(2))
        assert not list_checkpoints(run_folder(name).checkpoints)

    resumed("masked", max_steps=9)
    resumed("a")
    ours, theirs = (list_checkpoints(run_folder(name).checkpoints)[0] for name in ("a", "whole"))
    for name in (MODEL, OPTIMIZER):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()

    [_, at_five] = list_checkpoints(run_folder("masked").checkpoints)
    shutil.rmtree(at_five)
    with pytest.raises(
        RunError, match=r"masked no longer has the weights of step 5 that this run began with"
    ):
        resumed("b")


# --- what does not fit ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("model.d_model=12", r"blocks\.0\.\S+ is \S+ in .* and \S+ in this model"),
        ("model.n_layers=2", r"blocks\.1\.\S+ is absent in .* and \S+ in this model"),
        ("model.max_seq_len=29", r"position\.weight is 23x6 in .* and 29x6 in this model"),
        ("model.embedding_norm=false", r"ln_embed\.\S+ is 6 in .* and absent in this model"),
    ],
    ids=lambda value: value,
)
def test_a_model_of_another_shape_is_refused(
    trained: Trained, run_folder: Folders, begin_with: Callable[[str], str], setting: str, named: str
) -> None:
    trained("masked", "masked", "train.max_steps=1")

    with pytest.raises(
        ConfigError, match=rf"train\.pretrained: {named}; its sizes must match .*config\.toml"
    ):
        trained("a", "classification", begin_with("masked"), setting)
    assert not run_folder("a").path.exists()


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        (("tokenizer=byte",), r"kind=bpe \(there byte\)"),
        (("tokenizer=bpe", "tokenizer.vocab_size=280"), r"vocab_size=270 \(there 280\)"),
    ],
    ids=["of another kind", "of another size"],
)
def test_another_tokenizer_is_refused(
    trained: Trained,
    run_folder: Folders,
    begin_with: Callable[[str], str],
    theirs: tuple[str, ...],
    named: str,
) -> None:
    trained("masked", "masked", "train.max_steps=1", *theirs)
    other = ("tokenizer=bpe", "tokenizer.vocab_size=270")

    with pytest.raises(
        ConfigError, match=rf"tokenizer\.{named}: train\.pretrained=.* its tokenizer; remove the setting"
    ):
        trained("a", "classification", begin_with("masked"), *other)
    assert not run_folder("a").path.exists()


def test_a_run_that_is_not_there_or_has_no_checkpoint_is_refused(
    trained: Trained, run_folder: Folders, begin_with: Callable[[str], str]
) -> None:
    with pytest.raises(RunError, match=r"runs/masked is not a run folder"):
        trained("a", "classification", begin_with("masked"))
    trained("masked", "masked", "train.max_steps=1")
    shutil.rmtree(run_folder("masked").checkpoints)
    with pytest.raises(RunError, match=r"train\.pretrained: .*runs/masked has no checkpoint"):
        trained("a", "classification", begin_with("masked"))
    assert not run_folder("a").path.exists()
