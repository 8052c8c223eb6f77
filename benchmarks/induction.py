"""Find the induction heads of a model trained here, and measure what switching them off costs beside random heads.

    python benchmarks/induction.py [--seeds 1 2 3] [--json FILE] [--runs FOLDER]

The text is English (Python's documentation, in passages of 50 to 150 characters) and, between its passages, strings of
6 to 24 random characters, each said two to four times with nothing between them (Olsson et al. 2022). Two characters of
five are English, so that heads have other work than to repeat. The strings' lengths vary, so that no fixed distance
tells what comes next. The model is trained until it repeats, and then goes on with dropout: without it the model lets
single previous-token heads carry the repeats, and a random draw that hits one costs as much as the induction heads.
Both models are measured.

The heads are scored on 24 random characters said twice, in texts that the model has not seen; those that score above
0.3 for induction are the induction heads. They are switched off together, and then, for comparison, as many heads drawn
at random 50 times: of all that are no induction heads, and of those that are no previous-token heads either (score
above 0.3), since these are the first half of the same circuit. A head is switched off by 0 in place of its output, or
by its mean over the texts. The loss is that of the characters said the second time. Prints JSON.
"""

import argparse
import json
import os
import pydoc_data.topics
import random
import statistics
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import clearformer as cf
from clearformer.lens import Edit, Site
from clearformer.lens.heads.scores import repeat_losses, repeated

LEAST_SCORE, DRAWS = 0.3, 50
N_TOKENS, N_TEXTS = 24, 16
TEXT_LENGTH, ENGLISH = 6_000_000, 0.4
MODEL = {
    "d_model": 128,
    "n_layers": 8,
    "attention": {"kind": "multihead", "n_heads": 8},
    "position": {"kind": "rope"},
    "max_seq_len": 64,
}
TRAIN = {
    "batch_size": 32,
    "compile": True,
    "dtype": "bfloat16",
    "eval_every": 200,
    "checkpoint_every": 200,
    "keep_last": 9,
    "snapshot_megabytes": None,
}
FIRST = {"max_steps": 1800, "lr": 2e-3}
THEN = {"max_steps": 500, "lr": 1e-3, "warmup_steps": 20}
DROPOUT = 0.1


def training_text(seed: int) -> str:
    """Passages of English, and strings of random characters that are each said two to four times."""
    numbers = random.Random(seed)
    english = " ".join(pydoc_data.topics.topics.values())
    characters = sorted(set(english) - {"\n"})
    passages: list[str] = []
    length = n_english = 0
    while length < TEXT_LENGTH:
        if length and n_english < ENGLISH * length:
            n = numbers.randint(50, 150)
            start = numbers.randrange(len(english) - n)
            passages.append(english[start : start + n])
            n_english += n
        else:
            said = "".join(numbers.choices(characters, k=numbers.randint(6, 24)))
            passages.append(said * numbers.randint(2, 4))
        length += len(passages[-1])
    return "".join(passages)


def trained(folder: Path, seed: int) -> tuple[Any, Any]:
    """A run on such a text, kept in a folder, and the one that goes on from its weights with dropout."""
    text = folder / f"text-{seed}.txt"
    text.write_text(training_text(seed))
    os.environ["CLEARFORMER_RUNS"] = str(folder)
    common = {"config": "nanogpt-cpu", "seed": seed, "data": {"path": str(text)}, "tokenizer": "char"}
    first = cf.train(**common, model=MODEL, train=TRAIN | FIRST)
    then = TRAIN | THEN | {"pretrained": str(first.folder.path)}
    return first, cf.train(**common, model=MODEL | {"dropout": DROPOUT}, train=then)


class Ablations:
    """What switching heads off adds to the loss of characters said again."""

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
        """The edit that puts a head's mean in its place."""
        return cf.lens.mean(site, [self.seen])

    def by_chance(
        self, sites: list[Site], n: int, off: Callable[[Site], Edit], seed: int
    ) -> dict[str, float]:
        """What switching off `n` of some heads adds, over the draws."""
        draws = random.Random(seed)
        n = min(n, len(sites))
        added = [self.added(draws.sample(sites, n), off) for _ in range(DRAWS)]
        return {
            "heads": n,
            "of": len(sites),
            "mean": statistics.mean(added),
            "median": statistics.median(added),
            "least": min(added),
            "most": max(added),
        }


def measured(run: Any, seed: int) -> dict[str, Any]:
    """The heads of a run, and what switching them off costs."""
    scores = cf.lens.head_scores(run, n_tokens=N_TOKENS, n_texts=N_TEXTS)
    sites = {each.label: Site(each.name, each.head) for each in scores.heads}
    inducing = [each.label for each in scores.heads if each.induction > LEAST_SCORE]
    previous = [each.label for each in scores.heads if each.previous > LEAST_SCORE]
    others = [label for label in sites if label not in inducing]
    outside = [label for label in others if label not in previous]
    ablations = Ablations(run)
    found: dict[str, Any] = {
        "first_loss": scores.first_loss,
        "repeat_loss": scores.repeat_loss,
        "induction_heads": inducing,
        "previous_token_heads": previous,
        "heads": {
            label: {"previous": each.previous, "induction": each.induction}
            for label, each in zip(sites, scores.heads, strict=True)
        },
    }
    for name, off in (("zero", cf.lens.zero), ("mean", ablations.by_mean)):
        added = ablations.added([sites[label] for label in inducing], off)
        drawn = {
            which: ablations.by_chance([sites[label] for label in labels], len(inducing), off, seed)
            for which, labels in (("as_many_others", others), ("as_many_outside_the_circuit", outside))
        }
        found[name] = {
            "added_without_them": added,
            **drawn,
            "ratio": added / drawn["as_many_others"]["mean"],
        }
    found["added_by_each_at_zero"] = {
        label: ablations.added([site], cf.lens.zero) for label, site in sites.items()
    }
    return found


def main() -> None:
    """Train with each seed, find the heads, switch them off, and print what it cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--runs", type=Path, help="where the runs are kept; nowhere, where not given")
    given = parser.parse_args()
    found: list[dict[str, Any]] = []
    if given.runs:
        given.runs.mkdir(parents=True, exist_ok=True)
    with nullcontext(given.runs) if given.runs else tempfile.TemporaryDirectory() as folder:
        for seed in given.seeds:
            first, then = trained(Path(folder), seed)
            history = cf.lens.head_scores_by_checkpoint(first, n_tokens=N_TOKENS, n_texts=N_TEXTS)
            found.append(
                {
                    "seed": seed,
                    "formed": {each.step: round(each.repeat_loss, 3) for each in history.checkpoints},
                    "without_dropout": measured(first, seed),
                    "with_dropout": measured(then, seed),
                }
            )
            if given.json:
                given.json.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
