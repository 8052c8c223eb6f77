"""Edits as short lines of text, for use in an address or a file.

    zero blocks.0.attn.hook_z:3           switches off head 3
    scale blocks.1.hook_mlp_out@5 0.5     halves what a network writes at position 5
    mean blocks.0.attn.hook_z:3           replaces the head by its mean over the text's positions
    patch blocks.2.hook_resid_pre@4       takes the value from the donor text

A site is a hook point, then optionally `:` and a head, then optionally `@` and a position from the start.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from clearformer.errors import UserError, did_you_mean, shown
from clearformer.hooks import hook_points, matching
from clearformer.hooks.readings import once
from clearformer.lens.causal.interventions import (
    Activations,
    Edit,
    activations,
    change,
    mean,
    zero,
)
from clearformer.lens.causal.patching import of_source
from clearformer.lens.causal.sites import Site
from clearformer.lens.inputs import Inputs

FORMS = {"zero": "zero SITE", "scale": "scale SITE FACTOR", "mean": "mean SITE", "patch": "patch SITE"}
SITE = re.compile(r"(?P<name>[A-Za-z0-9_.]+)(:(?P<head>\d{1,6}))?(@(?P<position>\d{1,9}))?")
LARGEST_FACTOR = 1e6


@dataclass(frozen=True)
class NamedEdit:
    """A parsed edit.

    Attributes:
        line: The line as written.
        verb: `zero`, `scale`, `mean` or `patch`.
        site: Where to make it.
        factor: The factor of `scale`.
    """

    line: str
    verb: str
    site: Site
    factor: float = 1.0

    @property
    def is_of_any_text(self) -> bool:
        """Whether it means the same in other texts: it names no position and takes nothing from a donor."""
        return self.site.position is None and self.verb != "patch"


def parse_edit(line: Any) -> NamedEdit:
    """Parse an edit; see the module.

    Raises:
        UserError: the line is not an edit; the message says why.
    """
    if not isinstance(line, str) or not line.split():
        raise UserError(f"edits: each is a line such as 'zero blocks.0.attn.hook_z:3'; got {shown(line)}")
    verb, *rest = line.split()
    if verb not in FORMS:
        hint = did_you_mean(verb, FORMS) or f"; there are {', '.join(FORMS)}"
        raise UserError(f"edits: {shown(line)} starts with no known edit{hint}")
    if len(rest) != (2 if verb == "scale" else 1):
        raise UserError(f"edits: {shown(line)} must be {FORMS[verb]}, such as {verb} blocks.0.attn.hook_z:3"
                        + (" 0.5" if verb == "scale" else ""))  # fmt: skip
    found = SITE.fullmatch(rest[0])
    if found is None:
        raise UserError(
            f"edits: {shown(line)}: a site is a hook point, ':' and a head, '@' and a position, such as "
            "blocks.0.attn.hook_z:3@5"
        )
    numbers = {key: None if found[key] is None else int(found[key]) for key in ("head", "position")}
    site = Site(found["name"], **numbers)
    return NamedEdit(line, verb, site, _factor(line, rest[1]) if verb == "scale" else 1.0)


def _factor(line: str, written: str) -> float:
    try:
        factor = float(written)
    except ValueError:
        factor = math.nan
    if not abs(factor) <= LARGEST_FACTOR:
        raise UserError(f"edits: {shown(line)} must end with a factor, a number up to {LARGEST_FACTOR:g}")
    return factor


def edits_of(lines: Sequence[str], inputs: Inputs, donor: Inputs | None) -> list[tuple[NamedEdit, Edit]]:
    """Parse the edits of a text; return each with its `Edit` for interventions.

    Args:
        lines: The edits as written.
        inputs: The text.
        donor: The text to patch from.

    Raises:
        UserError: a line is not an edit of this model and text; it is named.
    """
    named = [parse_edit(line) for line in lines]
    names = list(hook_points(inputs.model))
    known = [each.site.name for each in named if each.site.name in names]
    own = _activations(inputs, known)
    donated = {} if donor is None else _activations(donor, known)
    found = []
    for each in named:
        try:
            [name] = matching(each.site.name, names)
            each.site.index(name, own[name])
            if each.verb == "patch" and donor is None:
                raise UserError("it needs a donor text, and none is given (donor)")
            found.append((each, _edit_of(each, own, donated)))
        except UserError as error:
            raise UserError(f"edits: {shown(each.line)}: {error}") from None
    return found


def _activations(inputs: Inputs, names: Sequence[str]) -> Activations:
    """Return a text's activations at some points, with attention by its formula; callers must not change them."""
    if not names:
        return {}
    key = ("activations in the open", inputs.key, tuple(sorted(set(names))))
    return once(inputs.model, key, lambda: activations(inputs.model, inputs.arguments, names))


def _edit_of(named: NamedEdit, own: Activations, donated: Activations) -> Edit:
    site = named.site
    match named.verb:
        case "zero":
            return zero(site)
        case "scale":
            return change(site, lambda part: part * named.factor)
        case "mean":
            return mean(site, [own])
        case _:
            return patch_in_corner(site, donated)


def patch_in_corner(site: Site, donor: Activations) -> Edit:
    """Replace the site by its value in another text, as far as both texts reach.

    Unlike `patch` it works while the text grows: positions after the donor's last one are unchanged.
    """

    def of_donor(part: Tensor, name: str) -> Tensor:
        other = donor[name]
        own = other[site.index(name, other)]
        corner = tuple(slice(0, min(pair)) for pair in zip(part.shape, own.shape, strict=True))
        patched = part.clone()
        patched[corner] = own[corner].to(part.dtype)
        return patched

    return Edit(site, of_donor)


def within(
    edits: Sequence[tuple[NamedEdit, Edit]], n_tokens: int, inputs: Inputs
) -> list[tuple[NamedEdit, Edit]]:
    """Return the edits at the text's first tokens, without those at later positions."""
    return [
        (named, edit)
        for named, edit in edits
        if named.site.position is None or _is_of_source(named, inputs) or named.site.position < n_tokens
    ]


def _is_of_source(named: NamedEdit, inputs: Inputs) -> bool:
    return inputs.source is not None and of_source(named.site.name)
