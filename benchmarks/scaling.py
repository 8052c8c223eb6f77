"""One more token of context, layer or width costs what the formula says: seconds a token against T, d and L.

    python benchmarks/scaling.py [--rounds 5] [--dtype float32] [--json FILE] [--figure FILE.png] [--quick]

A step is what `train` takes (batch, forward, backward, clipping, AdamW), uncompiled, of as many tokens whatever the
size. Along T it is measured for full attention, for a window and for linear attention; along d, in heads of 64, and
along L for full attention. All sizes take turns, A B C ... A B C ..., after one go that does not count; a round's
figure is the median of a few steps, and a point the median of the rounds.

The prediction is FLOPs a token by `analytic_flops` (model/count.py), divided by one rate for the whole curve: the
one that makes the geometric mean of measured / predicted 1. So a curve tests the growth and not the level. The
formula counts all T x T scores of full attention, though the fused kernel skips what lies above the diagonal, and
neither the optimizer nor softmax, norms and look-ups. A window is held against two: its own keys alone ("formula"),
which it has to cost, and all T x T ("all_pairs"), which masking would.
Prints one JSON object; of each point measured / predicted, and of each curve by how much the last size costs more than
the one before it.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from clearformer.bench.machine import describe, measure_limits
from clearformer.bench.rounds import Contender, Figures, interleave
from clearformer.cost import analytic_flops
from clearformer.data import TextData
from clearformer.device import resolve_device, resolve_dtype
from clearformer.model.attention import MultiHead
from clearformer.model.config import Attention, ModelConfig
from clearformer.model.linear_attention import Linear
from clearformer.presets import preset
from clearformer.training.config import RunConfig
from clearformer.training.loop import Training
from clearformer.training.processes.distributed import Processes
from clearformer.training.reporting.report import Reporter
from clearformer.training.setup import open_task
from clearformer.training.store.folder import RunFolder

HEAD = 64
WINDOW = 128
NEVER = 10**6  # steps: more than are ever measured
KINDS: dict[str, Callable[[int], Attention]] = {
    "full": lambda n_heads: MultiHead(n_heads=n_heads),
    "window": lambda n_heads: MultiHead(n_heads=n_heads, window=WINDOW),
    "linear": lambda n_heads: Linear(n_heads=n_heads),
}


# --- what is measured -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """One model: its kind of attention, its context, width and layers."""

    kind: str
    T: int
    d: int
    L: int

    def __str__(self) -> str:
        return f"{self.kind} T={self.T} d={self.d} L={self.L}"


@dataclass(frozen=True)
class Curve:
    """Sizes that differ in one letter."""

    along: str
    sizes: Sequence[Size]

    @property
    def kind(self) -> str:
        return self.sizes[0].kind

    @property
    def held(self) -> str:
        """What all sizes share."""
        letters = {"T": "context", "d": "d_model", "L": "layers"}
        first = asdict(self.sizes[0])
        return ", ".join(
            f"{name} {first[letter]}" for letter, name in letters.items() if letter != self.along
        )


@dataclass(frozen=True)
class Extent:
    """How far the curves go, how many tokens a step has, and how many steps a round."""

    lengths: Sequence[int]
    widths: Sequence[int]
    depths: Sequence[int]
    middle: Size
    tokens: int
    steps: int

    def curves(self) -> list[Curve]:
        along_t = [
            Curve("T", [replace(self.middle, kind=kind, T=length) for length in self.lengths])
            for kind in KINDS
        ]
        along_d = Curve("d", [replace(self.middle, d=width) for width in self.widths])
        along_l = Curve("L", [replace(self.middle, L=depth) for depth in self.depths])
        return [*along_t, along_d, along_l]


WHOLE = Extent(
    lengths=(64, 128, 256, 512, 1024, 2048, 4096),
    widths=(64, 128, 192, 256, 384, 512),
    depths=(1, 2, 3, 4, 6, 8, 12),
    middle=Size("full", T=256, d=128, L=4),
    tokens=4096,
    steps=3,
)
QUICK = Extent((64, 256), (64, 128), (1, 2), Size("full", T=64, d=64, L=1), tokens=256, steps=1)


# --- measuring --------------------------------------------------------------------------------------------


def training_of(size: Size, tokens: int, dtype: str, device: torch.device, folder: Path) -> Training:
    """A run of that size, made ready as `train` makes it."""
    config = run_of(size, tokens, dtype)
    processes, reporter = Processes(), Reporter()
    task, config = open_task(config, device, processes)
    return Training(config, RunFolder(folder), task, device, processes, reporter)


def run_of(size: Size, tokens: int, dtype: str) -> RunConfig:
    """A GPT-2 of that size on the built-in text."""
    plain = preset("nanogpt-cpu")
    model = plain.model.replace(
        max_seq_len=size.T, d_model=size.d, n_layers=size.L, attention=KINDS[size.kind](size.d // HEAD)
    )
    train = plain.train.replace(
        batch_size=tokens // size.T, max_steps=NEVER, dtype=dtype, compile=False, device="auto"
    )
    return plain.replace(model=model, data=TextData(), train=train)


def seconds_per_token(training: Training, steps: int) -> float:
    """The median of some steps, after one that finds its memory again."""
    times = [take_step(training) for _ in range(steps + 1)]
    return statistics.median(times[1:]) / training.task.n_tokens(0)


def take_step(training: Training) -> float:
    """One step; returns its seconds as the run itself counts them."""
    before = training.progress.seconds
    training.step()
    return training.progress.seconds - before


def measured(trainings: dict[Size, Training], steps: int, rounds: int) -> dict[Size, Figures]:
    """Seconds a token of every size, round by round."""
    contenders = [
        Contender(str(size), lambda training=training: seconds_per_token(training, steps))
        for size, training in trainings.items()
    ]
    figures = interleave(contenders, rounds, show)
    return dict(zip(trainings, figures, strict=True))


def show(name: str, seconds: float) -> None:
    print(f"{name:28} {1e6 * seconds:9.2f} us a token", file=sys.stderr)


# --- predicting -------------------------------------------------------------------------------------------


def flops_per_token(model: ModelConfig, length: int) -> float:
    """FLOPs of a token in a text of that length, forward and backward."""
    flops = analytic_flops(model, length)
    return (sum(flops.forward.values()) + sum(flops.backward.values())) / length


def flops_by_prediction(model: ModelConfig) -> dict[str, float]:
    """FLOPs a token as the formula has them; of a window also if it formed all T x T scores."""
    length = model.max_seq_len
    if not isinstance(model.attention, MultiHead) or model.attention.window is None:
        return {"formula": flops_per_token(model, length)}
    full = model.replace(attention=model.attention.replace(window=None))
    # A token that reads W keys costs what one in a text of W tokens does.
    return {
        "formula": flops_per_token(full, min(length, model.attention.window)),
        "all_pairs": flops_per_token(full, length),
    }


def fitted_rate(flops: Sequence[float], seconds: Sequence[float]) -> float:
    """The one FLOP/s by which measured / predicted is 1 in the geometric mean."""
    return math.exp(statistics.fmean(math.log(f / s) for f, s in zip(flops, seconds, strict=True)))


# --- telling ----------------------------------------------------------------------------------------------


def told(curve: Curve, figures: dict[Size, Figures], models: dict[Size, ModelConfig]) -> dict[str, Any]:
    """A curve's points beside what was predicted of them."""
    seconds = [figures[size].median for size in curve.sizes]
    flops = [flops_by_prediction(models[size]) for size in curve.sizes]
    predicted, rates = {}, {}
    for name in flops[0]:
        of_sizes = [by_name[name] for by_name in flops]
        rates[name] = fitted_rate(of_sizes, seconds)
        predicted[name] = [count / rates[name] for count in of_sizes]
    points = [
        {
            curve.along: getattr(size, curve.along),
            "us_per_token": micro(seconds[i]),
            "rounds": [micro(value) for value in figures[size].values],
            "tokens_per_second": round(1 / seconds[i]),
            "predicted_us": {name: micro(values[i]) for name, values in predicted.items()},
            "measured_over": {name: round(seconds[i] / values[i], 3) for name, values in predicted.items()},
        }
        for i, size in enumerate(curve.sizes)
    ]
    return {
        "along": curve.along,
        "attention": curve.kind,
        "held": curve.held,
        "fitted_gflops_per_second": {name: round(rate / 1e9, 2) for name, rate in rates.items()},
        "points": points,
        "last_over_one_before": {
            name: round(values[-1] / values[-2], 3)
            for name, values in {"measured": seconds, **predicted}.items()
        },
    }


