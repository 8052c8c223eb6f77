"""Transformers you can see through: one readable model to learn, teach, compare and train.

import clearformer as cf

run = cf.load("runs/NAME")                        # run.model, run.tokenizer, run.config
model = cf.build(cf.ModelConfig(vocab_size=65))   # an nn.Module: model(tokens) -> logits [B T V]
logits, cache = model.run_with_cache(tokens)      # cache["blocks.0.attn.hook_pattern"]
samples = cf.generate(run, "KING RICHARD II:\n", max_new_tokens=200, temperature=0.8, seed=1)
[[best]] = cf.translate(run, ["le 3 mai"])         # of a run that translates
[found] = cf.classify(run, ["Österreich"])        # of one that classifies: found.label, found.probability
vectors = cf.lens.embed(run, "the bank").vectors  # of any, by layer
run = cf.from_hf("gpt2-folder")                   # and cf.to_hf(run, "folder")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name lives; imported at its first use, so that `import clearformer` costs nothing.
_PUBLIC = {
    "ModelConfig": "clearformer.model",
    "RunConfig": "clearformer.training.config",
    "build": "clearformer.model",
    "classify": "clearformer.evaluation.classes.scores",
    "from_hf": "clearformer.interop",
    "generate": "clearformer.decoding",
    "lens": "clearformer.lens",
    "load": "clearformer.run",
    "preset": "clearformer.presets",
    "stream": "clearformer.decoding",
    "to_hf": "clearformer.interop",
    "translate": "clearformer.decoding",
}
_PACKAGES = ("generate", "lens")  # named themselves; the first is itself callable

__all__ = [
    "ModelConfig",
    "RunConfig",
    "build",
    "classify",
    "from_hf",
    "generate",
    "lens",
    "load",
    "preset",
    "stream",
    "to_hf",
    "translate",
]

if TYPE_CHECKING:
    from clearformer import lens
    from clearformer.decoding import generate, stream, translate
    from clearformer.evaluation.classes.scores import classify
    from clearformer.interop import from_hf, to_hf
    from clearformer.model import ModelConfig, build
    from clearformer.presets import preset
    from clearformer.run import load
    from clearformer.training.config import RunConfig


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'clearformer' has no attribute {name!r}")
    module = import_module(_PUBLIC[name])
    return module if name in _PACKAGES else getattr(module, name)
