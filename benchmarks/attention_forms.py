"""The plain attention formula against the fused kernel on this machine, by type and length: which is faster when.

    python benchmarks/attention_forms.py

Each pair is timed in turn, A B A B; medians of milliseconds of a forward and backward pass, and of a forward pass
alone, as a training step and an evaluation make them. `formula_is_faster` of model/fast rests on this.
Prints one JSON object.
"""

import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from clearformer.model.attention import DotModule
from clearformer.model.fast.attention_forms import fused_attention
from clearformer.model.masks import Mask

SHAPES = [
    (64, 64, 4, 32),
    (32, 128, 4, 64),
    (16, 256, 4, 64),
    (8, 512, 4, 64),
    (4, 1024, 4, 64),
]  # B, T, H, Dh
ROUNDS = 9


def formula(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Mask) -> Tensor:
    return DotModule(scale).formula(q, k, v, mask, None)


def fused(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Mask) -> Tensor:
    return fused_attention(q, k, v, mask, None, scale, window=None, p_dropout=0.0)


def milliseconds(
    form: Callable[..., Tensor], inputs: tuple[Tensor, ...], mask: Mask, backward: bool
) -> float:
    start = time.perf_counter()
    with torch.set_grad_enabled(backward):
        z = form(*inputs, inputs[0].shape[-1] ** -0.5, mask)
        if backward:
            z.sum().backward()
    return 1000 * (time.perf_counter() - start)


def main() -> None:
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        for batch, length, heads, size in SHAPES:
            inputs = tuple(
                torch.randn(batch, heads, length, size, dtype=dtype, requires_grad=True) for _ in "qkv"
            )
            positions = torch.arange(length)
            mask = Mask(positions, positions, causal=True)
            row: dict[str, object] = {"dtype": str(dtype), "B": batch, "T": length, "H": heads, "Dh": size}
            for name, backward in (("step", True), ("forward", False)):
                times = [
                    [milliseconds(form, inputs, mask, backward) for form in (formula, fused)]
                    for _ in range(ROUNDS + 2)
                ][2:]
                medians = [statistics.median(column) for column in zip(*times, strict=True)]
                row[f"{name}_ms_formula"], row[f"{name}_ms_fused"] = (round(ms, 2) for ms in medians)
            rows.append(row)
    print(
        json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads(), "rows": rows}, indent=1)
    )


if __name__ == "__main__":
    main()
