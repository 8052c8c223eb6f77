"""The page that goes with an exported model: what it is, how it came to be, how it is loaded."""

from clearformer.config import to_toml
from clearformer.interop.fitting import Fit
from clearformer.train.config import RunConfig

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
    "AutoModelForSequenceClassification": "an encoder that tells the class of a text",
    "AutoModelForSeq2SeqLM": "an encoder-decoder that writes one text of another",
}


def auto_class(fitted: Fit) -> str:
    """What transformers loads a model by when it is not told which one it is."""
    return next(auto for ending, auto in AUTO_CLASSES.items() if fitted.class_name.endswith(ending))


def model_card(
    name: str, fitted: Fit, config: RunConfig, n_parameters: int, step: int, val_loss: float | None
) -> str:
    """README.md, with the header that Hugging Face's pages read."""
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

## How it came to be
{_training(config, step, val_loss)}

```toml
{to_toml(config).strip()}
```
"""


def _training(config: RunConfig, step: int, val_loss: float | None) -> str:
    if step == 0:
        return (
            "It was not trained: these are weights that were imported, or those it began with. Its settings:"
        )
    held_out = "" if val_loss is None else f" Its loss on held-out data is {val_loss:.4f} nats per token."
    if val_loss is not None and config.model.n_classes is not None:
        held_out = f" Its loss on held-out data is {val_loss:.4f} nats per text."
    return f"It was trained for {step:,} steps on the data `{config.data.label}`.{held_out} All settings:"
