"""Generating text with a trained model: sampling, beam search, translation, streaming."""

from clearformer.decoding.beam import BeamSearch, Hypothesis, beam_search
from clearformer.decoding.inference import evaluating
from clearformer.decoding.loop import Completion, NewToken, collect, generate_tokens
from clearformer.decoding.samplers import Sampling, random_stream
from clearformer.decoding.text.continuations import Continuation, search
from clearformer.decoding.text.inputs import Text, Texts
from clearformer.decoding.text.samples import Sample, generate, stream
from clearformer.decoding.text.translations import Translation, translate

__all__ = [
    "BeamSearch",
    "Completion",
    "Continuation",
    "Hypothesis",
    "NewToken",
    "Sample",
    "Sampling",
    "Text",
    "Texts",
    "Translation",
    "beam_search",
    "collect",
    "evaluating",
    "generate",
    "generate_tokens",
    "random_stream",
    "search",
    "stream",
    "translate",
]
