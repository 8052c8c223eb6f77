"""Settings: every key of every preset with values of any kind, as key=value and as a TOML file."""

import json
import random
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from clearformer.config import Spec, parse_override, resolve, slot_variants, to_toml
from clearformer.presets import PRESETS
from clearformer.resolving import resolve_run
from clearformer.training.config import RunConfig
from clearformer.training.planning.run_plan import plan_run

from ..cases import Case, Violation
from ..mutations import RAW, drawn_value, marked, spoil_bytes, toml, unmarked
from ..mutations import draw_bytes_step as drawn_bytes

PLANNED = "and planned"
NAMES = [name for name in PRESETS if name != "auto"]  # which measures this machine first
LITERALS = ["2", "3", "8", "17", "0.1", "1e-3", "true", "false", "none", "auto", "float32", "kind"]


class Settings:
    """Resolved, written and read back; some are planned too, without memory for any tensor.

    A base is a preset, a form of writing, and whether the run is planned. A step is a key and a value's name; a name
    that begins with `=` is the value itself.
    """

    name = "settings"

    def prepare(self, originals: Path) -> None:
        """There is nothing to write."""

    def draw(self, rng: random.Random, originals: Path) -> Case:
        """One to three keys of a preset."""
        preset = rng.choice(NAMES)
        form = rng.choice(["arguments", "toml"])
        planned = f" {PLANNED}" if rng.random() < 0.02 else ""
        keys = sorted(set(keys_of(RunConfig)))
        steps: list[list[Any]] = []
        for _ in range(rng.choice([1, 1, 2, 3])):
            key, literals = rng.choice(keys)
            usual = rng.random() < 0.5
            steps.append([key, f"={rng.choice([*literals, *LITERALS])}" if usual else drawn_value(rng)])
        if form == "toml" and rng.random() < 0.1:
            steps.append(["", *drawn_bytes(rng)])
        return Case(self.name, f"{preset} by {form}{planned}", tuple(steps))

    def run(self, case: Case, originals: Path, place: Path) -> None:
        """Resolve; what is accepted must be told by its TOML."""
        preset, _, rest = case.base.partition(" by ")
        arguments, file = [preset], None
        if rest.startswith("arguments"):
            arguments += [f"{key}={argument(name)}" for key, name in case.steps]
        else:
            file = place / "settings.toml"
            file.write_bytes(written(case))
        run = resolve_run(arguments, file)
        text = to_toml(run)
        text.encode()
        if resolve(RunConfig, tomllib.loads(text)) != run:
            raise Violation("its settings do not read back to equal ones")
        if rest.endswith(PLANNED):
            json.dumps(plan_run(run, "a100").parameters.total)


def argument(name: str) -> str:
    """A value as it is typed behind a key."""
    if name.startswith("="):
        return name[1:]
    if name in RAW:
        return RAW[name]
    value = marked(name)
    return value if isinstance(value, str) else toml({"x": value}).removeprefix("x = ").removesuffix("\n")


def written(case: Case) -> bytes:
    """The TOML file of a case."""
    settings: dict[str, Any] = {}
    steps = [step for step in case.steps if step[0]]
    for key, name in steps:
        table = settings
        *sections, last = key.split(".")
        for section in sections:
            if not isinstance(table.get(section), dict):
                table[section] = {}
            table = table[section]
        table[last] = parse_override(f"x{name}")["x"] if name.startswith("=") else marked(name)
    content = unmarked(toml(settings)).encode("utf-8", "surrogatepass")
    for step in case.steps:
        if not step[0]:
            content = spoil_bytes(content, step[1:])
    return content


def keys_of(spec_type: type[Spec], prefix: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every key that settings can have, in every kind of every slot, and the kinds where it is a slot."""
    for name, field in spec_type.model_fields.items():
        variants = slot_variants(field)
        yield prefix + name, tuple(variants)
        if variants:
            yield f"{prefix}{name}.kind", tuple(variants)
        for inner in [*variants.values(), *sections_of(field)]:
            yield from keys_of(inner, f"{prefix}{name}.")
    yield f"{prefix}unheard_of", ()


def sections_of(field: FieldInfo) -> list[type[Spec]]:
    """The spec of a field that is a section."""
    kind = field.annotation
    return [kind] if isinstance(kind, type) and issubclass(kind, Spec) and not field.discriminator else []