def micro(seconds: float) -> float:
    return float(f"{1e6 * seconds:.4g}")


# --- drawing ----------------------------------------------------------------------------------------------

COLORS = {"full": "C0", "window": "C1", "linear": "C2"}
NAMES = {"full": "full", "window": f"window of {WINDOW}", "linear": "linear"}
PANELS = {"T": "context T", "d": "width d", "L": "layers L"}


def draw(curves: list[dict[str, Any]], tokens: int, file: Path) -> None:
    """Microseconds a token against each letter: points as measured, lines by the formula."""
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(PANELS), figsize=(12, 4.2), layout="constrained")
    for axes, (letter, title) in zip(panels, PANELS.items(), strict=True):
        along = [curve for curve in curves if curve["along"] == letter]
        for curve in along:
            draw_curve(axes, curve, NAMES[curve["attention"]])
        sizes = [point[letter] for point in along[0]["points"]]
        axes.set(xscale="log", yscale="log", xlabel=title)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set_xticks([], minor=True)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
        axes.tick_params(axis="y", which="both", labelsize=9)
        axes.grid(axis="y", which="both", color="0.92")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(along[0]["held"], fontsize=9, color="0.4")
        if letter == "T":
            axes.plot([], [], color="0.4", lw=1.2, label="by the formula, one rate a curve")
            axes.plot([], [], color=COLORS["window"], lw=1.2, ls=":", label="the window, if all T x T")
            axes.legend(frameon=False, fontsize=8, loc="upper left")
    panels[0].set_ylabel("microseconds a token")
    figure.suptitle(f"A training step of {tokens:,} tokens", fontsize=11)
    figure.savefig(file, dpi=150)


