"""The model, in pure torch: it knows nothing of text, data, training or files."""

from clearformer.model.cache import Cache
from clearformer.model.config import ModelConfig
from clearformer.model.transformer import Decoder, build

__all__ = ["Cache", "Decoder", "ModelConfig", "build"]
