"""The tests that every kind of this package passes, to run on a kind of your own.

    from clearformer.testing import check_kind

    def test_my_attention() -> None:
        check_kind(Decayed(rate=0.5))

Each check raises an AssertionError that says what is wrong.
"""

import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from clearformer.config import Spec, resolve, slot_variants, to_toml
from clearformer.cost import NoFormulaError, analytic_parameters, measured_parameters
from clearformer.data.config import DataSpec
from clearformer.errors import UserError
from clearformer.hooks import hook_points
from clearformer.model import Decoder, ModelConfig, build, build_on_meta
from clearformer.registry import SLOTS
from clearformer.training.config import RunConfig
from clearformer.training.loop import train
from clearformer.training.objectives import DEFAULT_BATCH_SIZE, ObjectiveSpec
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.checkpoint import MODEL, step_folder
from clearformer.training.store.folder import RunFolder

B, T, V = 2, 11, 13  # rows, positions and tokens: no two axes have the same size
D_MODEL = 24
PLACE = 4  # the position of the token that is changed
N_STEPS = 4
EXAMPLES = {
    "text": ("text.txt", "a text of a few words, and of a few more of them\n" * 40),
    "pairs": ("pairs.tsv", "".join(f"{n} of a few words\ta few words: {n}\n" for n in range(40))),
    "labelled": (
        "texts.tsv",
        "text\tlabel\n"
        + "".join(f"{n} of a few words\t{'even' if n % 2 == 0 else 'odd'}\n" for n in range(40)),
    ),
}
"""A file of each form of data, by its name and with what is in it."""
LEARNERS = {
    "text": ("decoder", "next_token", 4),
    "pairs": ("encoder-decoder", {"kind": "translation", "batch_tokens": 64}, DEFAULT_BATCH_SIZE),
    "labelled": ("encoder", "classification", 4),
}
"""The family, the objective and the batch size with which to train on each form of data."""
OF_MODELS = ("attention", "position", "norm", "ffn", "init")


def check_kind(spec: Spec, **model: Any) -> None:
    """Check that a registered kind does what training and generation rely on.

    For a part of the model: no token changes earlier logits, and no gradient comes from a later token; the cache,
    tokens dropped from it and padding change no logits; hooks on the attention pattern change neither logits nor
    gradients; the parameters are as many as counted. For every kind: settings read back as written, training changes
    the weights, and a resumed run equals one never stopped.

    Args:
        spec: The kind, with the settings to check.
        **model: Other settings of the model that contains it, such as `d_model=32`.

    Raises:
        AssertionError: a check failed, or the kind raised an error in it; the message says which.
        UserError: the kind is not registered.
    """
    slot = slot_of(spec)
    config = model_config(slot, spec, model)
    with failing_in("settings"):
        check_settings(slot, spec, config)
    for name, check in MODEL_CHECKS.items() if slot in OF_MODELS else ():
        torch.manual_seed(0)
        with failing_in(name):
            check(perturbed(build(config).double().eval()))
    with failing_in("resume"):
        check_resume(slot, spec, config)


@contextmanager
def failing_in(name: str) -> Iterator[None]:
    """Raise what the kind raises in the `with` block as an AssertionError that names the check."""
    try:
        yield
    except (AssertionError, UserError):
        raise
    except Exception as error:
        raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error


def slot_of(spec: Spec) -> str:
    """Return the slot that a kind is registered in.

    Raises:
        UserError: it is not registered.
    """
    for slot, (owner, name) in SLOTS.items():
        if type(spec) in slot_variants(owner.model_fields[name]).values():
            return slot
    raise UserError(f"{type(spec).__name__} is not registered: use @cf.register(SLOT)")


def model_config(slot: str, spec: Spec, settings: dict[str, Any]) -> ModelConfig:
    """Return the configuration of a small decoder that contains the kind."""
    sizes = {"vocab_size": V, "d_model": D_MODEL, "n_layers": 2, "max_seq_len": 2 * T}
    return ModelConfig(**(sizes | ({slot: spec} if slot in OF_MODELS else {}) | settings))


