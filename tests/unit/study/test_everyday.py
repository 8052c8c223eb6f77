"""Sweeps as typed, runs compared, curves as text and as figures."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from clearformer.cli.commands.compare import as_text
from clearformer.errors import ClearformerError, ConfigError, RunError, UserError
from clearformer.model.positions import RoPE
from clearformer.resolving import resolve_settings
from clearformer.study import Store
from clearformer.study.everyday.caveats import (
    BY_THE_CLOCK,
    CONTEXTS,
    CONTEXTS_OF_MASKED,
    IN_WARMUP,
    MAY_END_BY_THE_CLOCK,
    TASKS,
    TOKENS,
    caveats,
)
from clearformer.study.everyday.comparison import compare, without_seed
from clearformer.study.everyday.curves import Curves, RunCurve, curves, draw, labels_of
from clearformer.study.everyday.declared import declare, read_declaration
from clearformer.study.everyday.sweep import (
    fairness,
    free_name,
    over_file,
    parse_sweep,
    parse_values,
    split_at_commas,
    sweep,
)
from clearformer.study.everyday.text_plot import Line, place, text_plot, tick_texts
from clearformer.study.trials import trials
from clearformer.text import BPETokenizerSpec, CharTokenizerSpec
from clearformer.training.config import RunConfig
from clearformer.training.objectives import NextTokenObjective
from clearformer.training.store.folder import RunFolder

# --- sweeps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("rope,alibi", ["rope", "alibi"]),
        ("1e-3, 3e-3", [1e-3, 3e-3]),
        ("1..3", [1, 2, 3]),
        ("1..2,7", [1, 2, 7]),
        ("true,false", [True, False]),
        ("[1,2],[3,4]", [[1, 2], [3, 4]]),
        ('"a,b",c', ["a,b", "c"]),
        ("x..y", ["x..y"]),
    ],
)
def test_values_as_typed(text: str, values: list[Any]) -> None:
    assert parse_values("key", text) == values


def test_a_product_of_values_is_a_study() -> None:
    preset, values = parse_sweep(
        ["quick", "model.position=rope,alibi", "train.lr=1e-3,3e-3", "model.n_layers=2", "seed=1..3"]
    )
    study = sweep(preset, values)
    assert study.name == "quick-position-lr"
    assert [arm.label for arm in study.arms] == [
        "position=rope, lr=0.001",
        "position=rope, lr=0.003",
        "position=alibi, lr=0.001",
        "position=alibi, lr=0.003",
    ]
    assert len(trials(study)) == 12
    config = trials(study)[3].config
    assert config is not None
    assert (config.model.position.kind, config.train.lr, config.model.n_layers) == ("alibi", 3e-3, 2)


def test_a_kind_and_a_setting_of_it_vary_together() -> None:
    for values in (
        {"model.ffn": ["relu2", "swiglu"], "model.ffn.d_ff": [64, 128]},
        {"model.ffn.d_ff": [64, 128], "model.ffn": ["relu2", "swiglu"]},
    ):
        found = {trial.arm.label: trial.config for trial in trials(sweep("quick", values))}
        for label, config in found.items():
            assert config is not None
            assert f"ffn={config.model.ffn.kind}" in label
            assert f"d_ff={config.model.ffn.d_ff}" in label  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"position of kind 'alibi' has no 'theta'"):
        sweep("quick", {"model.position": ["rope", "alibi"], "model.position.theta": [10.0, 100.0]})


def test_arms_that_are_the_same_run_are_refused() -> None:
    with pytest.raises(UserError, match=r"^'position=rope' and .* are the same run: remove one"):
        sweep("quick", {"model.position": ["rope", {"kind": "rope"}]})


def test_a_file_of_settings_lies_beneath_what_is_typed(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        "seed = 5\n[model]\nn_layers = 3\nd_model = 96\nposition = {kind = 'rope', theta = 500.0}\n"
        "[train]\nlr = 0.5\nmax_steps = 7\n"
    )
    typed = {"model.position": ["rope", "alibi"], "train.lr": [1e-3, 3e-3], "model.n_layers": [2]}
    study = sweep("quick", over_file(file, typed))
    configs = [trial.config for trial in trials(study)]
    assert study.arms[0].label == "position=rope, lr=0.001"
    assert len(configs) == 4
    for config in configs:
        assert config is not None
        assert (config.seed, config.model.n_layers, config.model.d_model) == (5, 2, 96)
        assert config.train.max_steps == 7
    assert {config.train.lr for config in configs if config} == {1e-3, 3e-3}
    assert [getattr(config.model.position, "theta", None) for config in configs if config] == [500.0] * 2 + [
        None
    ] * 2
    assert sweep("quick", over_file(file, {"seed": [1, 2], "model.position": ["alibi"]})).seeds == 2


@pytest.mark.parametrize(
    ("of_file", "typed", "source"),
    [
        ('path = "t.txt"', {"data.name": ["pydoc"]}, ("pydoc", None, None)),
        ('name = "pydoc"', {"data.path": ["t.txt"]}, (None, "t.txt", None)),
        ('kind = "pairs"\nname = "dates"', {"data.source": ["a"], "data.target": ["b"]}, (None, None, "a")),
    ],
)
def test_data_that_are_named_replace_those_of_a_file_of_settings(
    tmp_path: Path, of_file: str, typed: dict[str, list[Any]], source: tuple[str | None, ...]
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f"[data]\n{of_file}\n")
    preset = "translate" if "pairs" in of_file else "quick"
    (trial, _) = trials(sweep(preset, over_file(file, typed | {"train.lr": [1e-3, 3e-3]})))
    assert trial.config is not None
    data = trial.config.data
    assert (data.name, data.path, getattr(data, "source", None)) == source


def test_an_unknown_key_of_a_file_of_settings_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[train]\nlrr = 0.5\n")
    with pytest.raises(ConfigError, match=r"unknown key 'train\.lrr'"):
        over_file(file, {"train.lr": [1e-3, 3e-3]})


def test_names_are_as_long_as_it_takes_to_tell_them_apart() -> None:
    study = sweep(
        "quick", {"train.schedule.kind": ["cosine", "constant"], "model.norm.kind": ["rmsnorm", "none"]}
    )
    assert study.arms[0].label == "schedule.kind=cosine, norm.kind=rmsnorm"


def test_the_values_of_seed_are_the_seeds() -> None:
    given: list[Any] = [[4, 5], np.arange(4, 6), range(4, 6)]
    for study in (*(sweep("quick", {"seed": each}) for each in given), sweep("quick", {}, seeds=range(4, 6))):
        assert [trial.seed for trial in trials(study)] == [4, 5]
        assert [trial.config.seed for trial in trials(study) if trial.config] == [4, 5]


@pytest.mark.parametrize("seeds", [3, "1..3", [1.0], [None], [True]])
def test_seeds_that_are_no_whole_numbers_are_refused(seeds: Any) -> None:
    with pytest.raises(UserError, match=r"^seed: whole numbers of 0 or more"):
        sweep("quick", {"seed": seeds})


def test_an_empty_name_is_not_taken_for_none() -> None:
    with pytest.raises(UserError, match=r"a study's name consists of letters.*got ''"):
        sweep("quick", {}, name="")


def test_values_that_differ_in_late_digits_have_labels_of_their_own() -> None:
    study = sweep("quick", {"train.lr": [0.00123456, 0.001234561]})
    assert [arm.label for arm in study.arms] == ["lr=0.00123456", "lr=0.001234561"]


def test_seeds_with_gaps_are_refused_wherever_they_are_given() -> None:
    with pytest.raises(UserError, match=r"^seed: a sweep takes consecutive seeds"):
        sweep("quick", {}, seeds=range(1, 6, 2))
    with pytest.raises(UserError, match=r"^seed: a sweep takes consecutive seeds"):
        sweep("quick", {"seed": [1, 3, 5]})
    assert sweep("quick", {}, seeds=[2, 3]).first_seed == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("values", ["ab", 5, {1e-3}])
def test_values_that_are_no_list_are_refused(values: Any) -> None:
    with pytest.raises(UserError, match=r"^train\.lr: give its values as a list; got"):
        sweep("quick", {"train.lr": values})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "a sweep starts from one preset, but none is named"),
        (["quick", "masked"], "a sweep starts from one preset, but got quick and masked"),
        (["quickk"], "there is no preset 'quickk'; did you mean 'quick'?"),
        (["quick", "train.lr="], "train.lr: a value is missing in ''"),
        (["quick", "train.lr=1e-3,,2e-3"], "train.lr: a value is missing"),
        (["quick", "model.n_layers=3..1"], "model.n_layers: 3..1 has no values: write 1..3"),
        (["quick", "seed=3..1"], "seed: 3..1 has no values: write 1..3"),
        (["quick", "seed=1,3"], "seed: a sweep takes consecutive seeds"),
        (["quick", "seed=a"], "seed: whole numbers of 0 or more"),
        (["quick", "seed=true"], "seed: whole numbers of 0 or more"),
        (["quick", "train.lr=1e-3,1e-3"], "train.lr: a value is given twice"),
        (["quick", "train.lr=1", "train.lr=2"], "train.lr is given twice; write its values as train.lr=a,b"),
        (["quick", "model.d_model=1..9999999"], "model.d_model: 1..9999999 are too many values"),
        (
            ["quick", "model.d_model=1..200", "model.n_layers=1..200"],
            "a sweep of 40,000 runs: at most 10,000",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_swept_is_told_in_a_line(arguments: list[str], told: str) -> None:
    with pytest.raises(ClearformerError) as caught:
        sweep(*parse_sweep(arguments))
    assert str(caught.value).startswith(told)
    assert caught.value.exit_status == 2


def test_a_name_that_is_taken_gets_a_number_and_the_same_sweep_its_own_name(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, other = (sweep("quick", {"train.lr": values}) for values in ([1e-3, 2e-3], [1e-3, 3e-3]))
    assert free_name(first, store) == "quick-lr"
    declare(first, store)
    assert free_name(first, store) == "quick-lr"
    assert free_name(other, store) == "quick-lr-2"


def test_specs_are_swept_and_declared_as_their_settings(tmp_path: Path) -> None:
    store = Store(tmp_path)
    of_specs = sweep("quick", {"model.position": [RoPE(), RoPE(theta=500.0)], "train.max_steps": [2]})
    assert [arm.label for arm in of_specs.arms] == ["position=rope", "position=rope theta=500"]
    declared = read_declaration(declare(of_specs, store))
    assert declare(of_specs, store) == declare(declared, store)
    assert [t.settings_key for t in trials(declared)] == [t.settings_key for t in trials(of_specs)]


# --- comparison -------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a run's folder with metrics of ten steps: losses fall from the given one by 0.1 a step."""
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))

    def make(name: str, loss: float, held_out: float | None, sha256: str = "", **settings: Any) -> Path:
        folder = RunFolder(tmp_path / "runs" / name)
        folder.create(
            resolve_settings("quick", [{"model": {"vocab_size": 17}}, settings]),
            CharTokenizerSpec().train([settings.get("tokenizer", {}).get("kind", "ab")]),
            sha256,
        )
        lines = [
            {"step": step, "tokens": 100 * step, "seconds": step / 2, "loss": loss - step / 10}
            for step in range(1, 11)
        ]
        if held_out is not None:
            lines[-1] |= {"val_loss": held_out, "val_share": 1.0}
            lines[4] |= {"val_loss": held_out + 1, "val_share": 0.1}
        folder.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder.path

    return make


