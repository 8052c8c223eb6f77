"""A prediction of a model on a text, whose loss is traced back to the training."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from clearformer.decoding import Text
from clearformer.lens.causal.metrics import metric_of
from clearformer.lens.inputs import Inputs, Readable, Subject, quiet, read
from clearformer.lens.showing import quoted
from clearformer.model import Transformer
from clearformer.model.norms import at_least_float32


@dataclass(frozen=True)
class Prediction:
    """-log p(target) at a position of a text.

    Attributes:
        inputs: The text.
        target: A token, or a class.
        position: The position that predicts it; ignored for a class.
    """

    inputs: Inputs
    target: int
    position: int

    @property
    def label(self) -> str:
        """The target in readable form."""
        return self.inputs.output_label(self.target)

    @property
    def where(self) -> str:
        """The place of the prediction in words."""
        if self.inputs.class_names:
            return "of the text"
        return f"at position {self.position}, {quoted(self.inputs.labels[self.position])}"

    def __str__(self) -> str:
        return f"{quoted(self.label)} {self.where}"

    def loss(self, model: Transformer) -> Float[Tensor, ""]:
        """Return the loss of a model's prediction, in nats."""
        arguments = [each.to(model.embed.weight.device) for each in self.inputs.arguments]
        output = model(*arguments)
        logits = output[0] if output.dim() == 2 else output[0, self.position]
        return -F.log_softmax(at_least_float32(logits), dim=-1)[self.target]

    def value(self, model: Transformer) -> float:
        """Return the loss as a number."""
        with quiet(model):
            return self.loss(model).item()

    def gradients(self, model: Transformer) -> dict[str, Tensor]:
        """Return the gradient of the loss with respect to each parameter of a model."""
        with quiet(model, grad=True):
            return gradients_of(model, self.loss(model))


def gradients_of(model: Transformer, loss: Tensor) -> dict[str, Tensor]:
    """Return the gradient of a loss with respect to each parameter, by name."""
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(
        loss, list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(parameters, gradients, strict=True))


def prediction_of(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    target: str | int | None = None,
    position: int = -1,
    masked: Sequence[int] = (),
) -> Prediction:
    """Return a prediction on a text; the target is by default the model's likeliest.

    Raises:
        UserError: there is no such token, class or position; see `lens.read`.
    """
    inputs = read(subject, text, output, masked=masked)
    at = inputs.predicting(position)
    return Prediction(inputs, metric_of(inputs, target, position=position).target, at)
