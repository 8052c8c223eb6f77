"""The studies that look inside a model, at a tiny size, and the identities that their measures rest on."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import clearformer as cf
from clearformer.errors import DataError, UserError
from clearformer.study.lectures import studies
from clearformer.study.measures import order
from clearformer.study.measures.order import pooled_distance, shift_map, turned
from clearformer.study.measures.stream import deleted_layers, logit_parts, without_layer
from clearformer.study.measures.texts import METHODS, decodings, distinct, repetition, senses
from clearformer.study.outcomes import REPRODUCED
from clearformer.study.study import Arm, Measure, Study, Training

from .tiny import MODEL, TEXT, TRAIN, computed, text_folder, tiny

SHORT = {
    decodings: {"n_prompts": 2, "prompt_tokens": 8, "max_new_tokens": 20},
    deleted_layers: {"n_windows": 4},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with text_folder(tmp_path_factory.mktemp("studies")) as made:
        yield made


def small(name: str) -> Study:
    """A study of the small decoder, with fewer texts measured."""
    study = studies()[name]
    measures = tuple(
        Measure(m.function, {**m.arguments, **SHORT.get(m.function, {})}) for m in study.measures
    )
    return tiny(replace(study, measures=measures), {"data.name": None, "data.path": "text.txt"})


def with_settings(arm: Arm, settings: Mapping[str, Any]) -> Training:
    """A training with other settings."""
    assert isinstance(arm, Training)
    return replace(arm, settings={**arm.settings, **settings})


def test_a_text_that_has_changed_since_training_is_not_taken_for_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = Path("text.txt")
    text.write_text(TEXT)
    run = cf.train("quick", data={"path": "text.txt"}, model=MODEL, train=TRAIN, run="a", quiet=True)
    text.write_text(TEXT[::-1])
    for measure in (deleted_layers, logit_parts, decodings):
        with pytest.raises(DataError, match="held-out text may be training text"):
            measure(run)


def test_a_run_with_nothing_held_out_is_not_measured_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)
    data = {"path": "text.txt", "val_fraction": 0}
    run = cf.train("quick", data=data, model=MODEL, train=TRAIN, run="a", quiet=True)
    with pytest.raises(
        UserError, match=r"^a: data: this measure needs the split 'val', and there is only train$"
    ):
        deleted_layers(run)


def test_layers_are_deleted_one_by_one(folder: Path) -> None:
    found = computed(small("residual-stream"), folder)
    whole, without = (found.first("small decoder", name) for name in ("loss_whole", "loss_without"))
    assert len(without) == 2
    for layer, loss in without:
        assert found.first("small decoder", f"increase_layer_{layer:.0f}") == pytest.approx(loss - whole)
        assert loss != whole
    parts = found.first("small decoder", "parts")
    assert sum(parts.values()) == pytest.approx(found.first("small decoder", "logit"), abs=1e-5)
    by_layer = found.first("small decoder", "by_layer")
    written = [sum(value for _, value in rows) for rows in (by_layer["heads"], by_layer["network"])]
    assert written == pytest.approx([found.first("small decoder", name) for name in ("heads", "networks")])
    in_groups = (found.first("small decoder", name) for name in ("heads", "networks", "embeddings"))
    assert sum(in_groups) == pytest.approx(sum(parts.values()))
    assert {name for name in parts if "attn" in name} == {
        f"blocks.{layer}.attn.hook_z[{head}]" for layer in range(2) for head in range(2)
    }
    assert [each.verdict for each in found.published()] == [REPRODUCED]


def test_a_deleted_layer_adds_nothing() -> None:
    import clearformer as cf
    from clearformer.lens import hooks_of

    model = cf.build(cf.ModelConfig(vocab_size=7, d_model=8, n_layers=2, attention={"n_heads": 2}))  # type: ignore[arg-type]
    tokens = torch.tensor([[1, 2, 3]])
    with model.hooked(hooks_of(without_layer(1))):
        _, cache = model.run_with_cache(tokens)
    assert torch.equal(cache["blocks.1.hook_resid_pre"], cache["blocks.1.hook_resid_post"])
    assert not torch.equal(cache["blocks.0.hook_resid_pre"], cache["blocks.0.hook_resid_post"])


def test_studies_of_one_model_share_its_run(folder: Path) -> None:
    computed(small("residual-stream"), folder)
    runs = set((folder / "studies" / "runs").iterdir())
    found = computed(small("decoding"), folder)
    assert set((folder / "studies" / "runs").iterdir()) == runs
    samples = found.first("small decoder", "samples")
    assert samples.keys() == METHODS.keys()
    assert all(samples.values())
    for name in METHODS:
        assert 0 <= found.first("small decoder", f"repetition_{name}") <= 1
        assert 0 < found.first("small decoder", f"distinct_{name}") <= 1
        assert found.first("small decoder", f"logprob_{name}") < 0
    assert found.first("small decoder", "logprob_greedy") > found.first(
        "small decoder", "logprob_temperature 1.5"
    )


def test_repeated_and_distinct_n_grams_are_counted() -> None:
    assert repetition([1, 2, 1, 2, 1], 2) == 1 - 2 / 4
    assert repetition([1, 2, 3], 2) == 0
    assert repetition([1], 2) == 0
    assert distinct([[1, 2, 1], [1, 2]], 2) == 2 / 3
    assert distinct([[1]], 2) == 0


def test_senses_are_compared_by_layer(folder: Path) -> None:
    study = small("contexts")
    [*words] = (measure for measure in study.measures if measure.function is senses)
    longer, subwords = {"model.max_seq_len": 32}, {"tokenizer.vocab_size": 270}  # the bytes and a few merges
    arms = (with_settings(study.arms[0], longer), with_settings(study.arms[1], {**longer, **subwords}))
    known = [Measure(senses, {"word": w, "first": FIRST[w], "second": SECOND[w]}) for w in FIRST]
    assert len(words) == len(known)
    found = computed(replace(study, arms=arms, measures=tuple(known)), folder)
    for label in found.labels:
        cosines = found.first(label, "cosines_bank")
        within, between = cosines["within"], cosines["between"]
        assert [layer for layer, _ in within] == [layer for layer, _ in between] == [0, 1, 2]
        assert found.first(label, "separation_bank") == pytest.approx(within[-1][1] - between[-1][1])
        assert -1 <= found.first(label, "similarity_it") <= 1


FIRST = {"bank": ["The river ran by the bank", "wide river bank"], "it": ["The river, it", "river, and it"]}
SECOND = {"bank": ["They put gold in the bank", "gold in the bank"], "it": ["The gold, it", "gold, and it"]}


def test_positions_and_masks_tell_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "SAMPLE_TOKENS", 10)
    sizes = {"n_layers": 1, "d_model": 8, "max_seq_len": 8, "attention": {"n_heads": 2}, "position": "rope"}
    changes = {"data": {"path": "text.txt"}, "steps": 12, "model": sizes, "batch_size": 4}
    found = computed(tiny(studies()["order"], probe=changes), folder)
    assert [each.verdict for each in found.published()] == [REPRODUCED]
    for kind in ("sinusoidal", "learned", "rope"):
        assert found.first(f"two-sided, {kind}", "distance") > 0.01
    assert found.first("causal, none", "distance") > 0.01
    for label in ("with the mask", "mask forgotten"):
        assert len(found.first(label, "sample")) == 10
        assert found.first(label, "losses_by_step")[0][0] == 10
    assert found.first("with the mask", "train_loss") != found.first("mask forgotten", "train_loss")


def test_alibi_is_symmetric_where_all_is_read() -> None:
    """It adds the same for a distance in either direction, and a sentence and its reverse have the same distances."""
    assert pooled_distance(1, "alibi")["distance"] < 1e-12
    assert pooled_distance(1, "alibi", causal=True)["distance"] > 0.01


@pytest.mark.parametrize("shift", [1, 7])
def test_a_shift_of_sinusoidal_positions_is_linear(shift: int) -> None:
    found = shift_map(1, "sinusoidal", d_model=16, n_positions=64, shift=shift)
    assert found["residual"] < 1e-6
    assert found["rotation_residual"] < 1e-6
    assert shift_map(1, "random", d_model=16, n_positions=64, shift=shift)["residual"] > 0.1


def test_turning_by_two_shifts_is_turning_by_their_sum() -> None:
    encodings = torch.randn(5, 8, dtype=torch.float64)
    assert torch.allclose(turned(turned(encodings, 3), 4), turned(encodings, 7), atol=1e-12)


def test_the_study_of_shifts_reproduces_all(folder: Path) -> None:
    found = computed(tiny(studies()["position-shift"], probe={"n_positions": 300}), folder)
    assert {each.verdict for each in found.published()} == {REPRODUCED}


def test_memory_of_the_explicit_form_grows_with_the_square(folder: Path) -> None:
    changes = {"lengths": [128, 256], "rounds": 1, "window": 32, "n_heads": 1, "d_head": 8}
    found = computed(tiny(studies()["cost"], probe=changes), folder)
    of = {form: found.first("causal attention", f"memory_exponent_{form}") for form in FORMS}
    assert of["explicit"] == pytest.approx(2, abs=0.15)
    for form in ("fused", "windowed", "linear"):
        assert of[form] == pytest.approx(1, abs=0.1)
    assert [length for length, _ in found.first("causal attention", "seconds")["linear"]] == [128, 256]


FORMS = ("explicit", "fused", "windowed", "linear")
