"""Faster forms of what the model computes; you need not read them to understand the model.

Each has the name of the plain definition that it replaces and chooses between the two by shapes, types and device.
Tests under tests/unit/model/fast compare them, and benchmarks/RESULTS.md lists what each gains.

    attention   softmax(Q K^T scale + bias + M) V      one kernel; blocks of a window; sums for one token
    dropout     x with numbers set to 0                from raw random bits, on a CPU
    linear      x W^T + b                              sums for one vector; packed weights for a few; joined matrices
    causal_sums sums over s <= t of (q_t . k_s) v_s    in chunks, continuing from the sums of earlier calls
    relu        max(0, x)                              gradient from the sign of the result
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
