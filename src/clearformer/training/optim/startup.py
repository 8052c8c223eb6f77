"""Faster imports for torch's optimizers."""

from torch.optim import Optimizer


def leave_compiler_out() -> None:
    """Let torch's optimizers work without importing its compiler, which takes over a second.

    torch excludes some methods of `Optimizer` from compilation. On the first call of such a method it imports the
    compiler to do so, unless the method has an attribute with its excluded form. No optimizer is compiled here, so each
    method is set as its own excluded form. In a version of torch without that attribute the call changes nothing.
    """
    for method in vars(Optimizer).values():
        inner = getattr(method, "__wrapped__", None)
        if inner is not None:
            inner.__dict__.setdefault("__dynamo_disable", inner)
