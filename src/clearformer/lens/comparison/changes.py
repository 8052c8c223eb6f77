"""Differences of two results of one lens function: a result of the same kind whose numbers are second less first.

    found = lens.difference(lens.ledger(run, text, target="a"), lens.ledger(other, text, target="a"))
    found.changes.parts[0].value        how much more of the logit the second run's part wrote
    found.first, found.second           the two results

    found = lens.beside(lens.ledger, run, other, text)      the same for two runs, or two checkpoints of one

All differences are second - first. Floats and arrays of floats are subtracted; whole numbers only if they are amounts,
such as ranks and counts (fields marked AMOUNT). Lists of parts are matched by the parts' names. Strings that differ,
such as the likeliest token, become `first→second`. Fields that say what the numbers are about must agree.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from inspect import signature
from math import nan
from typing import Any, Generic, TypeVar

import numpy as np
from torch import Tensor

from clearformer.decoding.arguments import check_function
from clearformer.decoding.text.samples import Run
from clearformer.errors import UserError, shown
from clearformer.lens.causal.metrics import metric_of
from clearformer.lens.comparison.pairs import check_one_family
from clearformer.lens.gradients.loss_change import loss_changes_since
from clearformer.lens.gradients.matrices import weight_gradients
from clearformer.lens.inputs import Inputs, Readable, read
from clearformer.lens.ledgers.scores import Score
from clearformer.lens.predictions.logit_lens import logit_lens
from clearformer.lens.showing import AMOUNT, EITHER, FIRST, Shown, Table, changing
from clearformer.lens.tokens import tokens
from clearformer.model import EncoderDecoder

AGREEING = ("tokens", "token", "source", "read", "predicted", "target", "foil", "part", "name")
"""Fields that say what the numbers are about."""

R = TypeVar("R", bound=Shown)


class UnlikeError(UserError):
    """Two results cannot be subtracted."""


@dataclass(frozen=True, repr=False, eq=False)
class Difference(Shown, Generic[R]):
    """The difference of two results of one lens function.

    Attributes:
        first: The first result.
        second: The second result.
        changes: A result of the same kind that holds second - first.
    """

    first: R
    second: R
    changes: R

    def caption(self) -> str:
        return f"{self.first.caption()}: second minus first"

    def table(self) -> Table:
        return self.changes.table_of_changes()

    def notes(self) -> list[str]:
        both = (("first", self.first), ("second", self.second))
        return [f"{word}: {note}" for word, each in both for note in each.notes()]

    def inches(self) -> tuple[float, float]:
        return self.changes.inches()

    def draw(self, figure: Any) -> None:
        with changing():
            self.changes.draw(figure)


def difference(first: R, second: R) -> Difference[R]:
    """Subtract one lens result from another of the same function.

    Args:
        first: The result to subtract.
        second: The result to subtract it from.

    Raises:
        UserError: they are not results of one function, are about other tokens, or differ in their parts or sizes.
    """
    for each in (first, second):
        if not isinstance(each, Shown):
            raise UserError(f"a difference needs two results of the lens; got {shown(each)}")
    if type(first) is not type(second):
        kinds = f"{type(first).__name__} and {type(second).__name__}"
        raise UserError(f"a difference needs two results of the same function; got {kinds}")
    with np.errstate(invalid="ignore"):  # the mask's -inf less itself is NaN
        return Difference(first, second, _changed("", first, second))


def beside(function: Callable[..., R], run: Run, other: Run, *text: Readable, **given: Any) -> Difference[R]:
    """Return the difference of two runs in one lens function.

        lens.beside(lens.logit_lens, run, cf.load("NAME", checkpoint=128), "To be or not", position=3)

    If the function would choose an argument by the model (the target, a score's key, an encoder-decoder's
    translation), the first run's choice is used for both, so that both numbers are about the same thing. With a
    translation, `with_edits` continues it. Lists of tokens that each run orders, draws or searches itself
    (`next_tokens`, `next_draw`, `continuations`, `beam_tree`) can be subtracted only where both have the same.

    Args:
        function: A function of the lens, such as `lens.ledger`.
        run: The first run, whose numbers are subtracted.
        other: The second; it may be the same run at another checkpoint.
        text: The text for both, if the function reads one; for an encoder-decoder also the output.
        **given: Other arguments of the function.

    Raises:
        UserError: the runs have different families, or their results cannot be subtracted; see `difference`.
    """
    check_function("function", function)
    check_one_family(run, other)
    if (
        run.model.config.n_classes != other.model.config.n_classes
        and "target" in signature(function).parameters
    ):
        raise UserError(
            "the runs do not have the same outputs, so they have no logit in common; compare lens.attention, or use "
            "lens.differences"
        )
    given |= _chosen(function, run, text, given)
    first = function(run, *text, **given)
    if isinstance(first, Score):
        given["key"] = first.key_position
    try:
        return difference(first, function(other, *text, **given))
    except UnlikeError as error:
        raise UserError(f"{error}{_why(run, other)}{_instead(function, run, other)}") from None


def _chosen(
    function: Callable[..., Shown], run: Run, text: Sequence[Readable], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments that the first run chooses for both."""
    takes = signature(function).parameters
    chosen: dict[str, Any] = {}
    if not text:
        return chosen
    named = signature(function).bind_partial(run, *text, **given).arguments  # an output may be in `text`
    reads = {name: named[name] for name in ("output", "masked") if name in named}
    # Such a function begins with what is written so far, which then is nothing for either run.
    continues = "drawn" in takes and "position" not in given
    is_read = isinstance(text[0], Inputs)  # and so has its output
    is_open = "output" in takes and named.get("output") is None and not continues and not is_read
    if is_open and isinstance(run.model, EncoderDecoder):
        chosen["output"] = read(run, text[0], **reads).tokens[0].tolist()
    if "target" in takes and given.get("target") is None and given.get("metric") is None:
        inputs = read(run, text[0], **(reads | chosen))
        position = given.get("position", -1)
        if _takes_the_likeliest(function, inputs, position):
            chosen["target"] = metric_of(inputs, None, None, position).target
    return chosen


