"""Induction heads in a model trained on repeated text, and what switching them off costs.

    python benchmarks/induction.py [--steps 1500] [--seed 1] [--json FILE]

The text is lines of 8 to 40 random letters, each line said twice; a model of three layers of attention alone learns it
(Olsson et al. 2022). Its heads are then scored on random tokens said twice, which it has not seen. Those with an
induction score above 0.3 are switched off (zero ablation in the weights), then, for comparison, as many of the others,
drawn anew 50 times. The loss is that of the tokens said again. Prints one JSON object.
"""

import argparse
import json
import os
import random
import statistics
import string
import tempfile
from pathlib import Path
from typing import Any

import clearformer as cf
from clearformer.lens import Site

LEAST_SCORE, DRAWS = 0.3, 50
N_TOKENS, N_TEXTS = 24, 32


def repeated_text(n_lines: int, seed: int) -> str:
    """Lines of random letters, each said twice."""
    letters, numbers = string.ascii_letters, random.Random(seed)
    lines = ("".join(numbers.choices(letters, k=numbers.randint(8, 40))) for _ in range(n_lines))
    return "".join(f"{line}{line}\n" for line in lines)


def trained(folder: Path, steps: int, seed: int) -> Any:
    """A run on such a text."""
    text = folder / "repeated.txt"
    text.write_text(repeated_text(20_000, seed))
    return cf.train(
        "quick",
        seed=seed,
        data={"kind": "text", "path": str(text)},
        tokenizer="char",
        model={
            "n_layers": 3,
            "d_model": 128,
            "attention": {"n_heads": 8, "qk_norm": "none"},  # which would keep patterns from being sharp
            "ffn": "none",
            "max_seq_len": 128,
        },
        train={
            "max_steps": steps,
            "max_seconds": None,
            "batch_size": 32,
            "compile": False,
            "eval_every": 500,
        },
    )


def repeat_loss(model: Any, tokenizer: Any) -> float:
    """Of random tokens said again, in nats."""
    return cf.lens.head_scores(model, tokenizer=tokenizer, n_tokens=N_TOKENS, n_texts=N_TEXTS).repeat_loss


def main() -> None:
    """Train, find the heads, switch them off, and print what it cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, help="where the run is kept; nowhere, where not given")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        os.environ["CLEARFORMER_RUNS"] = str(folder)
        run = trained(folder, given.steps, given.seed)
        scores = cf.lens.head_scores(run, n_tokens=N_TOKENS, n_texts=N_TEXTS)
    sites = {each.label: Site(each.name, each.head) for each in scores.heads}
    inducing = [each.label for each in scores.heads if each.induction > LEAST_SCORE]
    others = [label for label in sites if label not in inducing]
    draws = random.Random(given.seed)

    def added(labels: list[str]) -> float:
        """Nats that switching heads off adds."""
        copy = cf.lens.copy_without_heads(run.model, [sites[label] for label in labels])
        return repeat_loss(copy, run.tokenizer) - scores.repeat_loss

    n = min(len(inducing), len(others))
    by_chance = [added(draws.sample(others, n)) for _ in range(DRAWS)] if n else []
    found = {
        "steps": given.steps,
        "seed": given.seed,
        "first_loss": scores.first_loss,
        "repeat_loss": scores.repeat_loss,
        "heads": {
            each.label: {"previous": each.previous, "induction": each.induction} for each in scores.heads
        },
        "induction_heads": inducing,
        "added_without_them": added(inducing) if inducing else None,
        "added_without_as_many_others": {
            "mean": statistics.mean(by_chance),
            "median": statistics.median(by_chance),
            "least": min(by_chance),
            "most": max(by_chance),
        }
        if by_chance
        else None,
    }
    print(json.dumps(found, indent=1))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
