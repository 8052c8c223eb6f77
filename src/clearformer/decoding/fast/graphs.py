"""The step for one new token as a CUDA graph, in which one call starts hundreds of kernels.

A graph uses the same memory at every replay, but a cache grows. So the graph's cache always has C + 1 places: the
newest token is written to the last of them and then moved to its own.

    place    0 ... n - 1        n ... C - 1        C
             earlier tokens     not yet filled     the newest token, which is moved to n

The model sees unfilled places as padding: attention does not read them, and they do not count as positions.

Shapes: B batch, R rows of the graph (the first B are in use), T positions, K key/value heads, Dh head size.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
from jaxtyping import Int
from torch import Tensor

from clearformer.errors import first_line
from clearformer.model import Cache, Decoder
from clearformer.model.cache import KeyValueCache

logger = logging.getLogger(__name__)

LEAST_PLACES = 256
"""The fewest places of a graph's cache; longer sequences double them as often as needed."""

MAX_GRAPHS = 4
"""The most graphs kept for one model, each of another size."""

ResultT = TypeVar("ResultT")

Record = Callable[[Callable[[], ResultT]], tuple[Callable[[], object], ResultT]]
"""Records a function; returns a function that replays it, and its output, which every replay overwrites."""


def record_graph(run: Callable[[], ResultT]) -> tuple[Callable[[], object], ResultT]:
    """Record what `run` does on the device as a CUDA graph; returns its replay and output."""
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):  # warm-up: the first call's set-up is not part of the graph
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # a checkpoint may be written meanwhile
        output = run()
    return graph.replay, output


class GraphedStep:
    """A step for one new token of each row, recorded once per size and replayed afterwards."""

    def __init__(self, step: Callable[..., Any], record: Record[Any] = record_graph) -> None:
        """Wrap `step`, which takes the arguments of `read_tokens` and runs unrecorded where recording is impossible."""
        self.step = step
        self.record: Record[Any] | None = record  # None once it has failed
        self.recorded: list[_Recorded] = []
        self.weights: tuple[int, ...] = ()

    def __call__(
        self,
        model: Decoder,
        logits_function: Callable[[Tensor], Any],
        tokens: Int[Tensor, "B 1"],
        padding: Tensor | None,
        cache: Cache | None,
    ) -> Any:
        if self.record is None or cache is None or padding is not None or not can_be_recorded(cache, tokens):
            return self.step(model, logits_function, tokens, padding, cache)
        recorded = next((each for each in self.recorded if each.holds(cache)), None)
        if recorded is None or cache.length >= recorded.n_places:
            recorded = self._with_room(self.record, model, logits_function, cache, len(tokens))
        if recorded is None:
            return self.step(model, logits_function, tokens, padding, cache)
        return recorded.read(tokens, cache)

    def _with_room(
        self,
        record: Record[Any],
        model: Decoder,
        logits_function: Callable[[Tensor], Any],
        cache: Cache,
        n_texts: int,
    ) -> "_Recorded | None":
        """Return a graph with room for one more token, which now holds the cache; None where recording fails."""
        self._forget_other_weights(model)
        n_places = places_for(cache.length + 1, model.config.max_seq_len)
        for recorded in self.recorded:
            if recorded.fits(logits_function, n_texts, n_places):
                recorded.take(cache)
                return recorded
        recorded = _Recorded(logits_function, cache, n_texts, n_places)
        recorded.take(cache)
        try:
            recorded.begin(model, self.step, record)
        except RuntimeError as error:
            reason = first_line(error)
            logger.warning("no CUDA graph could be recorded, continuing without: %s", reason)
            recorded.give_back()
            self.record = None
            return None
        self.recorded = [*self.recorded, recorded][-MAX_GRAPHS:]
        return recorded

    def _forget_other_weights(self, model: Decoder) -> None:
        """Drop all graphs if the weights have moved: a graph reads the addresses of its recording."""
        weights = tuple(tensor.data_ptr() for tensor in chain(model.parameters(), model.buffers()))
        if weights != self.weights:
            self.recorded, self.weights = [], weights


class _OfThread(threading.local):
    """The steps of the models that a thread uses: two threads cannot share a graph's memory."""

    def __init__(self) -> None:
        self.steps: WeakKeyDictionary[Decoder, GraphedStep] = WeakKeyDictionary()


_of_thread = _OfThread()


def graphed_step(model: Decoder, step: Callable[..., Any]) -> GraphedStep:
    """Return the model's own step in this thread; its graphs are freed with either, or when it takes another step.

    It does so if its weights have got another type or device: a step is compiled for one of each.
    """
    own = _of_thread.steps.get(model)
    if own is None or own.step is not step:
        own = _of_thread.steps[model] = GraphedStep(step)
    return own


def can_be_recorded(cache: Cache, tokens: Tensor) -> bool:
    """Whether the cache holds keys and values alone and autocast is off.

    Autocast keeps its cast weights only while it is on, and a graph may outlast it.
    """
    caches = (layer.attn for layer in cache.layers)
    keys_alone = all(isinstance(each, KeyValueCache) and each.buffers is not None for each in caches)
    return keys_alone and not torch.is_autocast_enabled(tokens.device.type)