def test_runs_that_differ_in_the_seed_alone_are_one_group(run: Callable[..., Path]) -> None:
    for seed, loss in ((2, 3.2), (1, 3.0)):
        run(f"rope-{seed}", loss, loss + 0.5, seed=seed, model={"position": "rope"})
        run(
            f"alibi-{seed}",
            loss + 0.2,
            loss + 0.6,
            seed=seed,
            model={"position": "alibi"},
            train={"keep_last": 7},
        )
    found = compare("rope-2", "rope-1", "alibi-2", "alibi-1")
    assert [group.name for group in found.groups] == ["rope-1", "alibi-1"]
    assert [each.seed for each in found.groups[0].runs] == [1, 2]
    assert "model.position.kind" in found.differ
    assert "seed" not in found.differ
    rope, alibi = found.groups
    assert rope.settings["model.position.kind"] == "rope"
    assert rope.train_loss is not None
    assert rope.train_loss.values == pytest.approx((2.0, 2.2))
    assert rope.val_loss is not None
    assert rope.val_loss.mean == pytest.approx(3.6)
    assert alibi.parameters == rope.parameters > 0
    training, held_out = found.differences
    assert (training.group, training.less, training.value) == ("alibi-1", "rope-1", "train_loss")
    assert training.difference.values == pytest.approx((0.2, 0.2))
    assert held_out.difference.mean == pytest.approx(0.1)
    assert json.dumps(found.to_dict())


