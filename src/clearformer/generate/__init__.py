"""Text from a trained model: samplers, the loop with its cache, beam search, translation, streaming."""

import sys
from types import ModuleType
from typing import Any

from clearformer.generate.beam import BeamSearch, Hypothesis, beam_search
from clearformer.generate.continuations import Continuation, search
from clearformer.generate.loop import Completion, NewToken, collect, generate_tokens
from clearformer.generate.mode import autocast_to, evaluating
from clearformer.generate.samplers import Sampling, random_stream
from clearformer.generate.samples import Prompt, Sample, encode_prompt, generate, stream
from clearformer.generate.translations import Translation, translate

__all__ = [
    "BeamSearch",
    "Completion",
    "Continuation",
    "Hypothesis",
    "NewToken",
    "Prompt",
    "Sample",
    "Sampling",
    "Translation",
    "autocast_to",
    "beam_search",
    "collect",
    "encode_prompt",
    "evaluating",
    "generate",
    "generate_tokens",
    "random_stream",
    "search",
    "stream",
    "translate",
]


class _CallableModule(ModuleType):
    """This package, callable: `clearformer.generate` is the function of the public interface and the package both.

    Importing a package binds its name in its parent, so the function could not keep that name there.
    """

    def __call__(self, *arguments: Any, **settings: Any) -> list[Sample]:
        return generate(*arguments, **settings)


sys.modules[__name__].__class__ = _CallableModule
