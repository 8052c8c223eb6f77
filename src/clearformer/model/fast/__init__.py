"""Other forms of what the model computes, quicker on some machine; nobody needs them to understand it.

Each is named after the plain definition that it replaces, chooses between that and itself by shapes, types and
device, and is equal to it by a test under tests/unit/model/fast. benchmarks/RESULTS.md has what each gains.

    attention   softmax(Q K^T scale + bias + M) V      one kernel; blocks of a window; sums for one token
    dropout     x with numbers set to 0                from raw random bits, on a CPU
    linear      x W^T + b                              sums for one vector; weights laid out for a few; joined matrices
    causal_sums sums over s <= t of (q_t . k_s) v_s    in chunks, and on from the sums of earlier calls
    relu        max(0, x)                              its gradient by the sign of its result
"""

from clearformer.model.fast.attention_forms import attention
from clearformer.model.fast.compiling import compile_step
from clearformer.model.fast.linear_chunks import causal_sums
from clearformer.model.fast.packed import PackedWeights
from clearformer.model.fast.products import Linear, linear, linear_each
from clearformer.model.fast.random_bits import dropout
from clearformer.model.fast.relu_by_sign import relu

__all__ = [
    "Linear",
    "PackedWeights",
    "attention",
    "causal_sums",
    "compile_step",
    "dropout",
    "linear",
    "linear_each",
    "relu",
]