def test_runs_of_one_seed_are_no_sample_of_seeds(run: Callable[..., Path]) -> None:
    """The same run made twice has no interval of width 0, and both count in a difference."""
    run("a", 3.0, 2.0)
    run("a-2", 3.2, 2.2)
    run("b", 3.0, 2.4, train={"lr": 0.5})
    found = compare("a", "a-2", "b")
    twice = found.groups[0].val_loss
    assert len(found.groups[0].runs) == 2
    assert twice is not None
    assert (twice.values, twice.n, twice.low) == ((pytest.approx(2.1),), 1, None)
    held_out = found.differences[1].difference
    assert (held_out.values, held_out.low) == ((pytest.approx(0.3),), None)


def test_unfinished_runs_are_left_out_of_the_means(run: Callable[..., Path]) -> None:
    for seed in (1, 2):
        run(f"a-{seed}", 3.0, 2.0, seed=seed)
        run(f"b-{seed}", 3.0, 2.5, seed=seed, train={"lr": 0.5})
    killed = run("a-3", 9.0, None, seed=3)
    found = compare("a-1", "a-2", "a-3", "b-1", "b-2")
    assert found.groups[0].val_loss is not None
    assert found.groups[0].val_loss.values == (2.0, 2.0)
    assert found.caveats == ["a-3 is not finished (step 10): left out of the means."]
    assert [each.difference.n for each in found.differences] == [2, 2]
    alone = compare(killed, "b-1")
    assert alone.groups[0].train_loss is not None
    assert alone.caveats[0] == "a-3 is not finished (step 10): its losses are so far."
    assert "no seed in common" in alone.caveats[1]
    assert "~ of runs that are not finished" in as_text(alone)


