"""Two runs: heads matched by what they do, differences, and a head moved from one to the other."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clearformer as cf
from clearformer import lens
from clearformer.errors import RunError, UserError
from clearformer.lens.comparison.heads import By
from clearformer.model.attention import Last, MultiHead, Shared
from clearformer.model.linear_attention import Linear

from .test_embeddings import FAMILIES, TEXT, Run, run_of

TEXTS = [TEXT, "money lends the bank", "the river"]
N_HEADS, N_LAYERS, D_HEAD = 4, 2, 3


def made(seed: int, family: str = "decoder", **changes: Any) -> Run:
    torch.manual_seed(seed)
    attention = MultiHead(n_heads=N_HEADS, d_head=D_HEAD, qkv_bias=True, output_bias=True)
    run = run_of(family, "char", **({"n_layers": N_LAYERS, "attention": attention} | changes))
    with torch.no_grad():
        for parameter in run.model.parameters():  # sharper patterns, and biases that are not 0
            parameter.add_(0.3 * torch.randn_like(parameter))
    run.model.eval()
    return run


def with_heads_permuted(run: Run, orders: list[list[int]]) -> Run:
    """The same model, its heads in another order in every layer."""
    model = deepcopy(run.model)
    with torch.no_grad():
        for block, order in zip(model.blocks, orders, strict=True):
            for name in ("W_Q", "W_K", "W_V"):
                matrix = getattr(block.attn, name)
                for each in (matrix.weight, matrix.bias):
                    each.copy_(each.unflatten(0, (N_HEADS, -1))[order].flatten(0, 1))
            weight = block.attn.W_O.weight
            weight.copy_(weight.unflatten(1, (N_HEADS, -1))[:, order].flatten(1))
    return Run(model, run.tokenizer)


# --- heads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["pattern", "output"])
def test_heads_in_another_order_are_found_again(by: By) -> None:
    run, orders = made(1), [[2, 0, 3, 1], [1, 3, 0, 2]]
    other = with_heads_permuted(run, orders)
    tokens = lens.read(run, TEXT).tokens
    torch.testing.assert_close(run.model(tokens), other.model(tokens), rtol=1e-4, atol=1e-4)
    found = lens.match_heads(run, other, TEXTS, by=by)
    expected = {
        f"blocks.{layer}.attn:{order[i]}": f"blocks.{layer}.attn:{i}"
        for layer, order in enumerate(orders)
        for i in range(N_HEADS)
    }
    assert {each.head: each.other for each in found.matches} == expected
    assert all(each.similarity == pytest.approx(1, abs=1e-4) for each in found.matches)
    assert found.unmatched == found.unmatched_others == []


@pytest.mark.parametrize("by", ["pattern", "output"])
def test_similarities_are_those_of_all_texts_by_hand(by: By) -> None:
    run, other = made(1), made(2)
    found = lens.match_heads(run, other, TEXTS[1:], by=by)
    vectors = []
    for each in (run, other):
        parts = []
        for text in TEXTS[1:]:
            _, cache = lens.run_with_cache(each, text)
            if by == "pattern":
                pattern = cache["pattern", 1][0, 2].double()
                values = pattern[torch.ones_like(pattern).tril().bool()]
                parts.append(values - values.mean())
            else:
                columns = slice(2 * D_HEAD, 3 * D_HEAD)
                weight = each.model.blocks[1].attn.W_O.weight[:, columns].double()
                written = cache["z", 1][0, :, 2].double() @ weight.T
                centred = written - written.mean(0)
                parts.append((centred @ centred.T).flatten())
        vectors.append(torch.cat(parts))
    expected = torch.nn.functional.cosine_similarity(*vectors, dim=0).item()
    at = N_HEADS + 2
    assert found.heads[at] == "blocks.1.attn:2"
    assert found.similarities[at, at].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("family", ["decoder", "encoder"])
def test_patterns_are_compared_within_the_wider_window(family: str) -> None:
    runs = [made(i, family, attention=MultiHead(n_heads=2, d_head=D_HEAD, window=i)) for i in (2, 3)]
    found = lens.match_heads(runs[0], runs[1], TEXTS[1])
    patterns = [lens.attention(each, TEXTS[1], layer=0, head=1).patterns for each in runs]
    one, other = (each["blocks.0.attn.hook_pattern"][0] for each in patterns)
    distance = np.subtract.outer(*[np.arange(len(one))] * 2)
    may = (abs(distance) < 3) & ((distance >= 0) | (family == "encoder"))
    by_hand = np.corrcoef(one[may], other[may])[0, 1]
    assert found.similarities[1, 1].item() == pytest.approx(by_hand, abs=1e-5)


def test_pairs_are_chosen_so_that_their_sum_is_largest() -> None:
    found = lens.match_heads(made(1), made(2, n_layers=1), TEXTS)
    assert len(found.matches) == N_HEADS
    assert len(found.unmatched) == N_HEADS
    assert found.unmatched_others == []
    total = sum(each.similarity for each in found.matches)
    greedy, taken = 0.0, set()
    for j in range(len(found.others)):
        i = max(
            (i for i in range(len(found.heads)) if i not in taken),
            key=lambda i: found.similarities[i, j].item(),
        )
        taken.add(i)
        greedy += found.similarities[i, j].item()
    assert total >= greedy - 1e-6
    assert all(torch.isfinite(found.similarities).flatten())


def test_heads_that_never_change_are_not_compared() -> None:
    run = made(1, "decoder")
    one_token = lens.match_heads(run, run, "d")  # whose pattern is constant
    assert torch.isnan(one_token.similarities).all()
    assert one_token.matches == []


def test_heads_of_one_kind_are_matched_with_each_other() -> None:
    run, other = made(1, "encoder-decoder"), made(2, "encoder-decoder")
    found = lens.match_heads(run, other, TEXTS[:2])
    assert len(found.matches) == 3 * N_LAYERS * N_HEADS
    for each in found.matches:
        kinds = ["cross" if "cross" in name else name.partition(".")[0] for name in (each.head, each.other)]
        assert kinds[0] == kinds[1]
    assert torch.isnan(found.similarities).any()
    assert lens.match_heads(run, run, TEXTS[:1]).matches[0].similarity == pytest.approx(1, abs=1e-6)


def test_a_match_shows_itself(tmp_path: Path) -> None:
    found = lens.match_heads(made(1), made(2, n_layers=1), TEXT)
    assert json.loads(json.dumps(found.to_dict()))["matches"][0].keys() == {"head", "other", "similarity"}
    assert found.table().rows[-1][1:] == ["-", "-"]
    assert len(repr(found)) < 800
    pytest.importorskip("matplotlib")
    assert found.figure(tmp_path / "heads.svg").exists()


# --- differences ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_does_not_differ_from_itself(family: str) -> None:
    run = made(1, family)
    found = lens.differences(run, run, TEXT, TEXT if family == "encoder-decoder" else None)
    assert found.loss == found.other
    assert {each.change for each in found.losses} == {0.0}
    assert {each.change for each in [*found.weights, *found.activations]} == {0.0}
    assert all(each.cosine == pytest.approx(1) for each in found.weights if each.norm)
    assert found.apart == []


def test_differences_are_those_of_weights_activations_and_losses() -> None:
    run, other = made(1), made(2)
    found = lens.differences(run, other, TEXT)
    ours, theirs = (dict(each.model.named_parameters()) for each in (run, other))
    total = sum((theirs[name] - ours[name]).double().square().sum().item() for name in ours)
    assert sum(each.change**2 for each in found.weights) == pytest.approx(total, rel=1e-6)
    assert {each.name for each in found.weights} >= {"embed", "blocks.0.attn", "blocks.1.mlp"}

    tokens = lens.read(run, TEXT).tokens
    losses = [
        torch.nn.functional.cross_entropy(each.model(tokens)[0, :-1], tokens[0, 1:], reduction="none")
        for each in (run, other)
    ]
    changes = torch.tensor([each.change for each in found.losses])
    torch.testing.assert_close(changes, losses[1] - losses[0], rtol=1e-4, atol=1e-5)
    assert found.other - found.loss == pytest.approx(changes.mean().item(), abs=1e-5)

    (_, cache), (_, of_other) = (lens.run_with_cache(each, TEXT) for each in (run, other))
    name = "blocks.1.hook_resid_mid"
    point = next(each for each in found.activations if each.name == name)
    a, b = cache[name].flatten(), of_other[name].flatten()
    assert point.relative == pytest.approx(((b - a).norm() / a.norm()).item(), rel=1e-5)
    assert point.cosine == pytest.approx(torch.nn.functional.cosine_similarity(a, b, dim=0).item(), abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_differ_by_what_the_mask_lets_be_read(dtype: torch.dtype) -> None:
    run, other = made(1), made(2)
    for each in (run, other):
        each.model.to(dtype)
    found = {each.name: each for each in lens.differences(run, other, TEXT).activations}
    for name in ("blocks.0.attn.hook_attn_scores", "blocks.1.attn.hook_attn_scores"):
        a, b = (lens.run_with_cache(each, TEXT)[1][name][0] for each in (run, other))
        may = torch.ones_like(a[0], dtype=torch.bool).tril()
        a, b = a[:, may].flatten(), b[:, may].flatten()
        assert found[name].norm == pytest.approx(a.norm().item(), rel=1e-5)
        assert found[name].relative == pytest.approx(((b - a).norm() / a.norm()).item(), rel=1e-5)
        cosine = torch.nn.functional.cosine_similarity(a, b, dim=0).item()
        assert found[name].cosine == pytest.approx(cosine, abs=1e-5)


def test_models_of_other_sizes_are_compared_where_they_can_be() -> None:
    found = lens.differences(made(1), made(2, n_layers=1), TEXT)
    second = {name for name, _ in made(1).model.named_parameters() if name.startswith("blocks.1.")}
    assert set(found.apart) == second
    assert found.notes()[-1].endswith(f"and the rest of their parts: {len(second)} parameters")
    assert {each.name for each in found.weights} >= {"embed", "blocks.0.attn"}
    wider = lens.differences(made(1), made(2, d_model=12), TEXT)
    assert wider.weights == []
    assert len(wider.losses) == len(TEXT) - 1
    assert any(each.name == "blocks.0.attn.hook_pattern" for each in wider.activations)


def test_classifiers_are_compared_part_by_part(tmp_path: Path) -> None:
    run, other = (made(seed, "encoder", n_classes=3) for seed in (1, 2))
    found = lens.differences(run, other, TEXT)
    assert found.losses == []
    assert json.loads(json.dumps(found.to_dict()))["loss"] is None
    assert found.table().heads[0] == "part"
    pytest.importorskip("matplotlib")
    assert found.figure(tmp_path / "parts.svg").exists()
    assert lens.differences(made(1), made(2), TEXT).figure(tmp_path / "losses.svg").exists()


def test_a_classifier_is_compared_with_the_encoder_that_it_began_as() -> None:
    run, classifier = made(1, "encoder"), made(1, "encoder", n_classes=3)
    for pair in ((run, classifier), (classifier, run)):
        found = lens.differences(*pair, TEXT)
        assert found.losses == []
        assert {each.name: each.change for each in found.weights}["blocks.0.attn"] == 0
        matches = lens.match_heads(*pair, TEXTS).matches
        assert all(each.head == each.other for each in matches)
        assert len(matches) == N_HEADS * N_LAYERS


# --- a head moved -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ["attn", "cross_attn", "encoder"])
def test_a_head_of_its_own_leaves_the_logits_equal_to_the_bit(family: str, attention: Any) -> None:
    run = made(1, family)
    texts = [TEXT]
    if attention != "attn" and family != "encoder-decoder":
        with pytest.raises(UserError, match=f"only an encoder-decoder has {attention}"):
            lens.transplant(run, run, 1, 2, attention=attention, texts=texts)
        return
    found = lens.transplant(run, run, 1, -2, attention=attention, texts=texts)
    assert found.head == found.into
    assert found.head.endswith("1.cross_attn:2" if attention == "cross_attn" else "1.attn:2")
    assert found.cost == 0
    for name, weight in run.model.state_dict().items():
        assert torch.equal(weight, found.model.state_dict()[name])
    inputs = lens.read(run, TEXT)
    assert torch.equal(run.model(*inputs.arguments), found.model(*inputs.arguments))


def test_a_head_does_in_its_new_place_what_it_did() -> None:
    """Behind the same embeddings, a head of layer 0 writes there what it wrote at home; nothing else changes."""
    run, other = made(1), made(2)
    other.model.load_state_dict(
        run.model.state_dict() | {k: v for k, v in other.model.state_dict().items() if ".attn." in k}
    )
    found = lens.transplant(run, other, 0, np.int64(3), into=(np.int64(0), 1), texts=TEXTS)  # type: ignore[arg-type]
    assert (found.head, found.into) == ("blocks.0.attn:3", "blocks.0.attn:1")
    tokens = lens.read(run, TEXT).tokens
    names = ["blocks.0.attn.hook_z", "blocks.0.attn.hook_pattern"]
    caches = [model.run_with_cache(tokens, names=names)[1] for model in (run.model, other.model, found.model)]
    before, donor, after = ([each[name] for name in names] for each in caches)
    torch.testing.assert_close(after[0][:, :, 1], donor[0][:, :, 3])
    torch.testing.assert_close(after[1][:, 1], donor[1][:, 3])
    for head in (0, 2, 3):
        assert torch.equal(after[0][:, :, head], before[0][:, :, head])
    columns = [each.model.get_parameter("blocks.0.attn.W_O.weight") for each in (found, other)]
    assert torch.equal(columns[0][:, D_HEAD : 2 * D_HEAD], columns[1][:, 3 * D_HEAD :])
    changed = [
        name
        for name, weight in found.model.state_dict().items()
        if not torch.equal(weight, run.model.state_dict()[name])
    ]
    assert {name.split(".")[3] for name in changed} == {"W_Q", "W_K", "W_V", "W_O"}
    assert "blocks.0.attn.W_O.bias" not in changed
    assert found.cost == found.after - found.before != 0


def test_a_head_taken_back_restores_the_model() -> None:
    run, other = made(1), made(2)
    away = lens.transplant(run, other, 1, 0, texts=TEXT)
    back = lens.transplant(Run(away.model, run.tokenizer), run, 1, 0, texts=TEXT)
    for name, weight in run.model.state_dict().items():
        assert torch.equal(weight, back.model.state_dict()[name])
    assert back.after == away.before


def test_the_cost_is_measured_on_held_out_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("the bank lends money to the river\n" * 20)
    run = cf.train(
        "quick",
        run="small",
        data={"path": str(tmp_path / "text.txt")},
        model={"d_model": 12, "n_layers": 1, "max_seq_len": 13, "attention": {"n_heads": 2}},
        train={"max_steps": 3, "max_seconds": None, "batch_size": 2, "device": "cpu", "compile": False},
    )
    found = lens.transplant(run, run, 0, 1)
    assert found.before == found.after == pytest.approx(run.evaluate().loss, rel=1e-9)
    assert "held-out" in found.caption()
    with pytest.raises(RunError, match="this run has no folder"):
        lens.transplant(cf.Run(run.model, run.tokenizer), run, 0, 1)


def refused(message: str, **arguments: Any) -> None:
    given = {"run_to": made(1), "run_from": made(2), "layer": 0, "head": 0, "texts": TEXT} | arguments
    with pytest.raises(UserError) as error:
        lens.transplant(**given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_what_cannot_be_moved_is_refused_in_one_line() -> None:
    grouped = made(1, attention=MultiHead(n_heads=4, n_kv_heads=2, d_head=3))
    refused("has 4 heads that share the keys and values of 2", run_to=grouped)
    refused("has 4 heads that share the keys and values of 2", run_from=grouped)
    refused("W_Q.weight of a head is [3, 22] in blocks.0.attn and [3, 12]", run_from=made(2, d_model=12))
    refused("W_Q.bias of a head", run_from=made(2, attention=MultiHead(n_heads=4, d_head=3)))
    refused("has shared attention, whose heads have no matrices", run_to=made(1, attention=Shared()))
    refused("layer 2: there are 2 layers, 0 to 1", layer=2)
    refused("head 4: there are 4 heads, 0 to 3", head=4)
    refused("into: a layer and a head", into=3)
    refused("layer 7", into=(7, 0))
    refused("layer: a whole number; got True", layer=True)
    refused("attention: attn, cross_attn or encoder; got 'mlp'", attention="mlp")
    refused("give a run, such as", run_from=made(2).model)
    refused("texts: give one or more", texts=[])
    refused("texts: give one or more that the models read; got 5", texts=5)


def test_linear_attention_has_heads_that_move() -> None:
    attention = Linear(n_heads=2)
    run, other = made(1, attention=attention), made(2, attention=attention)
    assert lens.transplant(run, other, 1, 1, texts=TEXT).cost != 0
    assert lens.match_heads(run, run, TEXT).matches[0].similarity == pytest.approx(1, abs=1e-5)


def test_texts_of_a_generator_are_all_read() -> None:
    run, other = made(1), made(2)
    found = lens.transplant(run, other, 0, 1, texts=(each for each in TEXTS))  # type: ignore[arg-type]
    assert found.before == lens.transplant(run, other, 0, 1, texts=TEXTS).before


def test_runs_that_cannot_be_compared_are_refused_in_one_line() -> None:
    run, other = made(1), run_of("decoder", "bpe")
    for compare in (lens.match_heads, lens.differences):
        with pytest.raises(UserError, match="the two runs have different tokenizers \\(char of") as error:
            compare(run, other, TEXT)
        assert "\n" not in str(error.value)
        with pytest.raises(UserError, match="family: encoder and decoder cannot be compared"):
            compare(made(1, "encoder"), made(2), TEXT)
    with pytest.raises(UserError, match="by: pattern or output"):
        lens.match_heads(run, run, TEXT, by="weights")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="texts: give one or more"):
        lens.match_heads(run, run, [])
    last = made(1, attention=Last())
    with pytest.raises(UserError, match=r"^model.attention.kind=last has no pattern; heads can"):
        lens.match_heads(last, last, TEXT)
    assert lens.match_heads(last, last, TEXT, by="output").matches[0].similarity == pytest.approx(1, abs=1e-5)
