"""A quick start of torch's optimisers."""

from torch.optim import Optimizer


def leave_compiler_out() -> None:
    """Let torch's optimisers work without importing its compiler, which takes over a second.

    torch excludes some methods of `Optimizer` from compilation, and imports the compiler for that on the first call of
    such a method, unless the method's exclusion is already noted. No optimiser is compiled here, so each is noted as
    its own. In a version of torch that keeps this note elsewhere the call changes nothing.
    """
    for method in vars(Optimizer).values():
        inner = getattr(method, "__wrapped__", None)
        if inner is not None:
            inner.__dict__.setdefault("__dynamo_disable", inner)
