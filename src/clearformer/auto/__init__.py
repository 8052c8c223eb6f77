"""The preset `auto`: rules that choose a good model for the data, time and machine at hand, and give their reasons.

    data, seconds, machine -> Budget -> rules for texts, pairs or labelled texts -> a run, and its reasons

The rules are pure functions of the budget, with one file for each form of data.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from clearformer.auto import labelled, pairs, text
from clearformer.auto.budget import Budget, Recommendation, for_processes, measure
from clearformer.data import form_of
from clearformer.errors import count
from clearformer.training.config import RunConfig
from clearformer.training.processes.distributed import Place

__all__ = ["RULES", "Budget", "Recommendation", "Rules", "auto", "auto_for", "measure"]

logger = logging.getLogger(__name__)


class Rules(NamedTuple):
    """The rules for one form of data.

    Attributes:
        choose: Chooses the run for a budget; a pure function of it.
        typical: A typical budget; settings are laid over its run before anything is measured.
    """

    choose: Callable[[Budget], Recommendation]
    typical: Budget


RULES = {
    "text": Rules(text.choose, text.TYPICAL),
    "pairs": Rules(pairs.choose, pairs.TYPICAL),
    "labelled": Rules(labelled.choose, labelled.TYPICAL),
}


def auto(form: str = "text") -> RunConfig:
    """A model for a time limit (train.max_wall_seconds), chosen by measuring the data and the machine."""
    rules = RULES[form]
    return rules.choose(rules.typical).run


def auto_for(wanted: RunConfig) -> RunConfig:
    """Choose the run for a configuration's data, time, device and processes, and log the reasons.

    Raises:
        DataError: there are no such data.
    """
    form, place = form_of(wanted.data.kind), Place.of_this_process()
    choice = RULES[form].choose(measure(wanted, auto(form).tokenizer, place))
    for reason in choice.reasons:
        logger.info("auto: %s", reason)
    run = for_processes(choice.run, place.count)
    if run != choice.run:
        rows, parts = run.train.batch_size, run.train.grad_accum_steps
        logger.info(
            "auto: for %d processes: %d rows a step, %s each", place.count, rows, count(parts, "part")
        )
    return run
