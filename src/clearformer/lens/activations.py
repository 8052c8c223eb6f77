"""A text's activations at every named point: `logits, cache = lens.run_with_cache(run, "First Citizen:")`.

cache["pattern", 0]                      [1 H T S], no gradient attached: .numpy() works
cache["blocks.0.attn.hook_pattern"]      the same
"""

from collections.abc import Callable, Iterable, Sequence

from jaxtyping import Float
from torch import Tensor

from clearformer.decoding import Text
from clearformer.hooks import ActivationCache, Hook, hook_points
from clearformer.lens.inputs import Inputs, Subject, quiet, read
from clearformer.model import Encoder
from clearformer.text import Tokenizer

Names = str | Iterable[str] | Callable[[str], bool] | None


def run_with_cache(
    subject: Subject,
    text: Text,
    output: Text | None = None,
    *,
    names: Names = None,
    tokenizer: Tokenizer | None = None,
    masked: Sequence[int] = (),
) -> tuple[Float[Tensor, "..."], ActivationCache]:
    """The logits of a text and the activations on the way, detached; the model's mode is left as it was.

    Args:
        subject: A run, or a model by itself.
        text: What to read; see `read`, and there the other arguments.
        output: What an encoder-decoder writes.
        names: Hook points or patterns of them (`blocks.*.attn.hook_z`), or a function of a name; all, where not given.
        tokenizer: That of a model by itself.
        masked: Positions at which an encoder reads [MASK].

    Raises:
        UserError: no hook point has such a name (with the nearest), or the text cannot be read; see `read`.
    """
    inputs = read(subject, text, output, tokenizer=tokenizer, masked=masked)
    with quiet(inputs.model):
        return inputs.model.run_with_cache(*inputs.arguments, names=names)


def kept(inputs: Inputs, is_wanted: Callable[[str], bool]) -> ActivationCache:
    """The activations at some points up to the final vectors, of which no logits are made."""
    model, seen = inputs.model, ActivationCache()

    def keep(activation: Tensor, hook: Hook) -> None:
        seen[hook.name] = activation

    names = [name for name in hook_points(model) if is_wanted(name)]
    with model.hooked(dict.fromkeys(names, keep)):
        if isinstance(model, Encoder):
            model.encode(*inputs.arguments)
        else:
            model.hidden(*inputs.arguments)
    return seen
