"""The configuration of a run: its sections, their defaults, and the checks that they fit each other."""

from typing import Literal

import torch
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from clearformer.config import PathName, Spec
from clearformer.data import Data, TextData, kind_of
from clearformer.device import device_name
from clearformer.errors import ConfigError
from clearformer.model.config import ModelConfig
from clearformer.text import CharTokenizerSpec, TokenizerConfig
from clearformer.training.objectives import (
    DEFAULT_BATCH_SIZE,
    NextTokenObjective,
    Objective,
)
from clearformer.training.optim.optimizers import AdamW, OptimizerSpec
from clearformer.training.optim.schedules import Cosine, Schedule

PRESETS_FOR = {
    "decoder": "quick",
    "encoder": "masked or classify",
    "encoder-decoder": "translate",
    "text": "quick or masked",
    "pairs": "translate",
    "labelled": "classify or masked",
}
"""The presets to begin with, by family of models and by kind of data."""


class TrainConfig(Spec):
    """How a model is trained.

    Attributes:
        objective: What the model learns: the next token, a translation, masked tokens, or the class of a text.
        pretrained: The folder of a run whose weights this one begins with (the command line takes its name).
        batch_size: Rows in one step, over all processes: labelled texts, or windows of `model.max_seq_len` tokens.
        grad_accum_steps: Parts that a batch is split into, so that less memory is needed for the same step.
        max_steps: The run ends after this many steps ...
        max_seconds: ... or after this many seconds of training, whichever comes first. Start, compilation,
            evaluation and checkpoints do not count.
        max_wall_seconds: ... or when the whole command has taken this many seconds by the clock, including its start,
            data preparation, compilation, evaluations, the last checkpoint and the report. Schedules follow the time
            of the steps. The report leaves out a classifier's baseline that would take more than a fifth of it.
        patience: ... or when this many checkpoints in a row have no lower held-out loss than the best before them
            (early stopping), on at least as many rows as ten steps read. The best one is kept too (`--checkpoint
            best`). Schedules follow the other limits.
        lr: The learning rate where the schedule's factor is 1.
        optimizer: See `training/optim/optimizers.py`.
        schedule: The factor of the learning rate over the run, after the warm-up; see `training/optim/schedules.py`.
        warmup_steps: Steps in which the learning rate rises linearly: from lr / warmup_steps in the first.
        grad_clip_norm: The largest norm of all gradients together; larger ones are scaled down to it.
        label_smoothing: The share of each target's probability that is spread over all tokens or classes.
        r_drop: R-Drop's alpha (Wu et al. 2021; there 5 for translations, 1 for classes). Every row goes through the
            model twice with different dropout, and a term of the loss draws the two predictions together. A step takes
            twice the time and memory. 0 is one pass.
        ema: The decay of a moving average of the weights; if set, the average is what is evaluated and saved.
        eval_every: Steps between evaluations. Every checkpoint and the end of the run have one too.
        eval_flops_fraction: The cost of evaluations, as a fraction of the training FLOPs since the last one of the same
            kind (with a checkpoint, or between checkpoints). It decides how many rows of the held-out split they read:
            always the same ones, evenly spaced. The last evaluation reads the whole split; with `none` all do.
        log_every: Steps between lines of metrics.jsonl; evaluations have lines too.
        checkpoint_every: Steps between checkpoints; `none` writes only the last.
        keep_last: How many of the newest checkpoints are kept, in addition to the best one. Those that a signal left
            between two due ones take no place of these.
        snapshot_megabytes: The room for all snapshots. They hold the weights alone: after 0, 1, 2, 4, 8 ... steps, then
            evenly spaced, further apart as the run gets longer. `none` keeps none, and neither does a model so large
            that only a few would fit.
        sample_every: Steps between samples printed during training; `none` prints none. The next three settings are
            those of `generate`.
        device: `auto` (CUDA where it is, else the CPU), `cpu`, `mps`, `cuda`, or one GPU of several: `cuda:1`.
        dtype: The type of the matrix products; weights stay float32. `auto` takes bfloat16 where it is faster.
        compile: Whether to use torch.compile; with `auto`, where it pays within the run.
        deterministic: Whether to make runs repeatable bit for bit. On a GPU this takes deterministic kernels, which a
            CPU always uses. On a CPU it fixes the number of threads, on which the last bits may depend.
        tensorboard: Whether to write the metrics to `tensorboard/` in the run's folder.
    """

    objective: Objective = NextTokenObjective()
    pretrained: PathName | None = None
    batch_size: PositiveInt = DEFAULT_BATCH_SIZE
    grad_accum_steps: PositiveInt = 1
    max_steps: PositiveInt | None = None
    max_seconds: PositiveFloat | None = None
    max_wall_seconds: PositiveFloat | None = None
    patience: PositiveInt | None = None
    lr: PositiveFloat = 1e-3
    optimizer: OptimizerSpec = AdamW()
    schedule: Schedule = Cosine()
    warmup_steps: NonNegativeInt = 0
    grad_clip_norm: PositiveFloat | None = 1.0
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    r_drop: NonNegativeFloat = 0.0
    ema: float | None = Field(default=None, gt=0, lt=1)
    eval_every: PositiveInt = 250
    eval_flops_fraction: float | None = Field(default=0.005, gt=0, le=1)
    log_every: PositiveInt = 10
    checkpoint_every: PositiveInt | None = 1000
    keep_last: PositiveInt = 2
    snapshot_megabytes: PositiveFloat | None = 150.0
    sample_every: PositiveInt | None = None
    sample_prompt: str = "\n"
    sample_tokens: PositiveInt = 200
    sample_temperature: NonNegativeFloat = 0.8
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: Literal["auto"] | bool = "auto"
    deterministic: bool = False
    tensorboard: bool = False

    @property
    def matrix_dtype(self) -> torch.dtype:
        """The type of the matrix products; float32 while `dtype` is still `auto`."""
        return torch.bfloat16 if self.dtype == "bfloat16" else torch.float32

    @property
    def n_passes(self) -> int:
        """How often a row goes through the model in a step."""
        return 2 if self.r_drop else 1

    @field_validator("device")
    @classmethod
    def _is_a_device_s_name(cls, device: str) -> str:
        return device_name(device)

    @model_validator(mode="after")
    def _has_an_end(self) -> "TrainConfig":
        if self.max_steps is None and self.max_seconds is None and self.max_wall_seconds is None:
            raise ConfigError(
                "train.max_steps: no limit is set; set train.max_steps, train.max_seconds or train.max_wall_seconds"
            )
        return self

    @property
    def ends_in_warmup(self) -> bool:
        """Whether the run ends before its learning rate reaches `lr`."""
        return self.max_steps is not None and self.warmup_steps > self.max_steps > 1

    @model_validator(mode="after")
    def _patience_has_checkpoints(self) -> "TrainConfig":
        if self.patience is not None and self.checkpoint_every is None:
            raise ConfigError(
                f"train.patience={self.patience} counts checkpoints, but train.checkpoint_every=none writes only the "
                "last; set a number of steps"
            )
        return self

    @model_validator(mode="after")
    def _batches_divide(self) -> "TrainConfig":
        self.objective.check_batches(self.batch_size, self.grad_accum_steps)
        return self

    @model_validator(mode="after")
    def _sample_settings_have_an_effect(self) -> "TrainConfig":
        for name in ("sample_prompt", "sample_tokens", "sample_temperature"):
            value = getattr(self, name)
            if not self.objective.continues_prompts and value != type(self).model_fields[name].default:
                raise ConfigError(
                    f"train.{name}: only a language model continues a prompt, but "
                    f"train.objective.kind={self.objective.kind} samples held-out texts; remove it"
                )
            if self.sample_every is None and value != type(self).model_fields[name].default:
                raise ConfigError(
                    f"train.{name}: has no effect without train.sample_every; set that too, or remove train.{name}"
                )
        return self


