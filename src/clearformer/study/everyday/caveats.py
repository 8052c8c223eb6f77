"""Reasons not to compare the losses of runs, told by the settings in which they differ."""

from collections.abc import Collection

from clearformer.training.objectives import MaskedObjective, ObjectiveSpec

TOKENS = (
    "The tokens differ, and so what a loss or a perplexity per token counts: compare bits per character of texts, or "
    "BLEU of translations, which clearformer eval measures."
)
TASKS = "The tasks differ, and so what a loss counts: compare losses within one task."
LOSSES = "The training losses count different things: compare the held-out ones."
HELD_OUT = (
    "Other tokens are hidden, in held-out texts too: compare losses of the same share and choice of tokens."
)
CONTEXTS = (
    "The contexts differ, and so how many tokens held-out predictions are made from: clearformer eval RUN --context N "
    "measures all at one context."
)
CONTEXTS_OF_MASKED = "The contexts differ, and so how many tokens a hidden one is predicted from."
BY_THE_CLOCK = (
    "Runs end by the clock, so they take different numbers of steps: to compare at equal steps, give train.max_steps "
    "and train.max_seconds=none."
)
MAY_END_BY_THE_CLOCK = (
    "Runs that reach their time limit before train.max_steps take fewer steps than the others."
)
IN_WARMUP = (
    "Runs end within their warm-up (train.warmup_steps), so that their learning rate never reaches train.lr: raise "
    "train.max_steps, or lower train.warmup_steps."
)
LOSS_KEYS = frozenset({"train.label_smoothing", "train.r_drop"})
"""The settings that change what a training loss counts, and no held-out loss."""
HELD_OUT_KEYS = frozenset({"train.objective.fraction", "train.objective.whole_words"})
"""The settings of masked training that change what a held-out loss counts, too."""
TASK_KEYS = frozenset({"train.objective", "train.objective.kind"})
"""The settings that tell the tasks of runs apart."""


def caveats(differ: Collection[str], objectives: Collection[ObjectiveSpec]) -> list[str]:
    """Return a sentence for each reason not to compare losses.

    Args:
        differ: The dotted keys of the settings that differ between the runs.
        objectives: Those of the runs. A classifier's loss counts texts and not tokens, and only text that is continued
            can be evaluated at another context.
    """
    if TASK_KEYS & set(differ):
        return [TASKS]
    told = []
    if LOSS_KEYS & set(differ):
        told.append(LOSSES)
    if HELD_OUT_KEYS & set(differ):
        told.append(HELD_OUT)
    if "model.max_seq_len" in differ and any("context" in each.evaluation_options for each in objectives):
        told.append(CONTEXTS)
    elif "model.max_seq_len" in differ and any(isinstance(each, MaskedObjective) for each in objectives):
        told.append(CONTEXTS_OF_MASKED)
    sections = {key.partition(".")[0] for key in differ}
    if "tokenizer" in sections and not all(each.predicts_classes for each in objectives):
        told.append(TOKENS)
    if data := [key for key in differ if key.partition(".")[0] == "data"]:
        told.append(
            f"The data differ ({', '.join(data)}): held-out losses can be compared only if the held-out data are the "
            "same."
        )
    return told
