"""Generation with int8 weights beside float32 and bfloat16: tokens a second, and bytes.

    python benchmarks/int8.py [--model minigpt] [--streams 1] [--tokens 100] [--rounds 7] [--no-compile] [--json FILE]

A model of this preset with random weights continues texts of 8 tokens, greedy; int8 is with float32 around it. In each
round every type takes its turn, in an order drawn anew. Compiling comes before, and takes minutes the first time.
Prints the medians and the highest of tokens a second, the medians of the rounds' ratios to float32, and megabytes of
weights. OMP_NUM_THREADS is handed on.
"""

import argparse
import copy
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import clearformer as cf
from clearformer.decoding import Sampling, collect, generate_tokens, random_stream
from clearformer.decoding.fast.int8 import n_bytes, with_int8_weights

PROMPT, VOCABULARY = 8, 103


def sides_of(preset: str) -> dict[str, Any]:
    """The preset's model with random weights, by type."""
    torch.manual_seed(1)
    config = cf.preset(preset).model
    model: Any = cf.build(config.replace(vocab_size=config.vocab_size or VOCABULARY)).eval()
    return {
        "float32": model,
        "bfloat16": copy.deepcopy(model).bfloat16(),
        "int8": with_int8_weights(model),
    }


def tokens_per_second(model: Any, n_streams: int, n_new: int, compiled: bool) -> float:
    """Of so many texts, continued at once."""
    prompts = torch.randint(VOCABULARY, (n_streams, PROMPT)).tolist()
    streams = [random_stream(0, row) for row in range(n_streams)]
    greedy = Sampling(temperature=0)
    start = time.perf_counter()
    collect(generate_tokens(model, prompts, n_new, greedy, streams, compiled=compiled), n_streams)
    return n_streams * n_new / (time.perf_counter() - start)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="minigpt")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sides = sides_of(given.model)

    def rate(name: str) -> float:
        return tokens_per_second(sides[name], given.streams, given.tokens, not given.no_compile)

    for name in [*sides, *sides]:  # the second text is no longer compiled for
        rate(name)
    rounds = [{name: rate(name) for name in random.sample(list(sides), 3)} for _ in range(given.rounds)]
    found = {
        "model": given.model,
        "streams": given.streams,
        "compiled": not given.no_compile,
        "threads": torch.get_num_threads(),
        "megabytes": {name: round(n_bytes(model) / 1e6, 1) for name, model in sides.items()},
        "tokens_per_second": {name: round(statistics.median(r[name] for r in rounds), 1) for name in sides},
        "highest": {name: round(max(r[name] for r in rounds), 1) for name in sides},
        "times_float32": {
            name: round(statistics.median(r[name] / r["float32"] for r in rounds), 3) for name in sides
        },
    }
    print(json.dumps(found, indent=1))
    if given.json:
        given.json.write_text(json.dumps(found | {"rounds": rounds}) + "\n")


if __name__ == "__main__":
    main()
