"""Induction heads in a model trained on repeated text, and what switching them off costs.

    python benchmarks/induction.py [--steps 1500] [--seed 1] [--mixed] [--json FILE]

The text is strings of 8 to 40 random letters, each said twice, with nothing between them (Olsson et al. 2022). With
--mixed every second passage is English (Python's documentation), so that the model's heads have other work as well.
The heads are scored on random tokens said twice, which the model has not seen. Those with an induction score above 0.3
are switched off, then, for comparison, as many of the others, drawn anew 50 times: of all others, and of those that are
no previous-token heads (score up to 0.3), for these are the first half of the same circuit. A head is switched off by
its mean over the texts (`mean`), or by zero. The loss is that of the tokens said again. Prints one JSON object.
"""

import argparse
import json
import os
import pydoc_data.topics
import random
import statistics
import string
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import clearformer as cf
from clearformer.lens import Edit, Site
from clearformer.lens.heads.scores import repeat_losses, repeated

LEAST_SCORE, DRAWS = 0.3, 50
N_TOKENS, N_TEXTS = 24, 32
N_STRINGS, PASSAGE = 20_000, 200
MODELS: dict[bool, dict[str, Any]] = {
    False: {"n_layers": 3, "d_model": 128, "ffn": "none"},
    True: {"n_layers": 4, "d_model": 128},
}
HEADS = {"n_heads": 8, "qk_norm": "none"}  # a norm of q and k would keep patterns from being sharp


def training_text(seed: int, mixed: bool) -> str:
    """Strings of random letters, each said twice; between them passages of English, where `mixed`."""
    numbers = random.Random(seed)
    english = " ".join(pydoc_data.topics.topics.values())
    passages = []
    for _ in range(N_STRINGS):
        passages.append("".join(numbers.choices(string.ascii_letters, k=numbers.randint(8, 40))) * 2)
        if mixed:
            start = numbers.randrange(len(english) - PASSAGE)
            passages.append(english[start : start + numbers.randint(PASSAGE // 4, PASSAGE)])
    return "".join(passages)


def trained(folder: Path, steps: int, seed: int, mixed: bool) -> Any:
    """A run on such a text."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "repeated.txt"
    text.write_text(training_text(seed, mixed))
    return cf.train(
        "quick",
        seed=seed,
        data={"kind": "text", "path": str(text)},
        tokenizer="char",
        model={**MODELS[mixed], "attention": HEADS, "max_seq_len": 128},
        train={
            "max_steps": steps,
            "max_seconds": None,
            "batch_size": 32,
            "compile": False,
            "eval_every": 500,
        },
    )


class Ablations:
    """What switching heads off adds to the loss of tokens said again."""

    def __init__(self, run: Any) -> None:
        self.model = run.model.eval()
        self.text = repeated(self.model, run.tokenizer, N_TOKENS, N_TEXTS, seed=0)
        with torch.no_grad():
            output, self.seen = self.model.run_with_cache(self.text.tokens)
        self.before = repeat_losses(self.model, output, self.text)[1]

    def added(self, sites: list[Site], off: Callable[[Site], Edit]) -> float:
        """Nats that it adds."""
        with torch.no_grad(), self.model.hooked(cf.lens.hooks_of(map(off, sites))):
            return repeat_losses(self.model, self.model(self.text.tokens), self.text)[1] - self.before

    def by_mean(self, site: Site) -> Edit:
        return cf.lens.mean(site, [self.seen])


def by_chance(
    ablations: Ablations, off: Callable[[Site], Edit], sites: list[Site], n: int, seed: int
) -> dict[str, float]:
    """What switching off `n` heads adds, over the draws."""
    draws = random.Random(seed)
    n = min(n, len(sites))
    costs = [ablations.added(draws.sample(sites, n), off) for _ in range(DRAWS)]
    return {
        "heads": n,
        "of": len(sites),
        "mean": statistics.mean(costs),
        "median": statistics.median(costs),
        "least": min(costs),
        "most": max(costs),
    }


def main() -> None:
    """Train, find the heads, switch them off, and print what it cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, help="where the run is kept; nowhere, where not given")
    parser.add_argument("--run", help="a run that was trained before")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        os.environ["CLEARFORMER_RUNS"] = str(folder)
        run = cf.load(given.run) if given.run else trained(folder, given.steps, given.seed, given.mixed)
        scores = cf.lens.head_scores(run, n_tokens=N_TOKENS, n_texts=N_TEXTS)
    sites = {each.label: Site(each.name, each.head) for each in scores.heads}
    inducing = [each.label for each in scores.heads if each.induction > LEAST_SCORE]
    of_circuit = [each.label for each in scores.heads if each.previous > LEAST_SCORE] + inducing
    others = [site for label, site in sites.items() if label not in inducing]
    outside = [site for label, site in sites.items() if label not in of_circuit]
    ablations = Ablations(run)
    found: dict[str, Any] = {
        "steps": run.step,
        "seed": given.seed,
        "mixed": given.mixed,
        "first_loss": scores.first_loss,
        "repeat_loss": scores.repeat_loss,
        "heads": {
            each.label: {"previous": each.previous, "induction": each.induction} for each in scores.heads
        },
        "induction_heads": inducing,
    }
    for name, off in (("mean", ablations.by_mean), ("zero", cf.lens.zero)):
        found[name] = {
            "added_without_them": ablations.added([sites[label] for label in inducing], off),
            "added_by_each": {label: ablations.added([site], off) for label, site in sites.items()},
            "as_many_others": by_chance(ablations, off, others, len(inducing), given.seed),
            "as_many_outside_the_circuit": by_chance(ablations, off, outside, len(inducing), given.seed),
        }
    print(json.dumps(found, indent=1))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
