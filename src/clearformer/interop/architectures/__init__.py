"""The architectures of transformers that settings of ours can express."""

from clearformer.interop.architectures.base import Architecture, Mismatch, meta_weights, mismatches
from clearformer.interop.architectures.bert import Bert
from clearformer.interop.architectures.bloom import Bloom
from clearformer.interop.architectures.gpt2 import GPT2
from clearformer.interop.architectures.llama import Llama, Mistral, Qwen3
from clearformer.interop.architectures.nanochat import NanoChat
from clearformer.interop.architectures.neox import GPTNeoX
from clearformer.interop.architectures.seq2seq import Bart, Marian, Pegasus
from clearformer.interop.architectures.t5 import T5

# If several fit, the first is taken.
ARCHITECTURES: tuple[Architecture, ...] = (
    GPT2(),
    Llama(),
    Mistral(),
    Qwen3(),
    NanoChat(),
    GPTNeoX(),
    Bloom(),
    Bert(),
    Marian(),
    Pegasus(),
    Bart(),
    T5(),
)

__all__ = ["ARCHITECTURES", "Architecture", "Mismatch", "meta_weights", "mismatches"]