# --- any kind ---------------------------------------------------------------------------------------------


def check_settings(slot: str, spec: Spec, model: ModelConfig) -> None:
    """Check that settings written to config.toml read back as the same settings."""
    whole = run_config(slot, spec, model, Path())
    again = resolve(RunConfig, tomllib.loads(to_toml(whole)))
    assert again == whole, f"settings: config.toml with {spec} reads back as something else"


def check_resume(slot: str, spec: Spec, model: ModelConfig) -> None:
    """Check that a run resumed from its middle ends with the weights of one that was never stopped."""
    with tempfile.TemporaryDirectory() as folder:
        for name, example in EXAMPLES.values():
            (Path(folder) / name).write_text(example)
        config, run = run_config(slot, spec, model, Path(folder)), RunFolder(Path(folder) / "run")
        whole = train(config, run, Reporter()).model.state_dict()
        first = load_file(step_folder(run.snapshots, 0) / MODEL)
        moved = any(not torch.equal(weight, first[name]) for name, weight in whole.items())
        assert moved, "training: no weight has changed"
        shutil.rmtree(step_folder(run.checkpoints, N_STEPS))
        again = train(config, run, Reporter(), resume=True).model.state_dict()
    for name, weight in whole.items():
        assert torch.equal(weight, again[name]), f"resume: {name} differs from an uninterrupted run"


def run_config(slot: str, spec: Spec, model: ModelConfig, folder: Path) -> RunConfig:
    """Return the configuration of a short run that contains the kind, on one of the examples in a folder."""
    form = spec.data_kinds[0] if isinstance(spec, ObjectiveSpec) else "text"
    settings = {
        "model": model.replace(vocab_size=None),
        "data": {"kind": form, "path": str(folder / EXAMPLES[form][0])},
        "train": {
            "max_steps": N_STEPS,
            "checkpoint_every": N_STEPS // 2,
            "batch_size": 4,
            "schedule": "constant",
            "device": "cpu",
            "dtype": "float32",
            "compile": False,
        },
    }
    owner, name = SLOTS[slot]
    if isinstance(spec, DataSpec):
        family, objective, batch_size = LEARNERS[spec.form]
        settings["model"] = model.replace(vocab_size=None, family=family)
        settings["train"] |= {"objective": objective, "batch_size": batch_size}
    elif isinstance(spec, ObjectiveSpec):
        settings["model"] = model.replace(vocab_size=None, family=spec.family)
        settings["train"]["batch_size"] = LEARNERS[form][2]
    if owner is RunConfig:
        settings[name] = spec
    elif slot not in OF_MODELS:
        settings["train"][name] = spec
    return RunConfig(**settings)


# --- a part of the model ----------------------------------------------------------------------------------


def check_causality(model: Decoder) -> None:
    """Check that a changed token leaves earlier logits as they were."""
    tokens = text()
    changed = tokens.clone()
    changed[:, PLACE] = (tokens[:, PLACE] + 1) % V
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert before.isfinite().all(), "causality: the logits are not finite"
    assert close(after[:, :PLACE], before[:, :PLACE]), "causality: a changed token changes earlier logits"


def check_gradients(model: Decoder) -> None:
    """Check that no gradient comes from a later token, and that all parameters' gradients are finite."""
    x = torch.randn(B, T, model.config.d_model, dtype=torch.float64, requires_grad=True)
    with model.hooked({"hook_embed": lambda _, __: x}):
        logits = model(text())
    logits[:, PLACE].square().sum().backward()
    assert x.grad is not None
    assert (x.grad[:, PLACE + 1 :] == 0).all(), "causality: a gradient comes from a later token"
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert parameter.grad.isfinite().all(), f"gradients: the gradient of {name} is not finite"


