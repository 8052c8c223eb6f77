"""What benchmarks/gpu.py has found, as Markdown for benchmarks/RESULTS.md."""

import statistics
from typing import Any

from gpu_stages import STAGES

DONE = "done"
RATES = ("bfloat16", "float32", "copy", "read")
TRAINING = (
    "training | side | tokens/s | ms a step | MFU | of the measured rate | memory, planned | clearformer is"
)
GENERATION = "generation | side | tokens/s | weights read, of the measured rate | clearformer is"


def table(results: dict[str, Any]) -> str:
    """All figures, as they stand in benchmarks/RESULTS.md."""
    stages = results["stages"]
    done = {name: stage["figures"] for name, stage in stages.items() if stage["state"] == DONE}
    parts = ["A dry run: no figure here means anything."] if any(s["dry"] for s in stages.values()) else []
    parts.append(machine_lines(done))
    if "tests" in done:
        tests = done["tests"]
        parts.append(
            f"Tests on the GPU: {tests['passed']} passed, {tests['failed']} failed, {tests['skipped']} skipped."
        )
        parts += [line.removeprefix("figure: ") for line in tests["told"]]
    training = {name: figures["comparison"] for name, figures in done.items() if "comparison" in figures}
    if training:
        parts.append(training_table(training))
    if "shakespeare" in done:
        parts.append(shakespeare_lines(done["shakespeare"]))
    if "decode" in done:
        parts.append(decoding_table(done["decode"]["models"]))
    missing = [
        f"{name}: {stages[name]['state']}: {stages[name]['error']}"
        if name in stages
        else f"{name}: not run yet"
        for name in STAGES
        if name not in done
    ]
    return "\n\n".join(part for part in [*parts, "\n".join(missing)] if part) + "\n"


def machine_lines(done: dict[str, Any]) -> str:
    """The machine; every one, should the stages have been run on several."""
    machines = [figures["machine"] for figures in done.values() if "machine" in figures]
    names = ("device", "driver", "cuda", "torch", "python", "processor", "cores")
    lines = dict.fromkeys(", ".join(f"{name} {m[name]}" for name in names if m.get(name)) for m in machines)
    if not machines:
        return ""
    rates = {name: statistics.median(m["limits"][name] for m in machines) for name in RATES}
    peak = machines[0]["limits"]["peak"]
    limits = (
        f"At most, as measured: {rates['bfloat16'] / 1e12:,.0f} TFLOP/s in bfloat16"
        + (f" (datasheet {peak / 1e12:,.0f})" if peak else "")
        + f", {rates['float32'] / 1e12:,.1f} in float32; copying {rates['copy'] / 1e12:.2f} TB/s, reading "
        f"{rates['read'] / 1e12:.2f} TB/s."
    )
    return "\n".join([*lines, limits])


def training_table(runs: dict[str, dict[str, Any]]) -> str:
    """A line for each side of each run."""
    rows = header(TRAINING)
    for name, run in runs.items():
        for i, side in enumerate(run["sides"]):
            own = (
                f"{run['ms_per_step']:,.4g} | {share(run['mfu'])} | {share(run['of_measured_matrix_rate'])} | "
                f"{memory(run)} | "
                if i == 0
                else f"| | | | {side['clearformer_times_as_fast']:.2f} times as fast"
            )
            rows.append(f"| {name} ({run['what']}) | {side['name']} | {side['median']:,.0f} | {own} |")
        rows += [
            f"| {name} | {peer} | absent: {reason} | | | | | |" for peer, reason in run["absent"].items()
        ]
    return "\n".join(rows)


def header(names: str) -> list[str]:
    """The first two lines of a table."""
    return [f"| {names} |", "|---" * (names.count("|") + 1) + "|"]


def memory(run: dict[str, Any]) -> str:
    """Gigabytes; a CPU tells none."""
    if "peak_bytes" not in run:
        return "-"
    return f"{run['peak_bytes'] / 1e9:.1f} GB, {run['planned_bytes'] / 1e9:.1f} GB"


def shakespeare_lines(found: dict[str, Any]) -> str:
    """When nanoGPT's loss was reached, or how near to it."""
    reached = f"not reached; best {found['best_loss']:.4f}"
    if found["reached_at_step"]:
        seconds = found["reached_after_seconds"]
        reached = f"reached at step {found['reached_at_step']:,}, after {seconds:,.1f} s of training"
    return (
        f"Shakespeare by nanoGPT's recipe for a GPU: held-out loss {found['target']} {reached}. "
        f"Best {found['best_loss']:.4f}; {found['steps']:,} steps in {found['seconds']:,.1f} s, "
        f"{found['tokens_per_second']:,} tokens/s; compiled in {found['compile_seconds']} s."
    )


def decoding_table(models: dict[str, list[dict[str, Any]]]) -> str:
    """A line for each side of each model and number of streams."""
    rows = header(GENERATION)
    for name, comparisons in models.items():
        for found in comparisons:
            for i, side in enumerate(found["sides"]):
                own = (
                    f"{found['weights_read_per_second'] / 1e9:,.3g} GB/s, {share(found['of_measured_read_rate'])} | "
                    if i == 0
                    else f"| {side['clearformer_times_as_fast']:.2f} times as fast"
                )
                what = f"{name}, {found['dtype']}, streams: {found['streams']}"
                rows.append(f"| {what} | {side['name']} | {side['median']:,.0f} | {own} |")
    return "\n".join(rows)


def share(part: float | None) -> str:
    return "unknown" if part is None else f"{part:.1%}"
