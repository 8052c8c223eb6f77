"""Writing on a GPU: CUDA graphs write what the plain step does, and both what a CPU does."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from clearformer.data import Split
from clearformer.decoding import Sampling, collect, generate_tokens, random_stream
from clearformer.decoding.beam import BeamSearch, beam_search
from clearformer.decoding.fast import graphs
from clearformer.decoding.fast.compiling import compiled_step, read_tokens
from clearformer.decoding.fast.graphs import GraphedStep, record_graph
from clearformer.evaluation import evaluate_split
from clearformer.model import Decoder, EncoderDecoder, ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.init import Gaussian
from clearformer.model.linear_attention import Linear
from clearformer.model.norms import RMSNorm
from clearformer.model.positions import ALiBi, Learned, RoPE

GREEDY = Sampling(temperature=0)
DRAWN = Sampling(temperature=1.5, top_k=9, top_p=0.9, min_p=0.01, repetition_penalty=1.2)
UNEQUAL = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
SIZES: dict[str, Any] = {"vocab_size": 61, "d_model": 64, "n_layers": 2, "max_seq_len": 48}
SIZES |= {"init": Gaussian(), "tie_embeddings": False}  # a tied one repeats its last token
FORMS: dict[str, dict[str, Any]] = {
    "learned": {"position": Learned(), "attention": MultiHead(n_heads=4, qkv_bias=True)},
    "rope, grouped": {"position": RoPE(), "attention": MultiHead(n_heads=4, n_kv_heads=2, qk_norm=RMSNorm())},
    "alibi": {"position": ALiBi(), "attention": MultiHead(n_heads=4)},
    "window": {"position": RoPE(), "attention": MultiHead(n_heads=4, window=5)},
}
every_form = pytest.mark.parametrize("form", FORMS)


def decoder(form: str, **changes: Any) -> Decoder:
    return build(ModelConfig(**(SIZES | FORMS[form] | changes))).eval()


def continuing(
    model: Any, prompts: Sequence[list[int]], n_new: int, sampling: Sampling, **options: Any
) -> Any:
    streams = [random_stream(1, row) for row in range(len(prompts))]
    return generate_tokens(model, prompts, n_new, sampling, streams, **options)


def written(
    model: Any, prompts: Sequence[list[int]], n_new: int = 30, sampling: Sampling = GREEDY, **options: Any
) -> list[list[int]]:
    found = collect(continuing(model, prompts, n_new, sampling, **options), len(prompts))
    return [completion.tokens for completion in found]


def replayed_by_calling(run: Any) -> Any:
    """What stands for a graph where these tests are run on a CPU."""
    run()
    found = run()

    def replay() -> None:
        for memory, new in zip(found, run(), strict=True):
            memory.copy_(new)

    return replay, found


@pytest.fixture
def eager_graphs(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> list[GraphedStep]:
    """The plain step as a CUDA graph, so that nothing but the graph is tested; those that were made."""
    made: dict[Decoder, GraphedStep] = {}
    record = record_graph if device.type == "cuda" else replayed_by_calling
    monkeypatch.setattr(
        "clearformer.decoding.decode_state.compiled_step",
        lambda model, n_texts: made.setdefault(model, GraphedStep(read_tokens, record)),
    )
    return made.values()  # type: ignore[return-value]


def recorded(steps: Any) -> int:
    """How many graphs there are; each step must still be able to record."""
    assert all(step.record is not None for step in steps), "recording has failed"
    return sum(len(step.recorded) for step in steps)


# --- graphs -----------------------------------------------------------------------------------------------


@every_form
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_graph_writes_what_the_plain_step_does(
    form: str, sampling: Sampling, eager_graphs: list[GraphedStep], device: torch.device
) -> None:
    model = decoder(form).to(device)
    for prompts in (UNEQUAL, [[1, 2]], [[3, 4]] * 5):
        plain = written(model, prompts, sampling=sampling)
        assert written(model, prompts, sampling=sampling, compiled=True) == plain
    assert recorded(eager_graphs) == 3


def test_texts_that_end_grow_and_begin_anew(
    eager_graphs: list[GraphedStep], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "LEAST_PLACES", 12)
    monkeypatch.setattr("clearformer.decoding.decode_state.LEAST_ROOM", 12)
    model = decoder("rope, grouped").to(device)
    prompts = [[n, 2 * n] for n in range(1, 8)]
    eos = written(model, prompts)[0][9]

    plain = written(model, prompts, n_new=120, eos_id=eos)
    assert written(model, prompts, n_new=120, eos_id=eos, compiled=True) == plain
    assert 3 <= recorded(eager_graphs) <= graphs.MAX_GRAPHS  # of 12, 24 and 48 places at least


def test_two_texts_at_a_time_do_not_mix(eager_graphs: list[GraphedStep], device: torch.device) -> None:
    model = decoder("learned").to(device)
    one, other = [[1, 2], [3, 4]], [[5, 6, 7], [8]]
    pair = (continuing(model, prompts, 20, GREEDY, compiled=True) for prompts in (one, other))

    both = list(zip(*pair, strict=True))

    for prompts, tokens in zip((one, other), zip(*both, strict=True), strict=True):
        assert [row.tokens for row in collect(tokens, 2)] == written(model, prompts, n_new=20)
    assert recorded(eager_graphs) == 1


def test_a_graph_reads_the_weights_as_they_are(eager_graphs: list[GraphedStep], device: torch.device) -> None:
    model = decoder("learned").to(device)
    before = written(model, UNEQUAL, compiled=True)
    with torch.no_grad():
        model.blocks[0].mlp.W_in.weight.neg_()  # type: ignore[union-attr, operator]
    assert written(model, UNEQUAL, compiled=True) == written(model, UNEQUAL) != before
    model.to(torch.float64)
    assert written(model, UNEQUAL, compiled=True) == written(model, UNEQUAL)
    assert recorded(eager_graphs) == 1


@every_form
def test_the_compiled_step_s_graph_writes_what_the_plain_step_does(
    form: str, compiler: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    model = decoder(form).to(compiler)
    for prompts in (UNEQUAL, [[1, 2]]):
        assert written(model, prompts, compiled=True) == written(model, prompts)
    step = compiled_step(model, 1)
    assert isinstance(step, GraphedStep)
    assert recorded([step]) == 2
    assert not caplog.messages  # neither compiling nor recording has failed


def test_linear_attention_is_compiled_without_a_graph(compiler: torch.device) -> None:
    model = decoder("learned", attention=Linear(n_heads=4)).to(compiler)
    assert written(model, UNEQUAL, compiled=True) == written(model, UNEQUAL)
    assert recorded([compiled_step(model, 1)]) == 0


def test_an_encoder_decoder_is_compiled_without_a_graph(compiler: torch.device) -> None:
    model = pair_model().to(compiler)
    plain = written(model, [[1]] * 3, sources=UNEQUAL)
    assert written(model, [[1]] * 3, compiled=True, sources=UNEQUAL) == plain


# --- as on a CPU ------------------------------------------------------------------------------------------


def pair_model() -> EncoderDecoder:
    return build(ModelConfig(family="encoder-decoder", **SIZES)).eval()


@every_form
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_gpu_writes_what_a_cpu_does(form: str, sampling: Sampling, device: torch.device) -> None:
    """In float64, where scores are not so near each other that rounding changes which is the larger."""
    model = decoder(form).double()
    moved = copy.deepcopy(model).to(device)
    assert written(moved, UNEQUAL, n_new=60, sampling=sampling) == written(
        model, UNEQUAL, n_new=60, sampling=sampling
    )


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_beam_search_finds_what_it_does_on_a_cpu(early_stopping: Any, device: torch.device) -> None:
    search = BeamSearch(beams=4, early_stopping=early_stopping)
    model = pair_model().double()
    moved = copy.deepcopy(model).to(device)
    here, there = (
        beam_search(each, [[1]] * 3, [9, 5, 12], search, eos_id=7, n_best=3, sources=UNEQUAL)
        for each in (model, moved)
    )
    assert [[h.tokens for h in row] for row in there] == [[h.tokens for h in row] for row in here]
    for ours, theirs in zip(here, there, strict=True):
        assert [h.score for h in theirs] == pytest.approx([h.score for h in ours], abs=1e-5)
    writer = decoder("rope, grouped").double()
    ours, theirs = (
        beam_search(each, UNEQUAL, 20, search, eos_id=7)
        for each in (writer, copy.deepcopy(writer).to(device))
    )
    assert [row[0].tokens for row in ours] == [row[0].tokens for row in theirs]


def test_a_text_s_loss_is_the_cpu_s(device: torch.device) -> None:
    model = decoder("learned")
    tokens = np.random.default_rng(0).integers(0, 61, 500)
    split = Split("val", [tokens.astype(np.uint16)], n_chars=0, n_bytes=0)
    ours, theirs = (evaluate_split(each, split) for each in (model, copy.deepcopy(model).to(device)))
    assert theirs.loss == pytest.approx(ours.loss, rel=1e-5)
    assert theirs.mean_entropy == pytest.approx(ours.mean_entropy, rel=1e-5)
