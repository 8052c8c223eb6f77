"""The step that is recorded as a CUDA graph, replayed here by calling it: the cache of always one size, whose it is.

(That a real graph writes the same: tests/gpu.)
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from clearformer.config import Spec, slot_variants
from clearformer.decoding import Sampling, collect, decode_state, generate_tokens, random_stream
from clearformer.decoding.fast import graphs
from clearformer.decoding.fast.compiling import read_tokens
from clearformer.decoding.fast.graphs import GraphedStep, graphed_step, places_for
from clearformer.decoding.loop import score_tokens
from clearformer.errors import ConfigError
from clearformer.model import Decoder, ModelConfig, build
from clearformer.model.attention import Dot, MultiHead
from clearformer.model.init import Gaussian
from clearformer.model.norms import RMSNorm
from clearformer.model.positions import ALiBi, Learned, RoPE
from clearformer.model.relative_positions import Relative

HEADS = {"n_heads": 6, "n_kv_heads": 3, "d_head": 4, "n_buckets": 8, "max_distance": 5}


def config(**changes: Any) -> ModelConfig:
    settings: dict[str, Any] = {"vocab_size": 13, "d_model": 22, "n_layers": 2, "max_seq_len": 24}
    settings |= {"attention": filled(MultiHead), "position": RoPE(), "norm": RMSNorm(), "init": Gaussian()}
    return ModelConfig(**(settings | changes))


def filled(spec_type: type[Spec]) -> Any:
    return spec_type(**{name: value for name, value in HEADS.items() if name in spec_type.model_fields})


def every_pair() -> Iterator[Any]:
    fields = ModelConfig.model_fields
    for attention, attention_type in slot_variants(fields["attention"]).items():
        for position, position_type in slot_variants(fields["position"]).items():
            try:
                pair = config(attention=filled(attention_type), position=filled(position_type))
            except ConfigError:  # which pairs are refused is tested in test_model_config.py
                continue
            yield pytest.param(pair, id=f"{attention}+{position}")
    window = MultiHead(n_heads=2, d_head=4, window=3)
    for position in (RoPE(), Learned(), ALiBi(), Relative(n_buckets=8, max_distance=5)):
        yield pytest.param(config(attention=window, position=position), id=f"window+{position.kind}")


class Recorder:
    """What `record_graph` is on a GPU: one memory for what is found, overwritten by every replay."""

    def __init__(self) -> None:
        self.n_recorded = self.n_replayed = 0

    def __call__(self, run: Callable[[], Any]) -> tuple[Callable[[], object], Any]:
        self.n_recorded += 1
        run()
        found = run()

        def replay() -> None:
            self.n_replayed += 1
            for memory, new in zip(found, run(), strict=True):
                memory.copy_(new)

        return replay, found


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Every model's compiled step is one that this records, as on a GPU."""
    recorder, steps = Recorder(), {}

    def step_of(model: Decoder, n_texts: int) -> GraphedStep:
        return steps.setdefault(model, GraphedStep(read_tokens, recorder))

    monkeypatch.setattr(decode_state, "compiled_step", step_of)
    return recorder


def made(settings: ModelConfig) -> Decoder:
    return build(settings).double().eval()


def continuing(model: Decoder, prompts: list[list[int]], n_new: int = 12, **options: Any) -> Any:
    streams = [random_stream(1, row) for row in range(len(prompts))]
    return generate_tokens(model, prompts, n_new, Sampling(temperature=2.0), streams, **options)


def written(model: Decoder, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    found = collect(continuing(model, prompts, **options), len(prompts))
    return [completion.tokens for completion in found]


UNEQUAL = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]


@pytest.mark.parametrize("settings", list(every_pair()))
def test_the_recorded_step_writes_what_the_plain_one_does(settings: ModelConfig, recorder: Recorder) -> None:
    model = made(settings)

    for prompts in (UNEQUAL, [[1, 2, 3], [4, 5, 6]]):
        assert written(model, prompts, compiled=True, n_new=6) == written(model, prompts, n_new=6)

    keeps_keys = settings.attention.kind not in ("last", "linear")
    assert (recorder.n_replayed > 0) == keeps_keys


@pytest.mark.parametrize(
    "attention", [MultiHead(n_heads=6, n_kv_heads=1, d_head=4), Dot()], ids=["one", "dot"]
)
def test_one_text_is_recorded_though_its_keys_are_of_one_head(attention: Any, recorder: Recorder) -> None:
    """Then the last place of the keys is dense, and torch would see that it writes over what it reads."""
    model = made(config(attention=attention))
    assert written(model, [[1, 2, 3]], compiled=True) == written(model, [[1, 2, 3]])
    assert recorder.n_replayed > 0