def check_cache(model: Decoder) -> None:
    """Check that logits with the cache equal those without, in chunks of any size and for selected rows."""
    tokens = text()
    with torch.no_grad():
        expected = model(tokens)
        for sizes in ([1] * T, [4, 1, T - 5]):
            cache = model.new_cache()
            parts = [model(chunk, cache=cache) for chunk in tokens.split(sizes, dim=1)]
            assert close(torch.cat(parts, 1), expected), f"cache: chunks of {sizes} tokens give other logits"
        cache, rows = model.new_cache(), torch.tensor([1, 0, 1])
        model(tokens[:, :5], cache=cache)
        cache.select(rows)
        chosen = model(tokens[rows, 5:], cache=cache)
    assert close(chosen, expected[rows, 5:]), "cache: selected rows do not continue as their own texts"


def check_drafts(model: Decoder) -> None:
    """Check that tokens dropped from the cache leave no trace, if it can drop any."""
    tokens, cache, n_kept = text(), model.new_cache(), [1, 2]
    with torch.no_grad():
        model(tokens[:, :5], cache=cache)
        try:
            cache.hold()
        except UserError:
            return
        model(tokens[:, 5:8], cache=cache)
        cache.keep(torch.arange(3) < torch.tensor(n_kept)[:, None])
        logits = model(tokens[:, 8:], cache=cache)
        for row, n in enumerate(n_kept):
            rest = model(torch.cat([tokens[row, : 5 + n], tokens[row, 8:]])[None])[0, 5 + n :]
            assert close(logits[row], rest), (
                "drafts: tokens that were dropped from the cache change later logits"
            )


def check_padding(model: Decoder) -> None:
    """Check that padding on either side changes no logits and makes no NaN."""
    tokens, places = text(), torch.arange(T)
    lengths = torch.tensor([7, 4])[:, None]
    for side, real in (("left", places >= T - lengths), ("right", places < lengths)):
        with torch.no_grad():
            logits = model(tokens, real)
            alone = [model(tokens[row][real[row]][None])[0] for row in range(B)]
        assert logits.isfinite().all(), f"padding: on the {side} it makes the logits non-finite"
        for row in range(B):
            assert close(logits[row][real[row]], alone[row]), f"padding: on the {side} it changes the logits"


def check_pattern(model: Decoder) -> None:
    """Check that a hook on the attention pattern changes neither logits nor gradients."""
    names = [name for name in hook_points(model) if name.endswith("hook_pattern")]
    tokens, found = text(), []
    for looks in ({}, dict.fromkeys(names, look_at_nothing)):
        model.zero_grad()
        with model.hooked(looks) if looks else nullcontext():
            logits = model(tokens)
        logits.sin().sum().backward()
        found.append([logits.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for fused, plain in zip(*found, strict=True):
        assert close(plain, fused), "fused = plain: logits or gradients differ when the pattern is captured"


def check_counts(model: Decoder) -> None:
    """Check the shapes of a model on the meta device, and the number of parameters if there is a formula."""
    shapes = {name: weight.shape for name, weight in build_on_meta(model.config).state_dict().items()}
    assert shapes == {name: weight.shape for name, weight in model.state_dict().items()}, (
        "counts: built without memory, its shapes differ"
    )
    try:
        by_formula = analytic_parameters(model.config)
    except NoFormulaError:  # not every kind has one
        return
    counted = measured_parameters(model)
    assert by_formula == counted, f"counts: by formula {by_formula}, in the model {counted}"


MODEL_CHECKS: dict[str, Callable[[Decoder], None]] = {
    "causality": check_causality,
    "gradients": check_gradients,
    "cache": check_cache,
    "drafts": check_drafts,
    "padding": check_padding,
    "fused = plain": check_pattern,
    "counts": check_counts,
}


@torch.no_grad()
def perturbed(model: Decoder) -> Decoder:
    """Move vectors and all-zero parameters away from their initial 0 or 1, which would hide mistakes."""
    for parameter in model.parameters():
        if parameter.dim() == 1 or not parameter.any():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def text() -> Tensor:
    """Return tokens [B T], the same every time."""
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(1))


def look_at_nothing(_: Tensor, __: Any) -> None:
    return None


def close(a: Tensor, b: Tensor) -> bool:
    """Whether two results in float64 are the same up to rounding."""
    return torch.allclose(a, b, rtol=1e-9, atol=1e-9)