def _takes_the_likeliest(function: Callable[..., Shown], inputs: Inputs, position: int) -> bool:
    """Whether a function that is given no target takes the one that the model finds likeliest."""
    if function in (weight_gradients, loss_changes_since):
        return bool(inputs.class_names)  # otherwise the loss of the text is measured
    return function is not logit_lens or inputs.predicted[inputs.predicting(position)] is None


def _why(run: Run, other: Run) -> str:
    """Say how two models differ in size."""
    one, another = run.model.config, other.model.config
    sizes = {
        "layers": (one.n_layers, another.n_layers),
        "heads": tuple(each.attention.heads(each.d_model)[0] for each in (one, another)),
        "d_model": (one.d_model, another.d_model),
        "tokens in the vocabulary": (one.vocab_size, another.vocab_size),
    }
    apart = [f"{a} and {b} {name}" for name, (a, b) in sizes.items() if a != b]
    return f" (the models have {', '.join(apart)})" if apart else ""


def _instead(function: Callable[..., Shown], run: Run, other: Run) -> str:
    """Say what can still be compared, if it can."""
    tells_classes = any(each.model.config.n_classes is not None for each in (run, other))
    same_tokens = run.tokenizer.fingerprint() == other.tokenizer.fingerprint()
    if function is tokens or tells_classes or not same_tokens:
        return ""
    return "; lens.tokens can still compare the losses of tokens that agree"


def _changed(name: str, one: Any, other: Any) -> Any:
    """Return other - one, for a value of any type that results have."""
    if type(one) is not type(other) and not (_is_number(one) and _is_number(other)):
        if one is None or other is None:
            return None  # only one of them has it
        raise UnlikeError(f"{name}: {type(one).__name__} and {type(other).__name__} cannot be subtracted")
    if is_dataclass(one):
        return _of_fields(name, one, other)
    if isinstance(one, np.ndarray | Tensor):
        return _of_arrays(name, one, other)
    if isinstance(one, float):
        return other - one
    if isinstance(one, str):
        return one if one == other else f"{one}→{other}"
    if isinstance(one, dict):
        return _of_mappings(name, one, other)
    if hasattr(one, "_fields"):  # a named tuple
        raise UnlikeError(f"{name}: a {type(one).__name__} cannot be subtracted")
    if isinstance(one, list | tuple):
        return _of_lists(name, one, other)
    if one != other:
        raise UnlikeError(
            f"{name} is {one} in the first and {other} in the second: these cannot be subtracted"
        )
    return one


def _of_fields(name: str, one: Any, other: Any) -> Any:
    if (own := getattr(one, "change_to", None)) is not None:
        return own(other)
    return replace(one, **{each.name: _of_field(name, each, one, other) for each in fields(one) if each.init})