def test_rows_that_end_leave_a_graph_for_fewer(recorder: Recorder) -> None:
    model = made(config())
    prompts = [[n + 1, 2 * n % 13] for n in range(7)]
    plain = written(model, prompts)
    ends = {eos: [row.index(eos) if eos in row else 99 for row in plain] for eos in range(13)}
    eos = max(ends, key=lambda token: len(set(ends[token])))
    assert len(set(ends[eos])) > 3  # rows end at many places

    assert written(model, prompts, compiled=True, eos_id=eos) == written(model, prompts, eos_id=eos)
    assert recorder.n_recorded <= 3  # for 7, 3 and 1 of them


def test_a_text_that_outgrows_its_places_goes_on_in_more(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "LEAST_PLACES", 6)
    monkeypatch.setattr(decode_state, "LEAST_ROOM", 6)
    model = made(config())

    assert written(model, UNEQUAL, compiled=True, n_new=18) == written(model, UNEQUAL, n_new=18)
    assert recorder.n_recorded == 3  # of 6, 12 and 24 places


def test_a_text_longer_than_the_positions_begins_anew_in_the_same_graph(recorder: Recorder) -> None:
    model = made(config())

    assert written(model, UNEQUAL, compiled=True, n_new=60) == written(model, UNEQUAL, n_new=60)
    assert recorder.n_recorded == 1


def test_a_text_goes_on_where_a_longer_one_beside_it_has_ended(recorder: Recorder) -> None:
    """And where it would be behind the last of the positions, if what is left of the longer one counted."""
    model = made(config())
    prompts = [[n % 13 for n in range(1, 23)], [4]]
    long, short = written(model, prompts, n_new=20)
    eos = next(token for token in long[:3] if token not in short)

    texts = written(model, prompts, n_new=20, eos_id=eos)
    assert len(texts[1]) == 20
    assert written(model, prompts, compiled=True, n_new=20, eos_id=eos) == texts
    assert recorder.n_replayed > 15


def test_two_texts_at_a_time_do_not_mix(recorder: Recorder) -> None:
    model = made(config())
    one, other = [[1, 2], [3, 4]], [[5, 6, 7], [8]]

    both = list(
        zip(continuing(model, one, compiled=True), continuing(model, other, compiled=True), strict=True)
    )

    for prompts, tokens in ((one, [a for a, _ in both]), (other, [b for _, b in both])):
        assert [completion.tokens for completion in collect(tokens, 2)] == written(model, prompts)
    assert recorder.n_recorded == 1


def test_other_weights_are_read_where_they_lie(recorder: Recorder) -> None:
    model = made(config())
    before = written(model, UNEQUAL, compiled=True)
    model.blocks[0].mlp.W_in.weight = torch.nn.Parameter(-model.blocks[0].mlp.W_in.weight.detach())  # type: ignore[union-attr]
    after = written(model, UNEQUAL, compiled=True)

    assert after == written(model, UNEQUAL)
    assert after != before
    assert recorder.n_recorded == 2


def test_what_is_found_outlasts_the_next_replay(recorder: Recorder) -> None:
    texts = decode_state.DecodeState(made(config()), score_tokens, compiled=True)
    texts.prefill([[1, 2]])
    first = texts.decode(torch.tensor([3]))
    kept = first.logits.clone()
    texts.decode(torch.tensor([4]))

    assert torch.equal(first.logits, kept)


def test_where_recording_fails_the_plain_step_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    attempts = []

    def fails(run: Callable[[], Any]) -> Any:
        attempts.append(1)
        run()
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    model = made(config())
    plain = written(model, UNEQUAL)
    step = GraphedStep(read_tokens, fails)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_state, "compiled_step", lambda *_: step)
        assert written(model, UNEQUAL, compiled=True) == plain

    assert len(attempts) == 1
    assert "continuing without: operation not permitted when stream is capturing" in caplog.text


def test_under_autocast_nothing_is_recorded(recorder: Recorder) -> None:
    model = build(config()).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        written(model, UNEQUAL, compiled=True)
    assert recorder.n_recorded == 0


def test_a_model_keeps_its_own_graphs_and_only_some() -> None:
    model, other = made(config()), made(config())
    assert graphed_step(model, read_tokens) is graphed_step(model, read_tokens)
    assert graphed_step(model, read_tokens) is not graphed_step(other, read_tokens)

    def of_another_type(*_: Any) -> None: ...

    assert graphed_step(model, of_another_type).step is of_another_type
    assert graphed_step(model, read_tokens).step is read_tokens

    with ThreadPoolExecutor(1) as thread:  # of another thread, which may write at the same time
        assert thread.submit(graphed_step, model, read_tokens).result() is not graphed_step(
            model, read_tokens
        )

    step = GraphedStep(read_tokens, Recorder())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_state, "compiled_step", lambda *_: step)
        for n in (1, 2, 4, 8, 16, 32):
            written(model, [[1, 2]] * n, compiled=True, n_new=2)
    assert len(step.recorded) == graphs.MAX_GRAPHS


@pytest.mark.parametrize(
    ("n", "most", "places"),
    [(1, 1024, 256), (256, 1024, 256), (257, 1024, 512), (9, 64, 64), (700, 1000, 1000)],
)
def test_places(n: int, most: int, places: int) -> None:
    assert places_for(n, most) == places
