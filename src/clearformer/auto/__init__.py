"""The preset `auto`: rules that choose a good model for the data, time and machine at hand, and give their reasons.

    data, seconds, machine -> Budget -> rules for texts, pairs or labelled texts -> a run, and its reasons

The rules are pure functions of the budget, with one file for each form of data.
"""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from clearformer.auto import labelled, pairs, text
from clearformer.auto.budget import Budget, Recommendation
from clearformer.auto.measuring import MEASURED_BY, measure
from clearformer.data import form_of
from clearformer.errors import count
from clearformer.training.config import RunConfig
from clearformer.training.objectives import TranslationObjective
from clearformer.training.processes.distributed import Place

__all__ = ["MEASURED_BY", "RULES", "Budget", "Recommendation", "Rules", "auto", "auto_for", "measure"]

logger = logging.getLogger(__name__)


class Rules(NamedTuple):
    """The rules for one form of data.

    Attributes:
        choose: Chooses the run for a budget; a pure function of it.
        typical: A typical budget; settings are laid over its run before anything is measured.
        most_tokens: The longest context that the rules choose; infinite for a running text, which has no length.
    """

    choose: Callable[[Budget], Recommendation]
    typical: Budget
    most_tokens: float = math.inf


RULES = {
    "text": Rules(text.choose, text.TYPICAL),
    "pairs": Rules(pairs.choose, pairs.TYPICAL, pairs.LONGEST),
    "labelled": Rules(labelled.choose, labelled.TYPICAL, labelled.LONGEST),
}


def auto(form: str = "text") -> RunConfig:
    """A model for a time limit (train.max_wall_seconds), chosen by measuring the data and the machine."""
    rules = RULES[form]
    return rules.choose(rules.typical).run


def auto_for(wanted: RunConfig, said: Mapping[str, Any] | None = None) -> RunConfig:
    """Choose the run for a configuration's data, time, device and processes, and log the reasons.

    Args:
        wanted: The configuration.
        said: The settings that the user gave, by their keys; those of the tokenizer and the model's size request one.

    Raises:
        DataError: there are no such data.
    """
    rules, place = RULES[form_of(wanted.data.kind)], Place.of_this_process()
    choice = rules.choose(measure(wanted, said, rules.most_tokens, place))
    for reason in choice.reasons:
        logger.info("auto: %s", reason)
    run = for_processes(choice.run, place.count)
    if run != choice.run:
        rows, parts = run.train.batch_size, run.train.grad_accum_steps
        logger.info(
            "auto: for %d processes: %d rows a step, %s each", place.count, rows, count(parts, "part")
        )
    return run


def for_processes(run: RunConfig, n_processes: int) -> RunConfig:
    """Return a run for so many processes: they share the parts of a batch, whose rows become a multiple of both.

    More rows make fewer steps, where the number of steps is limited.
    """
    if n_processes == 1:
        return run
    train = run.train
    parts = math.ceil(train.grad_accum_steps / n_processes)
    if isinstance(train.objective, TranslationObjective):  # its batches are sized in tokens
        return run.replace(train=train.replace(grad_accum_steps=parts))
    rows = math.ceil(train.batch_size / (n_processes * parts)) * n_processes * parts
    changed: dict[str, Any] = {"batch_size": rows, "grad_accum_steps": parts}
    if train.max_steps is not None:
        steps = max(1, round(train.max_steps * train.batch_size / rows))
        changed |= {"max_steps": steps, "warmup_steps": min(train.warmup_steps, steps // 2)}
    return run.replace(train=train.replace(**changed))