def test_data_count_by_what_they_are_and_not_by_their_place(run: Callable[..., Path]) -> None:
    run("a", 3.0, 2.0, sha256="1f", data={"path": "one.txt"})
    run("b", 3.0, 2.0, sha256="1f", seed=2)
    assert len(compare("a", "b").groups) == 1
    run("c", 3.0, 2.0, sha256="2e", seed=3)
    found = compare("b", "c")
    assert len(found.groups) == 2
    assert found.caveats[0].startswith("The data differ (data): ")


def test_fine_tuned_runs_are_compared_though_what_they_began_with_is_gone(run: Callable[..., Path]) -> None:
    bases = [run(base, 3.0, 2.0) for base in ("base", "other")]
    for name, base, seed in (("a-1", "base", 1), ("a-2", "base", 2), ("b-1", "other", 1)):
        run(name, 2.0, 1.0, seed=seed, train={"pretrained": base})
    for folder in bases:
        shutil.rmtree(folder)
    found = compare("a-1", "a-2", "b-1")
    assert [[each.run for each in group.runs] for group in found.groups] == [["a-1", "a-2"], ["b-1"]]
    assert found.differ == ["train.pretrained"]


def test_runs_that_began_with_other_weights_of_one_run_are_no_sample_of_seeds(
    run: Callable[..., Path],
) -> None:
    run("base", 3.0, 2.0)
    for name, seed, step in (("a-1", 1, 5), ("a-2", 2, 5), ("a-3", 3, 200)):
        folder = RunFolder(run(name, 2.0, 1.0, seed=seed, train={"pretrained": "base"}))
        env = json.loads(folder.env_file.read_text()) | {
            "pretrained": {"step": step, "sha256": f"{step:064x}"}
        }
        folder.env_file.write_text(json.dumps(env))
    found = compare("a-1", "a-2", "a-3")
    assert [[each.run for each in group.runs] for group in found.groups] == [["a-1", "a-2"], ["a-3"]]
    assert found.groups[1].settings["train.pretrained"].endswith("base (step 200, 000000)")


