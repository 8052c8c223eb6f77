"""Many texts at once beside one, compiled: with weights laid out beforehand for oneDNN, and without.

    python benchmarks/many_streams.py [--models quick,minigpt] [--streams 16] [--tokens 100] [--rounds 7]
                                      [--dtype float32|bfloat16] [--json FILE]

Models of these presets with random weights continue texts of 8 tokens, greedy, in the type given. In each round every
side takes its turn, in an order drawn anew:

    one         a single text
    packed      so many texts at once, their products by `packed_linear`
    plain       the same with `packed_weights` holding nothing, so that `packed_linear` is torch's product. In bfloat16
                nothing is packed, so that both sides are the same there: how far they differ is noise

Compiling comes before, and takes some minutes the first time. Prints the medians and the highest of tokens a second,
and the medians of the rounds' ratios. OMP_NUM_THREADS is handed on.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import clearformer as cf
from clearformer.decoding import Sampling, collect, decode_state, generate_tokens, random_stream
from clearformer.model.fast import PackedWeights

PROMPT, VOCABULARY = 8, 103


def model_of(preset: str, dtype: torch.dtype) -> Any:
    """The preset's model with random weights."""
    torch.manual_seed(1)
    config = cf.preset(preset).model
    return cf.build(config.replace(vocab_size=config.vocab_size or VOCABULARY)).to(dtype).eval()


def tokens_per_second(model: Any, n_streams: int, n_new: int, packed: bool) -> float:
    """Of so many texts, continued at once."""
    prompts = torch.randint(VOCABULARY, (n_streams, PROMPT)).tolist()
    streams = [random_stream(0, row) for row in range(n_streams)]
    hold = decode_state.packed_weights if packed else lambda *_: PackedWeights()
    with patch.object(decode_state, "packed_weights", hold):
        start = time.perf_counter()
        collect(
            generate_tokens(model, prompts, n_new, Sampling(temperature=0), streams, compiled=True), n_streams
        )
        return n_streams * n_new / (time.perf_counter() - start)


def measured(preset: str, dtype: torch.dtype, n_streams: int, n_new: int, n_rounds: int) -> dict[str, Any]:
    """All sides of one model, in turn."""
    model = model_of(preset, dtype)
    sides = {"one": (1, True), "packed": (n_streams, True), "plain": (n_streams, False)}
    for n, packed in sides.values():  # the second text is no longer compiled for
        for _ in range(2):
            tokens_per_second(model, n, n_new, packed)
    rounds: list[dict[str, float]] = []
    for _ in range(n_rounds):
        order = random.sample(list(sides), len(sides))
        rounds.append(
            {name: tokens_per_second(model, sides[name][0], n_new, sides[name][1]) for name in order}
        )
    pairs = (("packed", "plain"), ("packed", "one"), ("plain", "one"))
    return {
        **{f"{name}: tokens/s": round(statistics.median(each[name] for each in rounds)) for name in sides},
        **{f"{name}: highest": round(max(each[name] for each in rounds)) for name in sides},
        **{f"{a} / {b}": round(statistics.median(each[a] / each[b] for each in rounds), 3) for a, b in pairs},
        "rounds": rounds,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default="quick,minigpt")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "streams": given.streams,
        "dtype": given.dtype,
    }
    for preset in given.models.split(","):
        found[preset] = measured(
            preset, getattr(torch, given.dtype), given.streams, given.tokens, given.rounds
        )
        print(
            json.dumps(
                {key: value for key, value in found[preset].items() if key != "rounds"} | {"model": preset}
            ),
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
