"""The compiled step for one new token, which pays off for long texts.

Compiling takes half a minute or more the first time, and some seconds if torch finds an earlier process's result in its
cache; benchmarks/RESULTS.md lists the gain per token.
"""

import logging
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from clearformer.decoding.fast.graphs import graphed_step
from clearformer.decoding.fast.int8 import n_bytes
from clearformer.hooks import has_any_hooks
from clearformer.model import Decoder, EncoderDecoder
from clearformer.model.fast import Linear, PackedWeights
from clearformer.model.fast.compiling import compile_step

logger = logging.getLogger(__name__)

SMALL_MODEL = 2**25
"""The most bytes of weights for which a single text is generated with inductor's C++ wrapper.

It doubles the compile time. Larger models gain nothing by it, and with several texts it is slower (docs/log.md).
"""

LEAST_ROOM = 256
"""The least room, in positions, of a cache in compiled steps: buffers whose size never changes are the fastest."""

ResultT = TypeVar("ResultT")

LogitsFunction = Callable[[Float[Tensor, "B V"]], ResultT]
"""A function of the next tokens' logits, which is compiled together with the model."""

Step = Callable[..., ResultT]
"""A function with the arguments and result of `read_tokens`."""


def read_tokens(
    model: Decoder | EncoderDecoder,
    logits_function: LogitsFunction[ResultT],
    *arguments: Any,
    **settings: Any,
) -> ResultT:
    """Return `logits_function` of the last position's logits; the arguments are the model's, or those of `decode`."""
    read = model if isinstance(model, Decoder) else model.decode
    return logits_function(read(*arguments, **settings, last_only=True)[:, -1].float())


def read_each(model: Decoder | EncoderDecoder, *arguments: Any) -> Float[Tensor, "B T V"]:
    """Return the logits after each of several new tokens; the arguments are the model's, or those of `decode`."""
    read = model if isinstance(model, Decoder) else model.decode
    return read(*arguments).float()


def compiled_step(model: Decoder | EncoderDecoder, n_texts: int) -> Step[Any]:
    """Return `read_tokens`, compiled at its first call; uncompiled if the model has hooks.

    Models of one configuration share the compiled step, because the weights are among its inputs. On a GPU, a decoder's
    step is also recorded as a CUDA graph, one for each model.

    Args:
        n_texts: The number of rows at the start; later there may be fewer.
    """
    if has_any_hooks(model):
        return read_tokens
    weight = model.embed.weight
    on_cpu = weight.device.type == "cpu"
    in_cpp = on_cpu and n_texts == 1 and n_bytes(model) <= SMALL_MODEL
    kind = weight.device.type
    products = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
    step = _compiled(on_cpu, in_cpp, (model.config, weight.dtype, weight.device, products))
    if weight.device.type == "cuda" and isinstance(model, Decoder):
        return graphed_step(model, step)
    return step


def packed_weights(model: Decoder | EncoderDecoder, n_texts: int) -> PackedWeights:
    """Pack the model's matrices for products with `n_texts` vectors; the compiled step finds them."""
    weights = [layer.weight for layer in model.modules() if isinstance(layer, Linear)]
    return PackedWeights.of([*weights, model.embed.weight] if model.head is None else weights, n_texts)


@cache
def _compiled(on_cpu: bool, in_cpp: bool, _specialized_on: tuple[Hashable, ...]) -> Step[Any]:
    """Return one compiled function for all models with the same configuration, dtype, device and type of products."""
    # By default inductor recomputes a product's input for each row of the matrix where that looks cheap. For a norm
    # before a matrix of 50,000 rows it is not.
    options: dict[str, Any] = {"realize_opcount_threshold": 5} if on_cpu else {}
    options["size_asserts"] = False  # else one for every weight at every token
    if on_cpu:  # skip the test programs that ask the C++ compiler for its instruction sets
        options["cpp.vec_isa_ok"] = True
        options["cpp.dynamic_threads"] = False  # faster; the loops of so small a step are seldom shared out
    if in_cpp:
        options |= {"cpp_wrapper": True, "memory_planning": True}
    return _or_plain(compile_step(read_tokens, any_threads=on_cpu, options=options), read_tokens)


def _or_plain(compiled: Step[Any], plain: Step[Any]) -> Step[Any]:
    """Return the compiled step, which gives way to the plain one when compiling fails."""
    in_use = compiled

    def step(*arguments: Any, **settings: Any) -> Any:
        nonlocal in_use
        if in_use is plain:
            return plain(*arguments, **settings)
        try:
            return compiled(*arguments, **settings)
        except RuntimeError as error:
            if not is_compiler_error(error):
                raise
            in_use = plain
            reason = " ".join(str(error).split("\n")[:2]) or type(error).__name__
            logger.warning("compiling failed, continuing without it: %s", reason)
            return plain(*arguments, **settings)

    return step


def is_compiler_error(error: RuntimeError) -> bool:
    """Whether torch's compiler raised the error, for example because the C++ compiler is missing or too old.

    torch has no public name for these errors, and importing the private one takes seconds.
    """
    return any(each.__module__ == "torch._dynamo.exc" for each in type(error).__mro__)
