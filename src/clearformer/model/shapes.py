"""Shapes of the model's arguments and results; the tests check them at run time.

B batch, T query positions, S key positions, D d_model, V vocabulary, H heads, K key/value heads, Dh head size, Dv size
of a head's values. A `#` may be 1, `*` is any number of axes, `_` any size.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Tokens = Int[Tensor, "B T"]
Source = Int[Tensor, "B S"]
Padding = Bool[Tensor, "B T"] | None
"""True where a token is real, False where it pads a shorter row; None: all are real."""
SourcePadding = Bool[Tensor, "B S"] | None
Rows = Int[Tensor, " N"]
"""Rows of the batch to keep, in that order (repeats allowed), as beams and finished samples need it."""

Vectors = Float[Tensor, "B T D"]
LastVectors = Float[Tensor, "B _ D"]
"""The vectors of every position, or of the last alone."""
SourceVectors = Float[Tensor, "B S D"]
Logits = Float[Tensor, "B _ V"]

QueryPositions = Int[Tensor, "*#B T"]
"""[T] where every row of the batch has the same positions, [B T] where padding shifts them."""
KeyPositions = Int[Tensor, "*#B S"]
Bias = Float[Tensor, "*#B H T S"]

Queries = Float[Tensor, "B T H Dh"]
Keys = Float[Tensor, "B S K Dh"]
Values = Float[Tensor, "B S K Dv"]

Q = Float[Tensor, "B H T Dh"]
K = Float[Tensor, "B K S Dh"]
V = Float[Tensor, "B K S Dv"]
Z = Float[Tensor, "B H T Dv"]
