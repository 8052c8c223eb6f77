"""Speed of greedy generation in one stream or several, compared with transformers and llama.cpp."""

import copy
import itertools
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clearformer.bench.machine import Limits
from clearformer.bench.peers import absence, asked_for, in_transformers, with_version
from clearformer.bench.rounds import OURS, Absent, Comparison, Contender, Figures, interleave
from clearformer.decoding import Sampling, collect, generate_tokens, random_stream
from clearformer.device import synchronize
from clearformer.errors import ConfigError, UserError
from clearformer.interop.gguf import write_gguf
from clearformer.interop.mapping.matching import match_architecture
from clearformer.model import Decoder
from clearformer.threads import most_threads
from clearformer.training.store.state import weights_of

PEERS = ("transformers", "llama_cpp")
GREEDY = Sampling(temperature=0)
PROMPT_TOKENS = 8


def bench_generation(
    model: Decoder,
    against: list[str] | None,
    rounds: int,
    n_new: int,
    streams: list[int],
    dtype: str,
    limits: Limits,
    on_figure: Callable[[str, float], None] = lambda *_: None,
    compiled: bool = False,
) -> list[Comparison]:
    """Compare the tokens per second of greedy generation from random prompts, for each number of streams.

    Args:
        model: The model, on its device.
        against: Peers, as `asked_for` takes them.
        rounds: How often each side is measured.
        n_new: Tokens to add to each prompt.
        streams: Numbers of prompts to continue at once.
        dtype: The type of weights and products on both sides, float32 or bfloat16.
        limits: The machine's limits, to relate the figures to.
        on_figure: Called with each name and figure as it is measured.
        compiled: Whether to compile our step; the uncompiled step is then measured too.

    Raises:
        UserError: the prompt and the new tokens are longer than the model's positions.
    """
    most = model.config.max_seq_len - PROMPT_TOKENS
    if n_new > most:
        way_out = f"give at most {most}" if most > 0 else "choose a model with more (model.max_seq_len)"
        raise UserError(
            f"--tokens {n_new}: with a prompt of {PROMPT_TOKENS} this exceeds the model's "
            f"{model.config.max_seq_len} positions; {way_out}"
        )
    asked = asked_for(against, PEERS)
    missing = [found for name, folder in asked.items() if (found := absence(name, folder))]
    present = set(asked) - {absent.name for absent in missing}
    writers: list[_Writer] = [_Ours(model, n_new, dtype, compiled)]
    if "transformers" in present:
        writers.append(_Transformers(model, n_new, dtype))
    if compiled:
        writers.append(_Ours(model, n_new, dtype, compiled=False))
    with tempfile.TemporaryDirectory() as folder:
        if "llama_cpp" in present:
            try:
                writers.append(_LlamaCpp(model, n_new, dtype, Path(folder)))
            except UserError as error:
                missing.append(Absent("llama_cpp", str(error)))
        return [_compare(writers, missing, n, rounds, limits, on_figure) for n in streams]


def _compare(
    writers: list["_Writer"],
    missing: list[Absent],
    n_streams: int,
    rounds: int,
    limits: Limits,
    on_figure: Callable[[str, float], None],
) -> Comparison:
    ours = writers[0]
    if n_streams > 1 and any(writer.single for writer in writers):
        writers = [writer for writer in writers if not writer.single]
        missing = [*missing, Absent("llama_cpp", "its Python interface generates one stream at a time")]
    prompts = random_prompts(ours.model.config.vocab_size or 1, n_streams)
    compiling = _seconds_of_compiling(ours, prompts)
    sides = [Contender(w.name, lambda w=w: w.tokens_per_second(prompts), w.note) for w in writers]
    figures = interleave(sides, rounds, on_figure)
    facts = {"dtype": ours.dtype, "n_new": ours.n_new, "streams": n_streams}
    facts |= compiling | _bandwidth(ours, figures[0], n_streams, limits)
    theirs = [writer for writer in writers if not isinstance(writer, _Ours) and not writer.note]
    if theirs:
        facts["same_tokens"] = _all_agree(ours.write(prompts), {w.name: w.write(prompts) for w in theirs})
    streams = "one stream" if n_streams == 1 else f"{n_streams} streams"
    return Comparison(f"greedy generation, {streams}", "tokens/s", True, figures, missing, facts)


def _seconds_of_compiling(ours: "_Writer", prompts: list[list[int]]) -> dict[str, Any]:
    """Return the seconds by which the first generation takes longer than the next."""
    if not ours.compiled:
        return {}
    first, next_one = (len(prompts) * ours.n_new / ours.tokens_per_second(prompts) for _ in range(2))
    return {"seconds_of_compiling": round(first - next_one, 1)}


def random_prompts(vocab_size: int, n: int) -> list[list[int]]:
    """Return prompts of random tokens, all of one length."""
    return np.random.default_rng(0).integers(0, vocab_size, (n, PROMPT_TOKENS)).tolist()


