"""The model card of an exported model: its kind, how to load it, and how it was trained."""

from dataclasses import dataclass

from clearformer.config import to_toml
from clearformer.interop.mapping.matching import ArchitectureMatch
from clearformer.training.config import RunConfig

AUTO_CLASSES = {
    "CausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "MaskedLM": "AutoModelForMaskedLM",
    "SequenceClassification": "AutoModelForSequenceClassification",
    "ConditionalGeneration": "AutoModelForSeq2SeqLM",
    "MTModel": "AutoModelForSeq2SeqLM",
}
TAGS = {
    "AutoModelForCausalLM": "text-generation",
    "AutoModelForMaskedLM": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForSeq2SeqLM": "translation",
}
IS_WHAT = {
    "AutoModelForCausalLM": "a decoder that continues texts",
    "AutoModelForMaskedLM": "an encoder that fills in masked tokens",
    "AutoModelForSequenceClassification": "an encoder that classifies a text",
    "AutoModelForSeq2SeqLM": "an encoder-decoder that turns one text into another",
}


@dataclass(frozen=True)
class HeldOut:
    """A loss on held-out data, and the share of them that it covers: 1 for all, None if unknown."""

    loss: float
    share: float | None


@dataclass(frozen=True)
class Trained:
    """The training behind a model's weights.

    Attributes:
        step: The steps taken; 0 if it was not trained.
        average: The number of checkpoints whose mean the weights are, the last that of `step`.
        held_out: The loss of these weights, where it is known.
    """

    step: int
    average: int = 1
    held_out: HeldOut | None = None


def auto_class(fitted: ArchitectureMatch) -> str:
    """Return the auto class of transformers that loads a model, such as AutoModelForCausalLM."""
    return next(auto for ending, auto in AUTO_CLASSES.items() if fitted.class_name.endswith(ending))


def model_card(
    name: str,
    fitted: ArchitectureMatch,
    config: RunConfig,
    n_parameters: int,
    trained: Trained,
) -> str:
    """Return the text of README.md, with the header that Hugging Face's pages read."""
    auto = auto_class(fitted)
    return f"""\
---
library_name: transformers
pipeline_tag: {TAGS[auto]}
tags:
- clearformer
---
# {name}

This is {IS_WHAT[auto]}: {n_parameters:,} parameters in the architecture of {fitted.architecture.title}
(`{fitted.class_name}`). It was made and exported with clearformer.

## How to load it
```python
from transformers import {auto}, AutoTokenizer

model = {auto}.from_pretrained("PATH")
tokenizer = AutoTokenizer.from_pretrained("PATH")
```
It needs no code of its own. `clearformer import PATH` makes a run of it again.

## How it was made
{_training(config, trained)}

```toml
{to_toml(config, with_folders=False).strip()}
```
"""


def _training(config: RunConfig, trained: Trained) -> str:
    if trained.step == 0:
        return "It was not trained: its weights were imported or are its initial ones. Its settings:"
    weights = (
        f" Its weights are the mean of the last {trained.average} checkpoints." if trained.average > 1 else ""
    )
    loss = "" if trained.held_out is None else f" {_loss(trained.held_out, _predicted(config))}"
    return f"It was trained for {trained.step:,} steps on the data `{config.data.label}`.{weights}{loss} All settings:"


def _loss(held_out: HeldOut, predicted: str) -> str:
    """State the loss, and the share of the held-out data that it covers."""
    loss = f"{held_out.loss:.4f} nats per {predicted}"
    if held_out.share is None:
        return (
            f"Its loss on the held-out data that its checkpoints are compared by, all or a part, is {loss}."
        )
    if held_out.share < 1:
        percent = min(99.9, 100 * held_out.share)
        return f"Its loss on {percent:.3g}% of the held-out data, evenly spaced, is {loss}."
    return f"Its loss on all held-out data is {loss}."


def _predicted(config: RunConfig) -> str:
    """Return the unit over which the model's loss is a mean."""
    if config.model.n_classes is not None:
        return "text"
    return "masked token" if config.model.family == "encoder" else "token"
