"""The model, in pure torch, independent of text, data, training and files."""

from clearformer.model.block import EncoderOutput
from clearformer.model.build import build, build_on_meta, build_undrawn, initialise
from clearformer.model.cache import Cache
from clearformer.model.config import ModelConfig
from clearformer.model.transformer import Decoder, Encoder, EncoderDecoder, Transformer

__all__ = [
    "Cache",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "EncoderOutput",
    "ModelConfig",
    "Transformer",
    "build",
    "build_on_meta",
    "build_undrawn",
    "initialise",
]