def _bandwidth(ours: "_Writer", figures: Figures, n_streams: int, limits: Limits) -> dict[str, Any]:
    """Return the bytes of weights read per second: each step of a batch reads once what `bytes_read` counts."""
    read = bytes_read(ours.model) * figures.median / n_streams
    return {"weights_read_per_second": round(read), "of_measured_read_rate": round(read / limits.read, 4)}


def bytes_read(model: Decoder) -> int:
    """Return the bytes of a model's weights, without embeddings that are not the head too: a step reads few rows."""
    looked_up = model.embed.weight if model.head is not None else None
    return sum(p.numel() * p.element_size() for p in model.parameters() if p is not looked_up)


def _all_agree(ours: list[list[int]], others: dict[str, list[list[int]]]) -> str:
    found = {name: _agreement(ours, theirs) for name, theirs in others.items()}
    if set(found.values()) == {"yes"}:
        return "yes"
    return "; ".join(f"{name}: {how_far}" for name, how_far in found.items())


def _agreement(ours: list[list[int]], theirs: list[list[int]]) -> str:
    """Return whether the tokens of two sides agree, or where they first differ."""
    for row, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        for i, (x, y) in enumerate(itertools.zip_longest(a, b)):
            if x != y:
                return f"no: text {row + 1} differs from new token {i + 1} on"
    return "yes"


class _Writer(ABC):
    """A side of the comparison: a model that continues texts greedily."""

    name: str
    note = ""
    compiled = False
    single = False  # whether it continues one text at a time

    def __init__(self, model: Decoder, n_new: int, dtype: str) -> None:
        self.model, self.n_new, self.dtype = model, n_new, dtype
        self.device = model.embed.weight.device

    @abstractmethod
    def write(self, prompts: list[list[int]]) -> list[list[int]]:
        """Return the new tokens of each text."""

    def tokens_per_second(self, prompts: list[list[int]]) -> float:
        start = time.perf_counter()
        self.write(prompts)
        synchronize(self.device)
        return len(prompts) * self.n_new / (time.perf_counter() - start)


class _Ours(_Writer):
    def __init__(self, model: Decoder, n_new: int, dtype: str, compiled: bool) -> None:
        super().__init__(copy.deepcopy(model).to(getattr(torch, dtype)), n_new, dtype)
        self.compiled = compiled
        self.name = f"{OURS}, compiled" if compiled else OURS

    def write(self, prompts: list[list[int]]) -> list[list[int]]:
        streams = [random_stream(0, i) for i in range(len(prompts))]
        new_tokens = generate_tokens(self.model, prompts, self.n_new, GREEDY, streams, compiled=self.compiled)
        found = collect(new_tokens, len(prompts))
        return [completion.tokens for completion in found]


class _Transformers(_Writer):
    def __init__(self, model: Decoder, n_new: int, dtype: str) -> None:
        super().__init__(model, n_new, dtype)
        self.name = with_version("transformers")
        theirs, self.note = in_transformers(model)
        self.theirs: Any = theirs.to(self.device, getattr(torch, dtype)).eval()

    def write(self, prompts: list[list[int]]) -> list[list[int]]:
        tokens = torch.tensor(prompts, device=self.device)
        with torch.inference_mode():
            found = self.theirs.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=self.n_new,
                min_new_tokens=self.n_new,
                do_sample=False,
                pad_token_id=0,
            )
        return found[:, PROMPT_TOKENS:].tolist()


class _LlamaCpp(_Writer):
    """llama.cpp with the same weights, without a vocabulary; in float16 for bfloat16, which has no fast products there.

    Raises:
        UserError: the model is not on a CPU, has no GGUF form, or the gguf package is not installed.
    """

    single = True

    def __init__(self, model: Decoder, n_new: int, dtype: str, folder: Path) -> None:
        super().__init__(model, n_new, dtype)
        stored = "float16" if dtype == "bfloat16" else dtype
        self.name = f"{with_version('llama_cpp')}, {stored}"
        if self.device.type != "cpu":
            raise ConfigError("measured only on a CPU")
        file = folder / "model.gguf"
        write_gguf(file, match_architecture(model.config), weights_of(model), stored, "bench")
        import llama_cpp  # type: ignore[import-not-found]

        n_threads = min(torch.get_num_threads(), most_threads())
        threads = {"n_threads": n_threads, "n_threads_batch": n_threads}
        self.theirs: Any = llama_cpp.Llama(
            str(file), n_ctx=model.config.max_seq_len, verbose=False, **threads
        )

    def write(self, prompts: list[list[int]]) -> list[list[int]]:
        return [self._continued(prompt) for prompt in prompts]

    def _continued(self, prompt: list[int]) -> list[int]:
        self.theirs.reset()
        new = self.theirs.generate(prompt, temp=0.0, repeat_penalty=1.0, reset=False)
        return list(itertools.islice(new, self.n_new))