def test_runs_whose_vocabulary_was_another_file_at_one_place_are_no_sample_of_seeds(
    run: Callable[..., Path], tmp_path: Path
) -> None:
    file = tmp_path / "tokenizer.json"
    for seed, letters in ((1, "ab"), (2, "ab"), (3, "abc")):
        CharTokenizerSpec().train([letters]).save(file)
        folder = RunFolder(
            run(f"a-{seed}", 2.0, 1.0, seed=seed, tokenizer={"kind": "file", "path": str(file)})
        )
        shutil.copy(file, folder.tokenizer_file)
    groups = compare("a-1", "a-2", "a-3").groups
    assert [[each.run for each in group.runs] for group in groups] == [["a-1", "a-2"], ["a-3"]]


def test_a_run_that_was_not_evaluated_is_compared_by_what_there_is(run: Callable[..., Path]) -> None:
    run("a", 3.0, None)
    run("b", 3.0, 2.0, train={"lr": 0.5})
    found = compare("a", "b")
    assert found.groups[0].val_loss is None
    assert [each.value for each in found.differences] == ["train_loss"]
    assert found.differences[0].difference.low is None


def test_settings_that_change_what_a_loss_counts_come_with_a_caveat() -> None:
    for key in ("train.label_smoothing", "train.r_drop"):
        assert caveats([key], [NextTokenObjective()]) == [
            "The training losses count different things: compare the held-out ones."
        ]
    for key in ("train.objective.fraction", "train.objective.whole_words"):
        [told] = caveats([key], [NextTokenObjective()])
        assert "in held-out texts too" in told
    assert caveats(["train.lr", "train.objective.wordpiece_dropout"], [NextTokenObjective()]) == []


def test_runs_of_a_vocabulary_that_is_gone_are_compared_by_its_place() -> None:
    here, there = (RunConfig(tokenizer={"kind": "gpt2", "path": f"/gone/{name}"}) for name in "ab")  # type: ignore[arg-type]
    assert without_seed(here) == without_seed(here.replace(seed=2))
    assert without_seed(here) != without_seed(there)


def test_losses_of_other_tokens_data_or_tasks_come_with_a_caveat(run: Callable[..., Path]) -> None:
    run("a", 3.0, 2.0)
    run("rate", 3.0, 2.0, train={"lr": 0.5})
    run("tokens", 3.0, 2.0, tokenizer={"kind": "bpe", "vocab_size": 300})
    run("data", 3.0, 2.0, data={"val_fraction": 0.3})
    assert compare("a", "rate").caveats == []
    assert compare("a", "tokens").caveats == [TOKENS]
    assert compare("a", "data").caveats == [
        "The data differ (data.val_fraction): held-out losses can be compared only if the held-out data are the same."
    ]
    told = " ".join(as_text(compare("a", "tokens")).split())  # its lines are wrapped
    assert told.startswith(TOKENS)
    assert "held-out loss, tokens minus a" in told


def test_the_same_tokens_made_in_another_way_need_no_caveat(run: Callable[..., Path]) -> None:
    made = run("made", 3.0, 2.0, tokenizer={"kind": "char"})
    read = run("read", 3.0, 2.0, tokenizer={"kind": "file", "path": str(made / "tokenizer.json")})
    shutil.copy(made / "tokenizer.json", read)
    found = compare("made", "read")
    assert "tokenizer.kind" in found.differ
    assert found.caveats == []
    CharTokenizerSpec().train(["other"]).save(read / "tokenizer.json")
    assert compare("made", "read").caveats == [TOKENS]


