"""Drafts looked up in the text: tokens a second with and without, where a text repeats itself and where not.

    python benchmarks/lookup.py RUN [--tokens 300] [--lookup 4,16] [--rounds 5] [--json FILE]

RUN is a decoder's run, which continues each of these prompts, one text at a time, uncompiled:

    likeliest   greedy, of a short prompt: what is likeliest repeats itself
    listed      greedy, of a prompt with a list in it
    cool        temperature 0.3, of the same
    drawn       temperature 0.8, of a short prompt: little is repeated, and drafts have only their costs

In each round every length of drafts takes its turn, in an order drawn anew; `same` says whether the texts were. Prints
the medians of tokens a second, and of the rounds' ratios to no drafts, by the clock and by the processor's time.
OMP_NUM_THREADS is handed on.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import clearformer as cf

LISTED = "\ndef first(x):\n    return x\n\ndef second(x):\n    return x\n\ndef third(x):\n"
PROMPTS: dict[str, tuple[str, float]] = {
    "likeliest": ("The ", 0.0),
    "listed": (LISTED, 0.0),
    "cool": (LISTED, 0.3),
    "drawn": ("The ", 0.8),
}


def write(run: cf.Run, name: str, n_tokens: int, lookup: int) -> tuple[dict[str, float], list[int]]:
    """Tokens a second of one text, and its tokens."""
    prompt, temperature = PROMPTS[name]
    clock, processor = time.perf_counter(), time.process_time()
    [sample] = run.generate(prompt, max_new_tokens=n_tokens, temperature=temperature, lookup=lookup, seed=1)
    n = len(sample.tokens)
    rates = {"clock": n / (time.perf_counter() - clock), "processor": n / (time.process_time() - processor)}
    return rates, sample.tokens


def one_round(run: cf.Run, n_tokens: int, lookups: list[int]) -> dict[str, dict[str, Any]]:
    """Every prompt once with each length of drafts."""
    found: dict[str, dict[str, Any]] = {}
    for name in PROMPTS:
        sides, texts = {}, {}
        for lookup in random.sample(lookups, len(lookups)):
            sides[lookup], texts[lookup] = write(run, name, n_tokens, lookup)
        same = all(text == texts[0] for text in texts.values())
        found[name] = {str(lookup): sides[lookup] for lookup in lookups} | {"same": same}
    return found


def summary(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Medians over the rounds."""
    told: dict[str, Any] = {}
    for name in PROMPTS:
        lookups = [key for key in rounds[0][name] if key != "same"]
        told[name] = {
            lookup: {
                "tokens_per_second": round(statistics.median(each[name][lookup]["clock"] for each in rounds)),
                **{
                    f"times, by {kind}": round(
                        statistics.median(
                            each[name][lookup][kind] / each[name]["0"][kind] for each in rounds
                        ),
                        3,
                    )
                    for kind in ("clock", "processor")
                },
            }
            for lookup in lookups
        } | {"same": all(each[name]["same"] for each in rounds)}
    return told


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--lookup", default="4,16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    run = cf.load(given.run, device="cpu")
    lookups = [0, *map(int, given.lookup.split(","))]
    one_round(run, given.tokens, lookups)
    rounds = [one_round(run, given.tokens, lookups) for _ in range(given.rounds)]
    report = {"run": run.name, "threads": torch.get_num_threads(), "medians": summary(rounds)}
    print(json.dumps(report, indent=1))
    if given.json:
        given.json.write_text(json.dumps(report | {"rounds": rounds}) + "\n")


if __name__ == "__main__":
    main()
