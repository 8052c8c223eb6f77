"""Weight edits, on a copy: what would the model do with other weights?

    without = edited_copy(model, {"blocks.0.mlp.W_out.weight": torch.zeros_like})
    without = copy_without_heads(model, [Site("blocks.1.attn.hook_z", head=3)])

The model's own weights stay unchanged, to the bit.
"""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn

from clearformer.decoding.arguments import check_kind
from clearformer.errors import UserError, did_you_mean
from clearformer.lens.activations import has_known_matrices
from clearformer.lens.causal.sites import Site, heads_of
from clearformer.lens.inputs import check_model
from clearformer.model import Transformer


def edited_copy(
    model: Transformer, changes: Mapping[str, Tensor | Callable[[Tensor], Tensor]]
) -> Transformer:
    """Return a copy of a model with other weights.

    Args:
        model: The model to copy.
        changes: New values, or a function of the old ones, by the parameter's name in `model.state_dict()`.

    Raises:
        UserError: there is no such parameter (the nearest is suggested), or the shape differs.
    """
    check_model(model)
    check_kind("changes", changes, Mapping)
    copy = deepcopy(model)
    parameters = dict(copy.named_parameters())
    with torch.no_grad():
        for name, change in changes.items():
            if name not in parameters:
                raise UserError(f"this model has no parameter {name!r}{did_you_mean(name, parameters)}")
            old = parameters[name]
            new = change(old.detach().clone()) if callable(change) else change
            check_kind(name, new, Tensor)
            if new.shape != old.shape:
                raise UserError(f"{name} is {list(old.shape)}, and its new values are {list(new.shape)}")
            old.copy_(new)
    return copy


def copy_without_heads(model: Transformer, heads: Iterable[Site]) -> Transformer:
    """Return a copy whose output matrices W_O ignore some heads: zero ablation, in the weights.

    Args:
        model: The model to copy.
        heads: Heads from `heads_of`.

    Raises:
        UserError: a site is not a head, or its attention has no output matrix.
    """
    known, copy = heads_of(model), deepcopy(model)
    for site in heads if isinstance(heads, Iterable) else [heads]:
        if site not in known:
            raise UserError(f"{site} is not a head of this model; heads_of(model) lists them")
        layer = copy.get_submodule(site.name.rpartition(".")[0])
        if not has_known_matrices(layer) or not isinstance(layer.W_O, nn.Linear):
            raise UserError(
                f"{site} has no output matrix whose weights could be zeroed; edit its activation: zero(site)"
            )
        weight = layer.W_O.weight
        with torch.no_grad():
            weight.unflatten(1, (layer.n_heads, -1))[:, site.head] = 0  # [D H Dh]
    return copy
