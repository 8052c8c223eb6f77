"""Beginning a run with the weights of an earlier one."""

from pathlib import Path

from torch import nn

from clearformer.errors import ConfigError, RunError
from clearformer.train.checkpoint import newest_whole
from clearformer.train.folder import RunFolder
from clearformer.train.report import Reporter

HEADS = ("head.", "head_bias", "masked_head.", "pooler.", "classifier.")  # of one task, not of the language


def load_pretrained(model: nn.Module, run: Path, reporter: Reporter) -> None:
    """Set a model's weights from the newest checkpoint of another run; heads that only one of them has stay out.

    Raises:
        RunError: the run has no whole checkpoint.
        ConfigError: the models differ in more than their heads.
    """
    checkpoint = newest_whole(RunFolder(run).checkpoints)
    if checkpoint is None:
        raise RunError(f"train.pretrained: {run} has no checkpoint")
    weights, own = dict(checkpoint.model), model.state_dict()
    for name in sorted(own.keys() | weights.keys()):
        here, there = own.get(name), weights.get(name)
        if (here is None or there is None) and name.startswith(HEADS):
            weights.pop(name, None)
        elif here is None or there is None or here.shape != there.shape:
            raise ConfigError(
                f"train.pretrained: {name} is {_shape(there)} in {run} and {_shape(here)} in this model; its sizes "
                f"must be those of {run / 'config.toml'}"
            )
    model.load_state_dict(weights, strict=False)
    reporter.say(f"beginning with the weights of {run}, step {checkpoint.progress.step}")


def _shape(tensor: object) -> str:
    return "absent" if tensor is None else "x".join(str(n) for n in getattr(tensor, "shape", ()))
