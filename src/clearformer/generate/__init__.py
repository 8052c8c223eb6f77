"""Text from a trained model: samplers, the loop with its cache, stop strings, streaming."""

import sys
from types import ModuleType
from typing import Any

from clearformer.generate.loop import Completion, NewToken, collect, generate_tokens
from clearformer.generate.mode import evaluating
from clearformer.generate.samplers import Sampling, random_stream
from clearformer.generate.samples import Prompt, Sample, encode_prompt, generate, stream

__all__ = [
    "Completion",
    "NewToken",
    "Prompt",
    "Sample",
    "Sampling",
    "collect",
    "encode_prompt",
    "evaluating",
    "generate",
    "generate_tokens",
    "random_stream",
    "stream",
]


class _CallableModule(ModuleType):
    """This package, callable: `clearformer.generate` is the function of the public interface and the package both.

    Importing a package binds its name in its parent, so the function could not keep that name there.
    """

    def __call__(self, *arguments: Any, **settings: Any) -> list[Sample]:
        return generate(*arguments, **settings)


sys.modules[__name__].__class__ = _CallableModule
