"""A model's step for one new token, compiled: what long texts are written with.

Compiling takes half a minute or more the first time, and some seconds where torch finds the result of an earlier
process in its cache; benchmarks/RESULTS.md has what a token gains by it.
"""

import logging
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

from torch import Tensor

from clearformer.model import Decoder, EncoderDecoder
from clearformer.model.compiling import compile_step
from clearformer.model.hooks import hook_points

logger = logging.getLogger(__name__)

Step = Callable[..., Tensor]
"""A function as `read_tokens` is."""


def read_tokens(model: Decoder | EncoderDecoder, *arguments: Any, **settings: Any) -> Tensor:
    """The scores after new tokens; the arguments are those of the model, or of an encoder-decoder's `decode`."""
    if isinstance(model, Decoder):
        return model(*arguments, **settings)
    return model.decode(*arguments, **settings)


def compiled_step(model: Decoder | EncoderDecoder) -> Step:
    """`read_tokens`, compiled when it is first called; as it is written, where somebody looks inside.

    Models of one configuration share it, for their weights are among what it is given.
    """
    if any(point.watched for point in hook_points(model).values()):
        return read_tokens
    weight = model.embed.weight
    return _compiled(weight.device.type == "cpu", (model.config, weight.dtype, weight.device))


@cache
def _compiled(on_cpu: bool, _granted: tuple[Hashable, ...]) -> Step:
    """One compiled function for all models of which the same may be taken for granted."""
    # By default what multiplies a matrix is worked out anew for each of its rows where that looks cheap, and a norm
    # before 50,000 rows is not.
    options: dict[str, Any] = {"realize_opcount_threshold": 5} if on_cpu else {}
    options["size_asserts"] = False  # of every weight at every token
    return _or_plain(compile_step(read_tokens, options=options), read_tokens)


def _or_plain(compiled: Step, plain: Step) -> Step:
    """The compiled step; from where compiling fails on, the plain one."""
    from torch._dynamo.exc import TorchDynamoException  # takes seconds to import

    in_use = compiled

    def step(*arguments: Any, **settings: Any) -> Tensor:
        nonlocal in_use
        if in_use is plain:
            return plain(*arguments, **settings)
        try:
            return compiled(*arguments, **settings)
        except TorchDynamoException as error:  # no C++ compiler, or one that is too old
            in_use = plain
            reason = " ".join(str(error).split("\n")[:2]) or type(error).__name__
            logger.warning("compiling failed, going on without it: %s", reason)
            return plain(*arguments, **settings)

    return step