def places_for(n: int, max_seq_len: int) -> int:
    """Return the number of places of a graph's cache for n tokens."""
    n_places = LEAST_PLACES
    while n_places < n:
        n_places *= 2
    return min(n_places, max_seq_len)


class _Recorded:
    """A recorded step of one size: its memory and its replay.

    Attributes:
        n_places: C + 1.
        n_rows: R; it also serves fewer rows, but more than half as many.
        tokens: The newest token of each row [R 1].
        place: n [1].
        real: True where there is a token [R C+1].
        buffers: Keys and values of each layer [R K C+1 Dh].
    """

    def __init__(
        self, logits_function: Callable[[Tensor], Any], cache: Cache, n_rows: int, n_places: int
    ) -> None:
        self.logits_function, self.n_rows, self.n_places = logits_function, n_rows, n_places
        self.buffers = [
            tuple(each.new_zeros(n_rows, each.shape[1], n_places, each.shape[3]) for each in buffers)
            for buffers in buffers_of(cache)
        ]
        any_buffer = self.buffers[0][0]
        self.tokens = any_buffer.new_zeros(n_rows, 1, dtype=torch.long)
        self.place = any_buffer.new_zeros(1, dtype=torch.long)
        self.real = any_buffer.new_zeros(n_rows, n_places, dtype=torch.bool)
        self.lent: list[tuple[Tensor, Tensor]] = []
        self.holder: Callable[[], Cache | None] = lambda: None

    def fits(self, logits_function: Callable[[Tensor], Any], n_texts: int, n_places: int) -> bool:
        """Whether the graph serves this function and size, with fewer than half of its rows idle."""
        return (
            self.logits_function is logits_function
            and self.n_places == n_places
            and self.n_rows // 2 < n_texts <= self.n_rows
        )

    # --- the cache in this memory ---------------------------------------------------------------------------

    def holds(self, cache: Cache) -> bool:
        """Whether this memory holds the cache, with its rows unchanged."""
        if self.holder() is not cache:
            return False
        return all(
            ours is theirs
            for lent, own in zip(self.lent, buffers_of(cache), strict=True)
            for ours, theirs in zip(lent, own, strict=True)
        )

    def take(self, cache: Cache) -> None:
        """Move a cache into this memory."""
        theirs, n = buffers_of(cache), cache.length
        if self.holder() is not cache:
            self.give_back()
        n_texts = len(theirs[0][0])
        real = True if cache.padding is None else cache.padding.clone()  # may be in this memory
        self.real.zero_()
        self.real[:n_texts, :n] = real
        for own, others in zip(self.buffers, theirs, strict=True):
            for to, of in zip(own, others, strict=True):
                to[:n_texts, :, :n] = of[:, :, :n]
        self.lent = [(keys[:n_texts], values[:n_texts]) for keys, values in self.buffers]
        self.holder = ref(cache)
        self._lend(cache, self.lent)

    def give_back(self) -> None:
        """Move the cache, if it is still in use, out of this memory into its own."""
        cache = self.holder()
        if cache is not None and self.holds(cache):
            self._lend(cache, [(keys.clone(), values.clone()) for keys, values in self.lent])
            cache.padding = None if cache.padding is None else cache.padding.clone()
        self.holder = lambda: None

    def _lend(self, cache: Cache, buffers: Sequence[tuple[Tensor, Tensor]]) -> None:
        for layer, of_layer in zip(cache.layers, buffers, strict=True):
            assert isinstance(layer.attn, KeyValueCache)
            layer.attn.buffers = of_layer

    # --- the step -------------------------------------------------------------------------------------------

    def begin(self, model: Decoder, step: Callable[..., Any], record: Record[Any]) -> None:
        """Record the step; the first replay overwrites the keys and values that recording writes."""
        last = self.n_places - 1

        def run() -> Any:
            cache = model.new_cache()
            self._lend(cache, [(keys, values) for keys, values in self.buffers])
            cache.extend(last, self.real[:, :last])
            output = step(model, self.logits_function, self.tokens, None, cache)
            for buffer in chain.from_iterable(self.buffers):
                buffer.index_copy_(2, self.place, buffer[:, :, last:].clone())  # which must not overlap
            self.real.index_fill_(1, self.place, True)
            return output

        holder = self.holder()
        self.place.fill_(0 if holder is None else holder.length)
        self.replay, self.output = record(run)
        self.real.index_fill_(1, self.place, False)

    def read(self, tokens: Int[Tensor, "B 1"], cache: Cache) -> Any:
        """Replay the step for the newest tokens, which adds them to the cache, and return a copy of its output."""
        n_texts = len(tokens)
        self.tokens[:n_texts] = tokens
        self.place.fill_(cache.length)
        self.replay()
        cache.extend(1, None if cache.padding is None else self.real[:n_texts, : cache.length + 1])
        return copied(self.output, n_texts)


def buffers_of(cache: Cache) -> list[tuple[Tensor, Tensor]]:
    """Return the keys and values of each layer."""
    caches = (layer.attn for layer in cache.layers)
    return [each.buffers for each in caches if isinstance(each, KeyValueCache) and each.buffers is not None]


def copied(output: Any, n_rows: int) -> Any:
    """Copy the first rows of a tensor or of a tuple of tensors."""
    if isinstance(output, Tensor):
        return output[:n_rows].clone()
    return type(output)(*(copied(field, n_rows) for field in output))
