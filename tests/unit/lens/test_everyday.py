"""Activations of a text, patterns, alignment, predictions, positions: values that show and draw themselves."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from clearformer import lens
from clearformer.errors import MissingPackageError, UserError
from clearformer.lens.causal.interventions import output_with
from clearformer.lens.heads.scores import repeated
from clearformer.lens.learning.prediction import prediction_of
from clearformer.model import ModelConfig, build
from clearformer.model.attention import Last, MultiHead
from clearformer.model.norms import NoNorm
from clearformer.model.positions import ALiBi, Learned, NoPositions, RoPE, Sinusoidal, sinusoidal_table
from clearformer.text import BPETokenizerSpec, specials_of

from .test_embeddings import N_LAYERS, TEXT, Run, run_of

SHORT = "the bank"
FAMILIES = ("decoder", "encoder", "encoder-decoder")


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    return {family: run_of(family, "bpe") for family in FAMILIES}


# --- the model's parts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_parts_of_a_model_have_all_its_parameters_once(family: str, ties: bool) -> None:
    run = run_of(family, tie_embeddings=ties, head_bias=True)
    found = lens.architecture(run)
    assert sum(each.parameters for each in found.components) == found.parameters
    embeddings = [row[3] for row in found.table().rows if row[0] == "embed"]
    n = f"{run.model.embed.weight.numel():,}"
    assert embeddings == ([n, "shared"] if family == "encoder-decoder" else [n])


# --- activations ------------------------------------------------------------------------------------------


def test_a_text_gives_detached_activations_and_leaves_the_model_as_it_was(runs: dict[str, Run]) -> None:
    run = runs["decoder"]
    run.model.train()
    logits, cache = lens.run_with_cache(run, TEXT)
    assert run.model.training
    pattern = cache["pattern", 0].numpy()
    np.testing.assert_allclose(pattern.sum(-1), 1, atol=1e-5)
    with lens.quiet(run.model):
        inputs = lens.read(run, TEXT)
        assert torch.equal(logits, run.model.eval()(*inputs.arguments)) or torch.allclose(
            logits, run.model(*inputs.arguments), atol=1e-5
        )
    _, some = lens.run_with_cache(run, TEXT, names="blocks.*.attn.hook_z")
    assert len(some) == N_LAYERS


def test_hooks_agree_with_torchs_own(runs: dict[str, Run]) -> None:
    """`register_forward_hook` as the oracle."""
    model, seen = runs["decoder"].model, {}
    handles = [
        block.mlp.register_forward_hook(lambda _module, _args, out, i=i: seen.__setitem__(i, out))
        for i, block in enumerate(model.blocks)
    ]
    _, cache = lens.run_with_cache(runs["decoder"], TEXT)
    for handle in handles:
        handle.remove()
    for i in range(N_LAYERS):
        assert torch.equal(cache["mlp_out", i], seen[i])


# --- predictions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_layers_logits_are_the_models_own(family: str, runs: dict[str, Run]) -> None:
    output = TEXT if family == "encoder-decoder" else None
    found = lens.logit_lens(runs[family], TEXT, output, position=3)
    assert found.error == 0
    assert len(found.layers) == N_LAYERS + 1
    assert not found.learned


@pytest.mark.parametrize(("top", "why"), [(0, "1 or more; got 0"), (2.5, "a whole number; got 2.5")])
def test_the_number_of_guesses_is_checked(top: Any, why: str, runs: dict[str, Run]) -> None:
    with pytest.raises(UserError, match=f"top: {why}"):
        lens.logit_lens(runs["decoder"], TEXT, top=top)


@torch.no_grad()
def test_each_layer_is_read_through_the_final_norm_of_its_own_stream() -> None:
    run = run_of("decoder", "char")
    model, inputs = run.model.eval(), lens.read(run, "bank")
    _, cache = lens.run_with_cache(run, "bank")
    found = lens.logit_lens(run, "bank", position=1, top=3)
    x = cache["resid_post", 0][0, 1]
    normed = (x - x.mean()) / (x.var(unbiased=False) + model.ln_final.eps).sqrt() * model.ln_final.weight
    probabilities = (model.embed.weight @ (normed + model.ln_final.bias)).softmax(-1)
    top = probabilities.topk(3)
    assert [guess.token for guess in found.layers[1].top] == [
        inputs.label(token) for token in top.indices.tolist()
    ]
    assert [guess.probability for guess in found.layers[1].top] == pytest.approx(
        top.values.tolist(), rel=1e-4
    )
    following = probabilities[inputs.predicted[1]]
    assert found.target == "n"
    assert found.layers[1].rank == 1 + int((probabilities > following).sum())
    entropy = float(-(probabilities * probabilities.log()).sum())
    assert found.layers[1].entropy == pytest.approx(entropy, rel=1e-4)
    assert found.layers[1].probability == pytest.approx(float(following), rel=1e-4)
    with lens.quiet(model):
        last = model(inputs.tokens)[0, 1].softmax(-1)
    kl = torch.nn.functional.kl_div(probabilities.log(), last, reduction="sum")  # of the last from this layer
    assert found.layers[1].kl == pytest.approx(float(kl), rel=1e-3)
    assert found.layers[1].kl > 1e-4
    assert found.layers[-1].kl == 0
    assert found.best[1][1] == found.layers[1].top[0].token


def test_a_layer_whose_logits_are_nan_ranks_the_target_last_and_is_not_certain() -> None:
    run = run_of("decoder", "char")
    with torch.no_grad():
        for weights in run.model.blocks[1].parameters():
            weights.fill_(torch.nan)
    found = lens.logit_lens(run, "bank", position=1)
    before, after = found.layers[1], found.layers[2]
    assert before.rank < run.tokenizer.vocab_size
    assert before.entropy > 0
    assert after.rank == run.tokenizer.vocab_size
    assert np.isnan([after.entropy, after.probability, after.kl, after.top[0].probability]).all()


def test_the_json_of_the_logit_lens_has_the_fields_that_others_rely_on(runs: dict[str, Run]) -> None:
    [first, *_] = lens.logit_lens(runs["decoder"], TEXT).to_dict()["layers"]
    assert first.keys() == {"name", "top", "rank", "entropy", "probability", "kl"}
    assert first["top"][0].keys() == {"token", "probability"}


def test_a_classifier_is_read_by_layer_too() -> None:
    model = build(ModelConfig(family="encoder", vocab_size=13, d_model=12, n_layers=2, n_classes=3))
    found = lens.logit_lens(model, [1, 2, 3], target=2)
    assert found.error < 1e-6
    assert sum(guess.probability for guess in found.layers[0].top) == pytest.approx(1)
    figure = Figure()
    found.draw(figure)
    assert figure.axes[0].get_title() == "likeliest by layer"  # a class is no next token


LEARNABLE = "the bank lends money, and the river takes it. " * 14


def test_a_tuned_lens_begins_as_the_logit_lens_and_is_no_worse_on_held_out_text() -> None:
    run = run_of("decoder", "char", max_seq_len=23, norm=NoNorm(), dropout=0.0)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.mul_(3)
    text = "".join(character for character in LEARNABLE if run.tokenizer.id_of(character) is not None)
    tuned = lens.tune(run, text, steps=16)
    assert all(after <= before for after, before in zip(tuned.kl, tuned.kl_of_logit_lens, strict=True))
    assert sum(tuned.kl) < 0.9 * sum(tuned.kl_of_logit_lens)
    plain, learned = (lens.logit_lens(run, "bank", tuned=each) for each in (None, tuned))
    assert learned.learned
    assert learned.error == plain.error == 0
    assert learned.layers[0] != plain.layers[0]
    assert learned.layers[-1] == plain.layers[-1]
    figure = Figure()
    tuned.draw(figure)
    ticks = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert ticks == ["embedding", *(name.split(".")[1] for name in tuned.names[1:])]  # blocks count from 0
    assert all(parameter.grad is None for parameter in run.model.parameters())
    with pytest.raises(UserError, match="tuned for another model"):
        lens.logit_lens(run_of("decoder", "char"), "bank", tuned=tuned)
    identity = lens.TunedLens(
        tuned.names,
        [],
        [],
        0,
        0,
        torch.zeros_like(tuned.matrices),
        torch.zeros_like(tuned.offsets),
        run.model,
    )
    assert lens.logit_lens(run, "bank", tuned=identity).layers == plain.layers


def test_an_encoder_s_lens_is_tuned_on_stretches_between_special_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = run_of("encoder", "wordpiece", max_seq_len=9)
    seen: list[torch.Tensor] = []
    forward = type(run.model).forward
    monkeypatch.setattr(
        type(run.model), "forward", lambda model, *given: (seen.append(given[0]), forward(model, *given))[1]
    )
    lens.tune(run, LEARNABLE, steps=2)
    assert seen
    for tokens in seen:
        assert (tokens[:, 0] == run.tokenizer.bos_id).all()
        assert (tokens[:, -1] == run.tokenizer.eos_id).all()
        assert tokens.shape[1] == 9


def test_an_encoder_decoder_s_lens_is_tuned_on_pairs() -> None:
    run = run_of("encoder-decoder", "char", norm=NoNorm(), dropout=0.0)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.mul_(3)
    sources = ["the bank", "the river", "money", "it takes", "of it"] * 3
    outputs = [source[::-1] for source in sources]
    tuned = lens.tune(run, sources, outputs, steps=8)
    assert tuned.names[0] == "decoder_blocks.0.hook_resid_pre"
    assert all(after <= before for after, before in zip(tuned.kl, tuned.kl_of_logit_lens, strict=True))
    assert sum(tuned.kl) < 0.9 * sum(tuned.kl_of_logit_lens)
    measured = [lens.read(run, *pair) for pair in zip(sources[-2:], outputs[-2:], strict=True)]
    assert tuned.n_tokens == sum(map(len, measured))
    plain, learned = (lens.logit_lens(run, "the bank", "knab", tuned=each) for each in (None, tuned))
    assert learned.layers[0] != plain.layers[0]
    assert learned.layers[-1] == plain.layers[-1]


def test_what_cannot_be_tuned_is_refused(runs: dict[str, Run]) -> None:
    pair = runs["encoder-decoder"]
    for arguments in ((TEXT,), (TEXT, TEXT), ([TEXT] * 5,)):
        with pytest.raises(UserError, match="is tuned on pairs: give a list of sources"):
            lens.tune(pair, *arguments)
    for n_outputs in (4, 6):
        with pytest.raises(
            UserError, match=f"output: 5 sources and {n_outputs} outputs; give the same number of each"
        ):
            lens.tune(pair, ["the bank"] * 5, ["the bank"] * n_outputs)
    with pytest.raises(UserError, match="at least 5"):
        lens.tune(pair, ["the bank"] * 4, ["the bank"] * 4)
    with pytest.raises(UserError, match=r"give a run, such as cf.load\('NAME'\); got a model alone"):
        lens.tune(pair.model, ["the bank"] * 5, ["the bank"] * 5)
    with pytest.raises(UserError, match="seed: a whole number; got 'a'"):
        lens.tune(pair, ["the bank"] * 5, ["the bank"] * 5, seed="a")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="output: only an encoder-decoder"):
        lens.tune(runs["decoder"], TEXT, [TEXT])
    with pytest.raises(UserError, match="text: 1 token is too few"):
        lens.tune(runs["decoder"], "t")
    with pytest.raises(UserError, match="text: 4 tokens are too few"):
        lens.tune(run_of("decoder", "char"), "bank")
    with pytest.raises(UserError, match="steps: 1 or more"):
        lens.tune(runs["decoder"], TEXT, steps=0)


def test_next_tokens_are_the_softmax_at_each_temperature(runs: dict[str, Run]) -> None:
    run = runs["decoder"]
    found = lens.next_tokens(run, TEXT, temperatures=(0.5, 1, 2), top=4)
    logits = lens.run_with_cache(run, TEXT)[0][0, -1].double()
    for row, temperature in zip(found.probabilities, (0.5, 1, 2), strict=True):
        assert row == pytest.approx((logits / temperature).softmax(-1)[found.ids].numpy(), abs=1e-6)
    assert found.ids == logits.topk(4).indices.tolist()
    assert found.temperatures == [0.5, 1.0, 2.0]
    of_numpy = np.array([0.5, 1, 2], np.float32)
    assert lens.next_tokens(run, TEXT, temperatures=of_numpy, top=4).temperatures == found.temperatures  # type: ignore[arg-type]
    for wrong in (0, -1, 1e-310, math.inf, "hot"):
        with pytest.raises(UserError, match="temperatures: numbers of at least 1e-06"):
            lens.next_tokens(run, TEXT, temperatures=[wrong])  # type: ignore[list-item]
    with pytest.raises(UserError, match=r"temperatures: a list, such as \[1\.0\]; got 0\.5"):
        lens.next_tokens(run, TEXT, temperatures=0.5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="temperatures: give at least one"):
        lens.next_tokens(run, TEXT, temperatures=[])


# --- patterns ---------------------------------------------------------------------------------------------


def test_patterns_are_those_of_the_hook_points(runs: dict[str, Run]) -> None:
    found = lens.attention(runs["encoder-decoder"], "the bank", "the river")
    _, cache = lens.run_with_cache(runs["encoder-decoder"], "the bank", "the river")
    assert len(found.patterns) == 3 * N_LAYERS
    for name, pattern in found.patterns.items():
        np.testing.assert_array_equal(pattern, cache[name][0].numpy())
        readers, read = found.labels(name)
        assert pattern.shape == (2, len(readers), len(read))
    one = lens.attention(runs["decoder"], TEXT, layer=-1, head=1)
    assert list(one.patterns) == [f"blocks.{N_LAYERS - 1}.attn.hook_pattern"]
    assert one.heads == [1]
    assert one.to_dict().keys() >= {"tokens", "patterns"}
    assert len(one.table().rows) == len(one.tokens)


def test_the_last_layer_is_that_of_each_stack() -> None:
    run = run_of("encoder-decoder", n_layers=3, n_decoder_layers=1)
    found = lens.attention(run, "bank", "the", layer=-1).patterns
    decoder = "decoder_blocks.0."
    assert list(found) == ["encoder_blocks.2.attn.hook_pattern", f"{decoder}attn.hook_pattern",
                           f"{decoder}cross_attn.hook_pattern"]  # fmt: skip
    assert list(lens.attention(run, "bank", "the", layer=2).patterns) == [
        "encoder_blocks.2.attn.hook_pattern"
    ]


def test_a_layer_or_head_that_is_not_there_is_refused(runs: dict[str, Run]) -> None:
    with pytest.raises(UserError, match="layer 3: there are 3 layers, 0 to 2"):
        lens.attention(runs["decoder"], TEXT, layer=3)
    with pytest.raises(UserError, match="head 2: there are 2 heads, 0 to 1"):
        lens.attention(runs["decoder"], TEXT, head=2)
    with pytest.raises(UserError, match=r"model\.attention\.kind is last: it has no attention weights"):
        lens.attention(run_of("decoder", attention=Last(), position=NoPositions()), TEXT)


def test_rows_of_an_alignment_are_called_after_what_they_predict(runs: dict[str, Run]) -> None:
    run = runs["encoder-decoder"]
    found = lens.alignment(run, "the bank", "the river", layer=0)
    inputs = lens.read(run, "the bank", "the river")
    assert found.predicted == [*found.tokens[1:], "<eos>"]
    _, cache = lens.run_with_cache(run, "the bank", "the river")
    pattern = cache["cross_attn.pattern", 0][0].numpy()
    np.testing.assert_allclose(found.weights, pattern.mean(0), atol=1e-6)
    one = lens.alignment(run, "the bank", "the river", layer=0, head=1)
    np.testing.assert_allclose(one.weights, pattern[1], atol=1e-6)
    assert found.source == inputs.source_labels
    with pytest.raises(UserError, match=r"only an encoder-decoder aligns .*; model\.family is decoder"):
        lens.alignment(runs["decoder"], TEXT)


# --- positions --------------------------------------------------------------------------------------------


def of_positions(position: Any, n: int | None = None) -> lens.PositionTable:
    config = ModelConfig(
        vocab_size=7, d_model=12, n_layers=1, max_seq_len=9, position=position, attention=MultiHead(n_heads=3)
    )
    return lens.positions(build(config), n)


def test_positions_are_what_the_model_adds_turns_or_takes_away() -> None:
    np.testing.assert_allclose(of_positions(Sinusoidal()).values, sinusoidal_table(12, 9).numpy(), atol=1e-6)
    assert of_positions(Learned(), 5).values.shape == (5, 12)
    turned = of_positions(RoPE(theta=100.0))
    angles = np.arange(9)[:, None] * 100.0 ** -np.array([0, 0.5])
    np.testing.assert_allclose(turned.values, np.hstack([np.cos(angles), np.sin(angles)]), atol=1e-6)
    bias = of_positions(ALiBi())
    assert (bias.acts, bias.values.shape) == ("bias", (9, 3))
    np.testing.assert_allclose(bias.values[:, 0], -np.arange(9) * 2**-4, atol=1e-6)
    with pytest.raises(UserError, match=r"model\.position\.kind is none"):
        of_positions(NoPositions())
    assert len(of_positions(Learned(), np.int64(5)).values) == 5  # type: ignore[arg-type]
    with pytest.raises(UserError, match="n: a whole number; got True"):
        of_positions(Learned(), True)
    with pytest.raises(UserError, match="n: from 1 to 9 positions"):
        of_positions(Learned(), 10)


# --- numbers of NumPy -------------------------------------------------------------------------------------

NUMBERED: list[tuple[Any, dict[str, int]]] = [
    (lens.attention, {"layer": 1, "head": 1}),
    (lens.alignment, {"layer": -1, "head": 1}),
    (lens.head_pattern, {"layer": 1, "head": 1, "position": 2, "key": 1}),
    (lens.block, {"layer": 1, "head": 1, "position": 2}),
    (lens.cell, {"layer": 1, "head": 1, "row": 1, "column": 2}),
    (lens.score, {"layer": 1, "head": 1, "position": 2, "key": 1}),
    (lens.ledger, {"position": 2}),
    (lens.logit_lens, {"position": 2}),
    (lens.next_tokens, {"position": 2}),
]


@pytest.mark.parametrize(("function", "numbers"), NUMBERED, ids=lambda each: getattr(each, "__name__", ""))
def test_numpys_whole_numbers_are_whole_numbers(
    function: Any, numbers: dict[str, int], runs: dict[str, Run]
) -> None:
    family = "encoder-decoder" if function is lens.alignment else "decoder"
    found = function(runs[family], TEXT, **{name: np.int64(number) for name, number in numbers.items()})
    assert repr(found) == repr(function(runs[family], TEXT, **numbers))
    for name in numbers:
        for wrong in (True, 1.5, "1"):
            with pytest.raises(UserError, match=f": a whole number; got {wrong!r}"):
                function(runs[family], TEXT, **(numbers | {name: wrong}))


# --- 16 bits ----------------------------------------------------------------------------------------------


def test_losses_and_probabilities_of_a_model_of_16_bits_are_more_exact_than_its_logits() -> None:
    run, other = run_of("decoder", "char"), run_of("decoder", "char")
    for each in (run, other):
        each.model.bfloat16()
    wanted = lens.tokens(run, TEXT).losses  # in float64
    found = lens.differences(run, other, TEXT)
    assert [each.loss for each in found.losses] == pytest.approx(wanted[:-1], abs=1e-5)
    assert lens.loss_changes(run, other, TEXT, pieces=1).before == pytest.approx(np.nanmean(wanted), abs=1e-5)

    logits = lens.run_with_cache(run, TEXT)[0][0].double()
    last = lens.logit_lens(run, TEXT, position=3).layers[-1]
    p = logits[3].softmax(-1)
    assert last.entropy == pytest.approx(-float((p * p.log()).sum()), abs=1e-5)
    assert last.top[0].probability == pytest.approx(float(p.max()), abs=1e-6)
    predicted = prediction_of(run, TEXT, target=2, position=3)
    assert predicted.value(run.model) == pytest.approx(-math.log(p[2]), abs=1e-5)

    edited = lens.intervene(run, TEXT, lens.zero("blocks.0.hook_mlp_out"))
    before = output_with(run.model, lens.read(run, TEXT).arguments)[0].double().log_softmax(-1)
    kl = (before.exp() * (before - edited.output.double().log_softmax(-1))).sum(-1)
    assert edited.kl == pytest.approx(kl.tolist(), abs=1e-6)

    scores = lens.head_scores(run, n_tokens=8)
    text = repeated(run.model, run.tokenizer, 8, 4, 0)
    with lens.quiet(run.model):
        of_text = run.model(text.tokens)[:, 7:15].double()  # the repetition
    losses = torch.nn.functional.cross_entropy(of_text[:, 1:].transpose(1, 2), text.tokens[:, 9:])
    assert scores.repeat_loss == pytest.approx(losses.item(), abs=1e-5)


# --- all of them ------------------------------------------------------------------------------------------


def everything(runs: dict[str, Run]) -> list[Any]:
    run, pair = runs["decoder"], runs["encoder-decoder"]
    return [
        lens.ledger(run, SHORT),
        lens.sources(run, SHORT),
        lens.score(run, SHORT, layer=1, key=0),
        lens.logit_lens(run, SHORT),
        lens.next_tokens(run, "$ bank $" if run.tokenizer.id_of("$") else SHORT),
        lens.attention(run, SHORT),
        lens.attention(run, SHORT, layer=0, head=0),
        lens.alignment(pair, "the bank", "the river"),
        lens.positions(run),
        lens.embed(run, SHORT),
        lens.word_similarity(run, "bank", ["the bank", "a bank"]),
        lens.tokens(pair, "the bank", "the river"),
    ]


def test_every_result_shows_and_draws_itself(runs: dict[str, Run], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for i, found in enumerate(everything(runs)):
        heads, rows, n_left = found.table()
        assert rows
        assert all(len(row) == len(heads) for row in rows)
        assert 0 < n_left <= len(heads)
        html = found._repr_html_()
        assert "<table>" in html
        assert len(repr(found)) < 1500
        json.dumps(found.to_dict(), allow_nan=False)
        path = found.figure(tmp_path / f"{i}.png")
        assert path.read_bytes().startswith(b"\x89PNG")


def test_dollars_in_tokens_are_no_formula(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    text, dollars = "$$ a$_b$ ^ {x}", "$$"
    tokenizer = BPETokenizerSpec(vocab_size=270).train([text] * 40, specials=specials_of("decoder"))
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, d_model=12, n_layers=1, attention=MultiHead(n_heads=2)
    )
    run = Run(build(config), tokenizer)
    at: Any = {"position": 0}
    with torch.no_grad():
        run.model.embed.weight[tokenizer.encode(dollars)] = 3.0  # so that it follows itself
    drawn = [
        lens.ledger(run, text, target=dollars, **at),
        lens.sources(run, text, target=dollars, **at),
        lens.score(run, text, layer=0, key=0, **at),
        lens.logit_lens(run, text, target=dollars, **at),
        lens.next_tokens(run, text, **at),
        lens.next_draw(run, text, **at),
        lens.continuations(run, text, max_new_tokens=2, **at),
        lens.beam_tree(run, text, max_new_tokens=2, **at),
        lens.with_edits(run, text, target=dollars, max_new_tokens=0, **at),
    ]
    for i, found in enumerate(drawn):
        assert dollars in f"{found.caption()}{found.table().rows}"
        assert found.figure(tmp_path / f"{i}.svg").exists()


def test_a_notebook_reads_no_html_in_a_token(runs: dict[str, Run]) -> None:
    nothing = np.array([np.nan])
    found = lens.TokenTable(
        ["<b>"], [1], [3], ["&"], nothing, nothing, [], uniform_loss=0.7, mask="", masked=[]
    )
    assert "&lt;b&gt;" in found._repr_html_()
    assert "<b>" not in found._repr_html_()


def test_a_figure_needs_a_path_and_matplotlib(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = lens.positions(runs["decoder"])
    with pytest.raises(UserError, match=r"a figure is written as \.png"):
        found.figure(tmp_path / "a.txt")
    with pytest.raises(UserError, match="a figure is written to a path"):
        found.figure(3)  # type: ignore[arg-type]
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'clearformer\[figures\]'"):
        found.figure(tmp_path / "a.png")