def draw_curve(axes: Any, curve: dict[str, Any], name: str) -> None:
    """One curve's points, their rounds' range, and what was predicted."""
    color, points = COLORS[curve["attention"]], curve["points"]
    sizes = [point[curve["along"]] for point in points]
    axes.plot(sizes, [point["us_per_token"] for point in points], "o", color=color, ms=5, label=name)
    axes.vlines(
        sizes, [min(p["rounds"]) for p in points], [max(p["rounds"]) for p in points], color=color, lw=1
    )
    for prediction, style in (("formula", "-"), ("all_pairs", ":")):
        if prediction in points[0]["predicted_us"]:
            line = [point["predicted_us"][prediction] for point in points]
            axes.plot(sizes, line, style, color=color, lw=1.2, alpha=0.8)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, help="default: 5, and 1 with --quick")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--quick", action="store_true", help="a few tiny sizes, to see that it works")
    arguments = parser.parse_args()
    extent = QUICK if arguments.quick else WHOLE
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    device = resolve_device("auto")
    dtype = resolve_dtype(arguments.dtype, device)  # decided once, so that all sizes are of one type
    curves = extent.curves()
    with tempfile.TemporaryDirectory() as scratch:
        trainings = {
            size: training_of(size, extent.tokens, dtype, device, Path(scratch))
            for curve in curves
            for size in curve.sizes
        }
        figures = measured(trainings, extent.steps, rounds)
    models = {size: training.config.model for size, training in trainings.items()}
    result = {
        "machine": describe(device, measure_limits(device)),
        "dtype": dtype,
        "tokens_per_step": extent.tokens,
        "rounds": rounds,
        "steps_a_round": extent.steps,
        "head": HEAD,
        "window": WINDOW,
        "curves": [told(curve, figures, models) for curve in curves],
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.figure:
        draw(result["curves"], extent.tokens, arguments.figure)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
