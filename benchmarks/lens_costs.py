"""What looking inside costs, and what it costs that one could look.

    python benchmarks/lens_costs.py [--rounds 5] [--json FILE] [--only NAME]

Nobody looking: how often a forward pass comes by a hook point or asks whether anybody looks there, times what one such
call takes, beside a training step (forward and backward, uncompiled) and beside one new token with a cache.

Looking: seconds of the residual and the source ledger of one position and of the logit lens of all, of a text of 256
tokens, and the largest memory of a process that does nothing else. Weights are drawn from a seed: costs do not depend
on what they are. Each is measured in a process of its own, the first call not counted. Prints one JSON object.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
import timeit
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import clearformer as cf
from clearformer.hooks import HookPoint

N_TOKENS, VOCABULARY = 256, 4096
MODELS = {
    "quick": {"preset": "quick", "vocab_size": VOCABULARY},
    "10M": {
        "preset": "quick",
        "vocab_size": VOCABULARY,
        "d_model": 384,
        "n_layers": 5,
        "max_seq_len": N_TOKENS,
    },
    "124M": {"preset": "gpt2", "vocab_size": 50257},
}
LOOKS: dict[str, Callable[[Any, list[int]], Any]] = {
    "ledger": lambda model, tokens: cf.lens.ledger(model, tokens),
    "sources": lambda model, tokens: cf.lens.sources(model, tokens),
    "logit_lens": lambda model, tokens: cf.lens.logit_lens(model, tokens),
}


def built(name: str) -> Any:
    """One of MODELS."""
    settings = dict(MODELS[name])
    torch.manual_seed(1)
    config = cf.preset(str(settings.pop("preset"))).model.model_dump()
    return cf.build(cf.ModelConfig.model_validate({**config, **settings})).eval()


def text_of(model: Any) -> list[int]:
    n = min(N_TOKENS, model.config.max_seq_len)
    return torch.randint(model.config.vocab_size, (n,), generator=torch.Generator().manual_seed(1)).tolist()


def median_seconds(action: Callable[[], Any], rounds: int) -> float:
    """Of some rounds after one that is not counted."""
    action()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def looking(name: str, look: str, rounds: int) -> dict[str, float]:
    """Seconds of one way to look at a model, and the process's largest memory."""
    model = built(name)
    tokens = text_of(model)
    seconds = median_seconds(lambda: LOOKS[look](model, tokens), rounds)
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"parameters": n_parameters, "seconds": round(seconds, 4), "peak_gigabytes": round(gigabytes, 2)}


def nobody_looking(rounds: int) -> dict[str, dict[str, float]]:
    """The share of hook points in a step and in a new token."""
    model = built("quick")
    tokens = torch.tensor([text_of(model)[:128]]).repeat(16, 1)

    def step() -> None:
        model(tokens).float().logsumexp(-1).mean().backward()

    cache = model.new_cache()
    with torch.no_grad():
        model(tokens[:1, :64], cache=cache)

    @torch.no_grad()
    def new_token() -> None:
        cache.length = 64  # the same place again
        model(tokens[:1, 64:65], cache=cache)

    return {
        name: share_of_hooks(action, rounds) for name, action in (("step", step), ("new_token", new_token))
    }


def share_of_hooks(action: Callable[[], None], rounds: int) -> dict[str, float]:
    """Calls of hook points in an action, and what they take of its time."""
    calls = calls_of_hooks(action)
    point, vector = HookPoint(), torch.zeros(1)
    of_call = min(timeit.repeat(lambda: point(vector), number=100_000)) / 100_000
    of_question = min(timeit.repeat(lambda: point.has_hooks, number=100_000)) / 100_000
    hooks = calls["calls"] * of_call + calls["questions"] * of_question
    seconds = median_seconds(action, 4 * rounds)
    return {
        **calls,
        "hook_microseconds": round(1e6 * hooks, 2),
        "seconds": round(seconds, 6),
        "share": hooks / seconds,
    }


def calls_of_hooks(action: Callable[[], None]) -> Counter[str]:
    """How often an action comes by a hook point, and asks whether anybody looks there."""
    calls: Counter[str] = Counter()
    come_by, asks = HookPoint.__call__, HookPoint.has_hooks

    def counted(point: HookPoint, activation: torch.Tensor) -> torch.Tensor:
        calls["calls"] += 1
        return come_by(point, activation)

    def counted_question(point: HookPoint) -> bool:
        calls["questions"] += 1
        return asks.fget(point)  # type: ignore[misc]

    HookPoint.__call__, HookPoint.has_hooks = counted, property(counted_question)  # type: ignore[method-assign]
    try:
        action()
    finally:
        HookPoint.__call__, HookPoint.has_hooks = come_by, asks  # type: ignore[method-assign]
    return calls


def in_a_process(arguments: list[str]) -> Any:
    """This script's result on some arguments."""
    command = [sys.executable, __file__, *arguments]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", metavar="nobody|MODEL/LOOK", help="one measurement, in this process")
    given = parser.parse_args()
    if given.only == "nobody":
        found: Any = nobody_looking(given.rounds)
    elif given.only:
        model, _, look = given.only.partition("/")
        found = looking(model, look, given.rounds)
    else:
        names = ["nobody", *(f"{model}/{look}" for model in ("10M", "124M") for look in LOOKS)]
        rounds = str(given.rounds)
        found = {name: in_a_process(["--only", name, "--rounds", rounds]) for name in names}
        found["torch"], found["threads"] = torch.__version__, torch.get_num_threads()
    print(json.dumps(found, indent=1))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