def test_tokens_learned_of_other_texts_are_other_tokens(run: Callable[..., Path]) -> None:
    folders = [run(name, 3.0, 2.0, tokenizer={"kind": "bpe", "vocab_size": 300}) for name in "ab"]
    for folder, text in zip(folders, ("so so so", "no no no"), strict=True):
        BPETokenizerSpec(vocab_size=258).train([text]).save(folder / "tokenizer.json")
    assert compare("a", "b").caveats == [TOKENS]
    for text in ("so", "no"):  # each character is a token in both
        CharTokenizerSpec().train([text]).save(run(f"char-{text}", 3.0, 2.0) / "tokenizer.json")
    assert compare("char-so", "char-no").caveats == []


def test_losses_of_other_tasks_are_not_subtracted(run: Callable[..., Path]) -> None:
    run("a", 3.0, 2.0)
    run("rate", 3.0, 2.0, train={"lr": 0.5})
    run("fills-in", 3.0, 2.0, model={"family": "encoder"}, train={"objective": "masked"})
    found = compare("a", "rate", "fills-in")
    assert found.caveats == [TASKS]
    assert {each.group for each in found.differences} == {"rate"}
    told = as_text(compare("a", "fills-in"))
    assert told.startswith(TASKS)
    assert "minus" not in told


def test_what_the_arms_of_a_sweep_share_is_true_of_what_varies() -> None:
    by_steps = {"train.max_steps": [5], "train.max_seconds": ["none"], "train.warmup_steps": [0]}
    in_order = "all the same data in the same order."
    assert sweep("quick", {"train.lr": [1, 2], **by_steps}).fairness.endswith(in_order)
    assert sweep("quick", {"train.lr": [1, 2]}).fairness.endswith(BY_THE_CLOCK)
    either = {"train.max_steps": [500], "train.lr": [1, 2]}
    assert sweep("quick", either).fairness.endswith(MAY_END_BY_THE_CLOCK)
    begun = fairness(sweep("quick", {"train.lr": [1, 2], **by_steps}), ["train.pretrained"])
    assert in_order not in begun
    assert TOKENS in begun
    short = {"train.max_steps": [5], "train.max_seconds": ["none"], "train.warmup_steps": [0, 6]}
    assert sweep("quick", short).fairness.endswith(IN_WARMUP)  # of one arm
    assert in_order not in sweep("quick", {"train.batch_size": [8, 16], **by_steps}).fairness
    assert CONTEXTS in sweep("quick", {"model.max_seq_len": [32, 64]}).fairness
    nested = sweep("quick", {"model": [{"max_seq_len": 32}, {"max_seq_len": 64}], **by_steps}).fairness
    assert CONTEXTS in nested
    assert in_order not in nested
    for preset, told in (("masked", True), ("translate", False)):  # whose evaluation takes no context
        fairness_of_contexts = sweep(preset, {"model.max_seq_len": [32, 64]}).fairness
        assert CONTEXTS not in fairness_of_contexts
        assert (CONTEXTS_OF_MASKED in fairness_of_contexts) == told
    for key, values in (("batch_tokens", [512, 1024]), ("bpe_dropout", [0, 0.1])):
        assert in_order not in sweep("multi30k", {f"train.objective.{key}": values}).fairness
    other_text = {"data.val_fraction": [0.1, 0.2], "tokenizer": ["bpe"], **by_steps}
    assert TOKENS in sweep("quick", other_text).fairness
    assert TOKENS not in sweep("quick", other_text | {"tokenizer": ["char"]}).fairness
    other_order = {"data.order": ["random", "epochs"], "tokenizer": ["bpe"], **by_steps}
    assert TOKENS not in sweep("quick", other_order).fairness
    assert sweep("quick", {"tokenizer": ["bpe", "char"], **by_steps}).fairness.endswith(TOKENS)
    assert TOKENS not in sweep("classify", {"tokenizer": ["bpe", "char"]}).fairness  # a loss counts texts
    objectives = {
        "data.kind": ["labelled"],
        "data.name": ["trec"],
        "train.objective": ["masked", "classification"],
    }
    assert TASKS in sweep("masked", objectives).fairness
    other_data = sweep("quick", {"data.name": ["pydoc", "shakespeare"]}).fairness
    assert "the same data in the same order" not in other_data
    assert "The data differ (data.name)" in other_data


