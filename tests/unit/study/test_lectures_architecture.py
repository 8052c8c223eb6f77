"""The studies of architectures, at a tiny size from end to end; their fairness and their measures."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clearformer.cost import analytic_parameters
from clearformer.data import TextData, prepare
from clearformer.model import Decoder
from clearformer.model.attention import Last
from clearformer.model.linear_attention import Linear
from clearformer.model.positions import Sinusoidal
from clearformer.run import load
from clearformer.study.lectures import architecture
from clearformer.study.measures.lengths import extended, losses_at
from clearformer.study.measures.sizes import cache_bytes
from clearformer.study.measures.speed import generation_speed
from clearformer.study.measures.stability import gradients_at_start
from clearformer.study.outcomes import Outcome, outcome
from clearformer.study.running import compute
from clearformer.study.store import Store
from clearformer.study.study import Probe, Study, Training
from clearformer.study.trials import config_of, trials
from clearformer.text import BPETokenizerSpec

TEXT = "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer\n" * 40
TINY = {"model.max_seq_len": 16, "train.batch_size": 2, "train.max_steps": 2, "train.warmup_steps": 1}


def tiny(study: Study, folder: Path, *labels: str) -> Study:
    """A study with two steps, one layer where depth is not the question, the given arms or the first of each side."""
    text = folder / "text.txt"
    text.write_text(TEXT)
    own = {**TINY, "data": {"kind": "text", "path": str(text), "name": "none"}, "train.device": "cpu"}
    firsts = {arms[0] for arms in study.sides.values()}
    wanted = labels or firsts
    arms = [
        _tiny_arm(arm, own) if isinstance(arm, Training) else arm for arm in study.arms if arm.label in wanted
    ]
    known = {arm.label for arm in arms} | {arm.side for arm in arms if isinstance(arm, Training)}
    claims = tuple(claim for claim in study.claims if {claim.lower, claim.higher} <= known)
    published = tuple(each for each in study.published if each.arm in known)
    return replace(study, arms=tuple(arms), claims=claims, published=published, seeds=1)


def _tiny_arm(arm: Training, own: dict[str, Any]) -> Training:
    return replace(arm, settings={"model.n_layers": 1, **arm.settings, **own})


def computed(study: Study, folder: Path) -> tuple[Outcome, Store]:
    store = Store(folder / "studies")
    for trial in trials(study):
        compute(trial, store)
    found = outcome(study, store)
    assert found.is_whole
    assert not found.failures
    return found, store


def model_of(study: Study, label: str) -> Any:
    arm = study.arm(label)
    assert isinstance(arm, Training)
    return config_of(study, arm, 1, 1.0).model


@pytest.mark.parametrize(
    "study", [architecture.FEED_FORWARD, architecture.HEAD_STUDY], ids=lambda each: each.name
)
def test_sides_have_equal_parameters(study: Study) -> None:
    totals = [
        sum(analytic_parameters(model_of(study, arms[0]).replace(vocab_size=65)).values())
        for arms in study.sides.values()
    ]
    assert max(totals) <= 1.01 * min(totals), totals


def test_the_models_whose_speed_is_measured_have_equal_parameters() -> None:
    arms = tuple(
        Training(side, architecture.PRESET, {**architecture.WIDE, **settings})
        for side, settings in architecture.WIDE_HEADS.items()
    )
    study = replace(architecture.HEAD_STUDY, arms=arms, claims=(), settings={})
    totals = [
        sum(analytic_parameters(model_of(study, arm.label).replace(vocab_size=256)).values()) for arm in arms
    ]
    assert max(totals) <= 1.01 * min(totals), totals


@pytest.mark.parametrize("study", architecture.STUDIES, ids=lambda each: each.name)
def test_sides_are_tuned_alike_on_the_same_batches(study: Study) -> None:
    rates = set()
    for arms in study.sides.values():
        configs = [config_of(study, arm, 1, 1.0) for arm in study.arms if arm.label in arms]  # type: ignore[arg-type]
        rates.add(tuple(config.train.lr for config in configs))
        assert {(config.train.max_steps, config.train.batch_size, config.seed) for config in configs} == {
            (study.settings["train.max_steps"], study.settings["train.batch_size"], 1)
        }
    assert len(rates) == 1
    assert study.seeds == 3


def test_tokens_of_a_text_hold_as_many_bytes_with_every_tokenizer(data_dir: Path) -> None:
    prepared = prepare(TextData(name="shakespeare"), BPETokenizerSpec(vocab_size=1024))
    train = prepared.splits["train"]
    assert architecture.LENGTHS["bpe", 1024] * train.n_bytes / len(train) == pytest.approx(128, rel=0.02)


def test_norms(tmp_path: Path) -> None:
    labels = [
        f"{placement}, 2 layers, {warmup}, rate 0.001"
        for placement in ("pre", "post")
        for warmup in architecture.WARMUPS
    ]
    found, _ = computed(tiny(architecture.NORMS, tmp_path, *labels, "post, 2 layers, at the start"), tmp_path)
    for label in labels:
        assert len(found.value(label, "gain_over_unigrams")) == 1
        [loss], [unigram] = found.value(label, "val_loss"), found.value(label, "unigram_loss")
        assert unigram - loss == pytest.approx(found.first(label, "gain_over_unigrams"))
    rows = found.first("post, 2 layers, at the start", "gradient_by_layer")
    assert [layer for layer, _ in rows] == [1, 2]
    assert found.first("post, 2 layers, at the start", "last_over_first") == pytest.approx(
        rows[1][1] / rows[0][1]
    )


def test_gradients_at_the_start_follow_from_the_seed() -> None:
    settings = {"model.d_model": 16, "model.n_layers": 3, "model.max_seq_len": 8, "model.init": "xavier"}
    one, again, other = (gradients_at_start(seed, architecture.PRESET, settings) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    sizes = [size for _, size in one["gradient_by_layer"]]
    assert one["largest_over_smallest"] == pytest.approx(max(sizes) / min(sizes))


def test_feed_forward(tmp_path: Path) -> None:
    found, _ = computed(tiny(architecture.FEED_FORWARD, tmp_path), tmp_path)
    assert found.compared == list(architecture.FEED_FORWARDS)
    for side in found.compared:
        assert found.first(side, "ffn_share_of_blocks") == pytest.approx(2 / 3)
        assert 0 < found.first(side, "ffn_share") < 2 / 3
    assert [verdict.verdict for verdict in found.published()] == ["reproduced", "reproduced"]
    assert len(found.claims()) == 4


def test_positions(tmp_path: Path) -> None:
    found, store = computed(tiny(architecture.POSITION_STUDY, tmp_path), tmp_path)
    for side in architecture.POSITIONS:
        beyond = [found.value(side, f"loss_at_{n}x") for n in (2, 3, 4)]
        assert all(len(values) == (side != "learned") for values in beyond)
        rows = found.first(side, "loss_by_position")
        assert [start for start, _ in rows] == [4 * n for n in range(4 if side == "learned" else 16)]
        mean = sum(loss for _, loss in rows[:4]) / 4
        assert mean == pytest.approx(found.first(side, "loss_at_1x"), abs=1e-4)
    run = load(
        next(path for path in store.runs.iterdir() if "rope" in (path / "config.toml").read_text()),
        device="cpu",
    )
    assert isinstance(run.model, Decoder)
    windows = np.arange(3 * 17).reshape(3, 17) % run.tokenizer.vocab_size
    assert np.allclose(losses_at(extended(run, 64), windows), losses_at(run.model, windows))


def test_heads(tmp_path: Path) -> None:
    found, _ = computed(tiny(architecture.HEAD_STUDY, tmp_path), tmp_path)
    by_side = [found.first(side, "cache_bytes") for side in ("MHA", "GQA", "MQA")]
    assert by_side == [2 * 1 * heads * 12 * 16 * 4 for heads in (8, 2, 1)]


def test_the_cache_is_as_large_as_its_tensors() -> None:
    config = model_of(architecture.HEAD_STUDY, "GQA, rate 0.001").replace(vocab_size=65)
    assert cache_bytes(config) == 2 * 3 * 2 * 12 * 128 * 4
    others = (
        {"attention": Linear(n_heads=2)},
        {"attention": Last(), "position": Sinusoidal()},
        {"family": "encoder-decoder"},
    )
    assert [cache_bytes(config.replace(**other)) for other in others] == [None, None, None]


def test_generation_is_measured_of_every_side() -> None:
    sides = {"MHA": {"model.attention.n_kv_heads": 2}, "MQA": {"model.attention.n_kv_heads": 1}}
    settings = {
        "model.d_model": 16,
        "model.n_layers": 1,
        "model.max_seq_len": 32,
        "model.attention.n_heads": 2,
    }
    found = generation_speed(1, architecture.PRESET, settings, sides, streams=2, n_new=4, rounds=1)
    assert set(found) == {"MHA_tokens_per_second", "MQA_tokens_per_second"}
    assert all(rate > 0 for rate in found.values())
    [probe] = [arm for arm in architecture.HEAD_STUDY.arms if isinstance(arm, Probe)]
    assert probe.arguments["settings"]["model.max_seq_len"] >= 8 + 240


def test_tokenizers(tmp_path: Path) -> None:
    labels = ("character", "BPE 512", "WordPiece 512", "Unigram 512")
    study = tiny(architecture.TOKENIZERS, tmp_path, *(f"{label}, rate 0.002" for label in labels))
    found, _ = computed(study, tmp_path)
    bits = found.first("character", "val_loss") / math.log(2)
    assert found.first("character", "bits_per_byte") == pytest.approx(bits, rel=1e-4)
    assert found.first("character", "bytes_per_token") == 1
    for side in ("BPE 512", "Unigram 512"):
        assert found.first(side, "bits_per_byte") == found.first(side, "bits_per_byte_at_least")
        assert found.first(side, "bytes_per_token") > 1
    assert found.value("WordPiece 512", "bits_per_byte") == []
    assert found.first("WordPiece 512", "bits_per_byte_at_least") > 0


def test_schedules(tmp_path: Path) -> None:
    found, store = computed(tiny(architecture.SCHEDULE_STUDY, tmp_path), tmp_path)
    assert found.compared == list(architecture.SCHEDULES)
    assert len(list(store.runs.iterdir())) == 4
    assert all(torch.tensor(found.value(side, "val_loss")).isfinite().all() for side in found.compared)