def presets_for(*kinds: str) -> str:
    """Return advice for an error message: the presets to begin with for a family of models or a kind of data."""
    return "; ".join(f"for {what} use the preset {PRESETS_FOR[what]}" for what in kinds)


class RunConfig(Spec):
    """A whole run: all the settings, seed included, that decide its result on one machine."""

    seed: int = Field(default=1, ge=0, lt=2**32)  # torch draws weights from 32 bits
    model: ModelConfig = ModelConfig()
    data: Data = TextData()
    tokenizer: TokenizerConfig = CharTokenizerSpec()
    train: TrainConfig = TrainConfig(max_steps=1000)

    @model_validator(mode="after")
    def _objective_fits(self) -> "RunConfig":
        objective, family = self.train.objective, self.model.family
        what = f"train.objective.kind: {objective.kind}"
        if family != objective.family:
            if self.train.pretrained is not None:
                raise ConfigError(
                    f"{what} needs model.family={objective.family}, and train.pretrained={self.train.pretrained} is "
                    f"{family}; begin with the weights of another family, or remove train.pretrained"
                )
            raise ConfigError(
                f"{what} needs model.family={objective.family}, but this is {family}; "
                f"{presets_for(objective.family, family)}"
            )
        if self.data.form not in objective.data_kinds:
            raise ConfigError(
                f"{what} needs data.kind={' or '.join(objective.data_kinds)}, but this is {self.data.kind}; "
                f"{presets_for(*objective.data_kinds, self.data.form)}"
            )
        objective.check_model(self.model)
        objective.check_tokenizer(self.tokenizer)
        objective.check_data(self.data.form)
        return self

    @model_validator(mode="after")
    def _two_passes_differ(self) -> "RunConfig":
        objective = self.train.objective
        if self.train.r_drop and not objective.takes_r_drop:
            raise ConfigError(
                f"train.r_drop: train.objective.kind={objective.kind} has no two-pass loss; remove it"
            )
        if self.train.r_drop and not (self.model.dropout or getattr(self.model.ffn, "dropout", 0)):
            raise ConfigError(
                "train.r_drop: compares two passes with different dropout, and model.dropout=0 makes them equal; set "
                "model.dropout or remove train.r_drop"
            )
        return self

    @model_validator(mode="after")
    def _an_encoder_has_room(self) -> "RunConfig":
        if self.model.family == "encoder" and self.model.max_seq_len < 3:
            raise ConfigError(
                f"model.max_seq_len: {self.model.max_seq_len} leaves no room for a text between [CLS] and [SEP]; "
                "choose 3 or more"
            )
        return self

    @model_validator(mode="after")
    def _name_is_of_the_kind(self) -> "RunConfig":
        name = self.data.name
        kind = None if name is None else kind_of({"name": name})
        if kind is not None and kind != self.data.form:
            raise ConfigError(
                f"data.name={name}: its data.kind is {kind}, and this run's is {self.data.kind}; {presets_for(kind)}"
            )
        return self


# A resumed run may change only its length, its device, and what it evaluates, reports and keeps.
TRAIN_MAY_CHANGE = frozenset(
    (
        "max_steps",
        "max_seconds",
        "max_wall_seconds",
        "patience",
        "eval_every",
        "eval_flops_fraction",
        "log_every",
        "checkpoint_every",
        "keep_last",
        "snapshot_megabytes",
        "sample_every",
        "sample_prompt",
        "sample_tokens",
        "sample_temperature",
        "tensorboard",
        "device",
    )
)
MAY_CHANGE = frozenset(f"train.{name}" for name in TRAIN_MAY_CHANGE)