def test_what_cannot_be_compared_is_told(run: Callable[..., Path]) -> None:
    path = run("one", 3.0, 2.0)
    with pytest.raises(RunError, match=r"there is no run 'on'.*did you mean 'one'"):
        compare("on")
    with pytest.raises(UserError, match="the run one is given twice"):
        compare("one", path)
    with pytest.raises(UserError, match="name the runs"):
        compare()
    (path / "metrics.jsonl").write_text("")
    with pytest.raises(RunError, match="has no metrics yet"):
        compare("one")
    (path / "metrics.jsonl").write_text('{"step": 1, "tokens": 1, "seconds": 1, "loss": "low"}\n')
    with pytest.raises(RunError, match="loss of step 1 is not a number: 'low'"):
        compare("one")
    (path / "metrics.jsonl").write_text(
        '{"step": 1, "tokens": 1, "seconds": 1, "loss": 2.0, "val_loss": "low"}\n'
    )
    with pytest.raises(RunError, match="val_loss of step 1 is not a number: 'low'"):
        compare("one")


# --- curves -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("over", "last"), [("steps", 10), ("tokens", 1000), ("seconds", 5.0)])
def test_curves_over_steps_tokens_or_seconds(run: Callable[..., Path], over: Any, last: float) -> None:
    run("a", 3.0, 2.5)
    [found] = curves("a", over=over).runs
    assert found.training[-1] == pytest.approx([last, 2.0])
    assert found.held_out == [[last / 2, 3.5], [last, 2.5]]


def test_another_axis_is_refused(run: Callable[..., Path]) -> None:
    run("a", 3.0, 2.5)
    with pytest.raises(UserError, match="x: one of steps, tokens, seconds; got 'step'; did you mean 'steps'"):
        curves("a", over="step")  # type: ignore[arg-type]


def test_a_classifiers_loss_counts_texts(run: Callable[..., Path]) -> None:
    classifier = {"model": {"family": "encoder"}, "train": {"objective": "classification"}}
    run("a", 3.0, 2.0)
    run("c", 3.0, 2.0, **classifier, data={"kind": "labelled"})
    assert [curves(*names).unit for names in ("a", "c", "ac")] == ["nats a token", "nats a text", "nats"]
    assert "loss in nats a text" in curves("c").text(80)


def test_curves_of_other_tokens_come_with_a_caveat(run: Callable[..., Path]) -> None:
    run("a", 3.0, 2.0)
    run("tokens", 3.0, 2.0, tokenizer={"kind": "bpe", "vocab_size": 300})
    assert curves("a", "tokens").caveats == [TOKENS]
    assert curves("a").caveats == []


def test_ticks_have_as_many_digits_as_tell_them_apart() -> None:
    assert tick_texts(3.0, 2.0, 1.0) == ["3", "2", "1"]
    assert tick_texts(1.49921, 1.49916, 1.49911) == ["1.49921", "1.49916", "1.49911"]
    assert tick_texts(2.0, 2.0, 2.0) == ["2", "2", "2"]


def test_more_runs_than_colours_are_told_apart_by_their_dashes() -> None:
    runs = [RunCurve(f"run {i}", [[0, 2.0 + i], [9, 1.0 + i]], [[9, 1.5 + i]]) for i in range(9)]
    axes = Figure().subplots()
    draw(Curves("steps", "nats a token", runs), axes)
    styles = [(line.get_color(), line.get_linestyle()) for line in axes.lines]
    assert len(styles) == 18
    assert len(set(styles)) == 9  # training and held-out alike


