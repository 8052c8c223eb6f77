"""Transformers you can see through: one readable model to learn, teach, compare and train.

import clearformer as cf

run = cf.load("runs/NAME")                        # run.model, run.tokenizer, run.config
model = cf.build(cf.ModelConfig(vocab_size=65))   # an nn.Module: model(tokens) -> logits [B T V]
logits, cache = model.run_with_cache(tokens)      # cache["blocks.0.attn.hook_pattern"]
samples = cf.generate(run, "KING RICHARD II:\n", max_new_tokens=200, temperature=0.8, seed=1)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives; imported at its first use, so that `import clearformer` costs nothing.
_PUBLIC = {
    "ModelConfig": "clearformer.model",
    "RunConfig": "clearformer.train.config",
    "build": "clearformer.model",
    "generate": "clearformer.generate",
    "load": "clearformer.run",
    "preset": "clearformer.presets",
    "stream": "clearformer.generate",
}

__all__ = ["ModelConfig", "RunConfig", "build", "generate", "load", "preset", "stream"]

if TYPE_CHECKING:
    from clearformer.generate import generate, stream
    from clearformer.model import ModelConfig, build
    from clearformer.presets import preset
    from clearformer.run import load
    from clearformer.train.config import RunConfig


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'clearformer' has no attribute {name!r}")
    module = import_module(_PUBLIC[name])
    return module if name == "generate" else getattr(module, name)  # that package is itself callable
