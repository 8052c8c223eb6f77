"""A classifier's prediction for a text: the probability of each class, and what each token contributes to one.

    found = lens.classes(run, "a gripping film", method="integrated gradients")
    found.classes[0]                    the likeliest class, its logit and probability
    found.attribution.values            [T] what each token contributes to the target's logit
    found.missed                        how far their sum is from the value that it should have

Shapes: T tokens, C classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from clearformer.errors import UserError, did_you_mean, shown
from clearformer.lens.activations import outputs_at
from clearformer.lens.gradients.input_attribution import (
    InputAttribution,
    gradient_x_input,
    integrated_gradients,
    occlusion,
)
from clearformer.lens.inputs import Readable, Subject, quiet, read
from clearformer.lens.showing import Shown, Table, bars, letters, logit_name, number, visible
from clearformer.model.norms import at_least_float32
from clearformer.text import Tokenizer

METHODS: dict[str, Callable[..., InputAttribution]] = {
    "integrated gradients": integrated_gradients,
    "gradient x input": gradient_x_input,
    "occlusion": occlusion,
}


@dataclass(frozen=True)
class ClassChance:
    """A class, its logit and its probability."""

    name: str
    logit: float
    probability: float


@dataclass(frozen=True, repr=False, eq=False)
class Classes(Shown):
    """The classes of a text and the contributions of its tokens.

    Attributes:
        classes: The classes, likeliest first.
        target: The class whose logit the tokens contribute to.
        foil: A class whose logit is subtracted, if any.
        logit: The target's logit, less the foil's.
        attribution: What each token contributes to it.
        sum: The sum of the contributions.
        missed: `sum` less the value that it should have: for integrated gradients the logit less that of the baseline.
            None for the other methods, whose contributions need not sum to anything.
    """

    classes: list[ClassChance]
    target: str
    foil: str | None
    logit: float
    attribution: InputAttribution
    sum: float
    missed: float | None

    def caption(self) -> str:
        return (
            f"{self.attribution.method}: what each token contributes to {logit_name(self.target, self.foil)}"
        )

    def table(self) -> Table:
        rows = [
            ["class", each.name, f"{each.probability:.4f}", number(each.logit), ""] for each in self.classes
        ]
        own = self.attribution
        rows += [
            ["token", visible(token), "", "", number(value)]
            for token, value in zip(own.labels, own.values.tolist(), strict=True)
        ]
        return Table(["", "name", "probability", "logit", "contribution"], rows, n_left=2)

    def notes(self) -> list[str]:
        if self.missed is None:
            return [
                f"the contributions sum to {self.sum:+.4f}, the logit is {self.logit:+.4f}: by "
                f"{self.attribution.method} the two need not be equal"
            ]
        return [f"sum {self.sum:+.4f}, {line}" for line in self.attribution.notes()]

    def inches(self) -> tuple[float, float]:
        return 9.0, 1.2 + 0.21 * max(len(self.classes), len(self.attribution.labels))

    def draw(self, figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        bars(left, [each.name for each in self.classes], [each.probability for each in self.classes])
        left.set_xlabel("probability")
        bars(right, list(map(visible, self.attribution.labels)), self.attribution.values.tolist())
        right.set_xlabel(f"contribution to {letters(logit_name(self.target, self.foil))}")


@torch.inference_mode(False)
def classes(
    subject: Subject,
    text: Readable,
    *,
    target: str | int | None = None,
    foil: str | int | None = None,
    method: str = "integrated gradients",
    tokenizer: Tokenizer | None = None,
) -> Classes:
    """Return the probability of each class, and what each token contributes to the logit of one.

    Args:
        subject: A run, or a bare model, that classifies texts.
        text: What to read; see `read`.
        target: The class; by default the likeliest.
        foil: Another, whose logit is subtracted.
        method: `integrated gradients`, `gradient x input` or `occlusion`; see the functions of these names.
        tokenizer: The tokenizer of a bare model.

    Raises:
        UserError: the model is no classifier, or there is no such class or method.
    """
    if not isinstance(method, str) or method not in METHODS:
        hint = did_you_mean(str(method), METHODS)
        raise UserError(f"method: {', '.join(METHODS)}; got {shown(method)}{hint}")
    inputs = read(subject, text, tokenizer=tokenizer)
    if not inputs.class_names:
        raise UserError(
            "this model predicts tokens, not classes of a text; see lens.next_tokens (--view next)"
        )
    with quiet(inputs.model):
        logits = outputs_at(inputs, 0)  # [C]
    chosen = int(logits.argmax()) if target is None else inputs.output("target", target)
    other = None if foil is None else inputs.output("foil", foil)
    found = METHODS[method](subject, inputs, target=chosen, foil=other)
    probabilities = at_least_float32(logits).softmax(-1)
    chances = zip(inputs.class_names, logits.tolist(), probabilities.tolist(), strict=True)
    return Classes(
        sorted((ClassChance(*each) for each in chances), key=lambda each: -each.logit),
        inputs.output_label(chosen),
        None if other is None else inputs.output_label(other),
        found.measure,
        found,
        float(found.values.nansum()),
        found.error,
    )