def test_a_figure_is_drawn_and_another_ending_refused(run: Callable[..., Path], tmp_path: Path) -> None:
    run("a", 3.0, 2.5)
    run("b", 3.5, None, seed=2)
    svg = curves("a", "b").figure(tmp_path / "curves.svg").read_text()
    assert svg.count("<path") > 4
    assert curves("a").figure(tmp_path / "one.png").stat().st_size > 5000
    with pytest.raises(UserError, match="gif"):
        curves("a").figure(tmp_path / "curves.gif")


def test_dollars_in_a_folder_s_name_are_no_formula(run: Callable[..., Path], tmp_path: Path) -> None:
    folders = run("a$_$", 3.0, 2.5), run("b", 3.0, None)
    assert "a$_$" in curves(folders[0]).figure(tmp_path / "one.svg").read_text()
    assert "a$_$" in curves(*folders).figure(tmp_path / "two.svg").read_text()


def test_names_are_short_where_that_tells_them_apart() -> None:
    def named(*names: str) -> list[str]:
        return labels_of([RunCurve(name, [], []) for name in names])

    assert named("studies/runs/one", "two") == ["one", "two"]
    assert named("x/one", "y/one") == ["x/one", "y/one"]
    assert named("a" * 40) == ["a" * 23 + "…"]
    assert named("a" * 30 + "1", "a" * 30 + "2") == ["a" * 30 + "1", "a" * 30 + "2"]


# --- as text ----------------------------------------------------------------------------------------------


def test_a_falling_line_falls_from_the_left_above_to_the_right_below() -> None:
    text = text_plot([Line("falls", [(0, 2.0), (100, 1.0)])], 40, 6, "a title", "steps")
    title, *rows, axis, below = text.splitlines()
    assert title == "a title"
    assert len(rows) == 6
    assert max(map(len, text.splitlines())) <= 40
    dots = [[i for i, letter in enumerate(row) if "⠀" < letter <= "⣿"] for row in rows]
    assert all(dots)
    assert [min(row) for row in dots] == sorted(min(row) for row in dots)
    assert rows[0].lstrip().startswith("2 ┤")
    assert rows[-1].lstrip().startswith("1 ┤")
    assert rows[-1].endswith("falls")
    assert axis.strip().startswith("└")
    assert re.fullmatch(r"\s+0\s+steps\s+100", below)


def test_names_stand_at_the_ends_and_never_on_one_row() -> None:
    lines = [Line(f"run {i}", [(0, 1.0), (1, 0.5)]) for i in range(3)]
    rows = text_plot(lines, 50, 8, "", "steps").splitlines()
    assert sorted(re.findall(r"run \d", "\n".join(rows))) == ["run 0", "run 1", "run 2"]
    assert all(len(re.findall(r"run \d", row)) <= 1 for row in rows)


def test_colours_only_where_they_are_wanted() -> None:
    lines = [Line("a", [(0, 1.0), (1, 0.5)]), Line("b", [(0, 0.5), (1, 1.0)])]
    assert "\033" not in text_plot(lines, 50, 8, "", "steps")
    coloured = text_plot(lines, 50, 8, "", "steps", colours=True)
    assert re.sub(r"\033\[\d*m", "", coloured) == text_plot(lines, 50, 8, "", "steps")


def test_one_point_and_a_flat_line_have_a_place() -> None:
    assert place(1.0, 1.0, 1.0, 10) == 5
    assert place(0.0, 0.0, 1.0, 10) == 0
    assert place(1.0, 0.0, 1.0, 10) == 9
    assert "⠀" not in text_plot([Line("one", [(5, 1.0)])], 40, 5, "", "steps")


def test_an_apostrophe_is_no_quote() -> None:
    assert split_at_commas("l'avare.txt,phedre.txt") == ["l'avare.txt", "phedre.txt"]
    assert split_at_commas("I'm,you") == ["I'm", "you"]
    assert split_at_commas('"a,b", \'c,d\',["e,f"]') == ['"a,b"', " 'c,d'", '["e,f"]']
    with pytest.raises(UserError, match=r"'tis,was: a quote \('\) is not closed"):
        split_at_commas("'tis,was")