def _of_field(name: str, field: Field[Any], one: Any, other: Any) -> Any:
    path = f"{name}.{field.name}" if name else field.name
    a, b = getattr(one, field.name), getattr(other, field.name)
    if FIRST in field.metadata:
        return a
    if AMOUNT in field.metadata:
        return b - a
    if EITHER in field.metadata:
        return _of_either(path, a, b)
    if field.name == "token" and "" in (a, b):
        return ""  # one of two classifiers predicts from all positions together, so neither's place is that of both
    if field.name in AGREEING and not _has_parts(a) and a != b and not isinstance(a, np.ndarray):
        raise UnlikeError(f"{path}: {_first_unlike(a, b)}: numbers of different things cannot be subtracted")
    return _changed(path, a, b)


def _has_parts(value: Any) -> bool:
    """Whether a value is a result, or a list of results, whose own fields say what they are about."""
    return is_dataclass(value) or (isinstance(value, list) and bool(value) and is_dataclass(value[0]))


def _first_unlike(one: Any, other: Any) -> str:
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return f"the first has {len(one)} and the second {len(other)}"
        at = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
        return f"at {at} the first has {shown(one[at])} and the second {shown(other[at])}"
    return f"the first has {shown(one)} and the second {shown(other)}"


def _of_arrays(name: str, one: Any, other: Any) -> Any:
    if one.shape != other.shape:
        raise UnlikeError(f"{name}: sizes {list(one.shape)} and {list(other.shape)} cannot be subtracted")
    is_float = (
        one.dtype.is_floating_point if isinstance(one, Tensor) else np.issubdtype(one.dtype, np.floating)
    )
    if is_float:
        return other - one
    if not bool((one == other).all()):
        raise UnlikeError(f"{name}: the integers of the two differ and cannot be subtracted")
    return one


def _of_mappings(name: str, one: dict[Any, Any], other: dict[Any, Any]) -> dict[Any, Any]:
    if apart := [key for key in one | other if key not in one or key not in other]:
        raise UnlikeError(f"{name}: only one of the two has {apart[0]}, so they cannot be subtracted")
    return {key: _changed(f"{name}.{key}", value, other[key]) for key, value in one.items()}


def _of_lists(name: str, one: Sequence[Any], other: Sequence[Any]) -> Any:
    if one and other and is_dataclass(one[0]):
        return [_changed(f"{name}.{_named(a)}", a, b) for a, b in _matched(name, one, other)]
    if len(one) != len(other):
        raise UnlikeError(f"{name}: lengths {len(one)} and {len(other)} cannot be subtracted")
    made: Any = type(one)
    return made(_changed(f"{name}[{i}]", a, b) for i, (a, b) in enumerate(zip(one, other, strict=True)))


def _matched(name: str, one: Sequence[Any], other: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Match the parts of two lists by name."""
    keys, others = ([_key(each) for each in parts] for parts in (one, other))
    if keys == others:
        return list(zip(one, other, strict=True))
    by_key = dict(zip(others, other, strict=True))
    if sorted(keys, key=repr) != sorted(others, key=repr) or len(by_key) < len(others):
        raise UnlikeError(f"{name}: {_parts_apart(keys, others)}, so they cannot be subtracted")
    return [(each, by_key[key]) for key, each in zip(keys, one, strict=True)]


def _parts_apart(keys: Sequence[tuple[Any, ...]], others: Sequence[tuple[Any, ...]]) -> str:
    """Return in words a part that only one of two lists has, or has in another way."""
    first, second = (
        [key for key in own if key not in rest] for own, rest in ((keys, others), (others, keys))
    )
    if not first and not second:
        return "only one of the two has other parts"
    key = (first or second)[0]
    alike = [other for other in second if first and other[0] == key[0]]
    if alike:
        return f"{shown(key[0])} is {shown(key[1:])} in the first and {shown(alike[0][1:])} in the second"
    return f"only one of the two has {shown(key[0])}"


def _key(part: Any) -> tuple[Any, ...]:
    """Return the key of a part: its strings, and its whole numbers that are not amounts."""
    named = ((each, getattr(part, each.name)) for each in fields(part))
    return tuple(
        value
        for each, value in named
        if AMOUNT not in each.metadata and (isinstance(value, str | int | None) or is_dataclass(value))
    )


def _named(part: Any) -> str:
    return next((str(each) for each in _key(part)), "")


def _of_either(name: str, one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    """Subtract lists that may differ in parts because each holds its largest; such parts get NaN."""
    firsts, seconds = ({_key(each): each for each in parts} for parts in (one, other))
    return [
        _changed(name, firsts[key], seconds[key])
        if key in firsts and key in seconds
        else _unknown(firsts.get(key, seconds.get(key)))
        for key in firsts | seconds
    ]


def _unknown(part: Any) -> Any:
    return replace(
        part, **{each.name: nan for each in fields(part) if isinstance(getattr(part, each.name), float)}
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
