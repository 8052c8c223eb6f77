"""Settings as frozen data: a base class, TOML in and out, and `key=value` overrides.

A *section* is a `Spec` inside a `Spec` (`train.lr`). A *slot* is a union of specs told apart by `kind`
(`model.position.kind`); a bare word is short for its kind (`model.position=rope`). Where an override changes a
slot's kind, the fields that were set and that the new kind has too are kept; the others fall to its defaults.
"""

import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, Union, get_args, get_origin

import tomli_w
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from clearformer.errors import ConfigError, did_you_mean

NONE = "none"  # TOML has no null: an absent value is written as this word where the field allows it


def _not_empty(value: str) -> str:
    if not value:
        raise ValueError(
            "nothing is given (is a variable of the shell unset?): give a value, or leave the setting out"
        )
    return value


def _of_a_file(value: str) -> str:
    if "\0" in value:
        raise ValueError(f"{value!r} has a NUL character in it, which no name of a file has")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{value!a} is no name in UTF-8, which settings are kept in: rename it") from None
    return value


Name = Annotated[str, AfterValidator(_not_empty)]
"""A setting that names something: nothing is no name."""
PathName = Annotated[Name, AfterValidator(_of_a_file)]
"""A setting that names a file or a folder; nothing would be the present folder."""


class Spec(BaseModel):
    """A frozen group of settings. Unknown keys are refused with the nearest name."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            for key in data:
                if key not in cls.model_fields:
                    raise unknown_key(cls, str(key), prefix="")
        return data

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, checked like a new one."""
        kept = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**(kept | changes))


SpecT = TypeVar("SpecT", bound=Spec)


def unknown_key(spec_type: type[Spec], key: str, prefix: str) -> ConfigError:
    """The error for a key that `spec_type` does not have."""
    known = [name for name in spec_type.model_fields if name != "kind"]
    hint = did_you_mean(key, known) or f"; it has {', '.join(known) or 'no settings'}"
    kind = spec_type.model_fields.get("kind")
    owner = f"{prefix.rstrip('.') or spec_type.__name__}" + (f" of kind {kind.default!r}" if kind else "")
    return ConfigError(f"unknown key '{prefix}{key}': {owner} has no {key!r}{hint}")


def slot_variants(field: FieldInfo) -> dict[str, type[Spec]]:
    """The specs a slot can hold, by their `kind`; empty where the field is no slot."""
    if field.discriminator != "kind":
        return {}
    members: tuple[Any, ...] = get_args(field.annotation) or (field.annotation,)
    return {member.model_fields["kind"].default: member for member in members}


def explicit(spec: Spec, default: Any = None) -> dict[str, Any]:
    """What was set in a spec and not left to its defaults, with every slot's kind; nested like the spec.

    `resolve` makes an equal spec of it. Where another spec is the `default` in its place, what that one sets is
    named as well, or it would take effect.
    """
    set_by_default = default.model_fields_set if isinstance(default, Spec) else set()
    settings: dict[str, Any] = {}
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        if isinstance(value, Spec):
            if inner := explicit(value, getattr(default, name, field.default)):
                settings[name] = inner
        elif (
            name == "kind"
            or name in set_by_default
            or (name in spec.model_fields_set and value != field.default)
        ):
            settings[name] = value
    return settings


def merge(
    spec_type: type[Spec], old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = ""
) -> dict[str, Any]:
    """`old` settings with `new` ones laid over them, key by key.

    Raises:
        ConfigError: a key or a kind that `spec_type` does not have.
    """
    merged = dict(old)
    for key, value in new.items():
        if key not in spec_type.model_fields:
            raise unknown_key(spec_type, key, prefix)
        field = spec_type.model_fields[key]
        merged[key] = _merge_field(field, old.get(key), value, prefix + key)
    return merged


def _merge_field(field: FieldInfo, old: Any, new: Any, path: str) -> Any:
    if variants := slot_variants(field):
        return _merge_slot(field, variants, old or {}, new, path)
    if isinstance(field.annotation, type) and issubclass(field.annotation, Spec):
        if not isinstance(new, Mapping):
            example = next(iter(field.annotation.model_fields))
            raise ConfigError(
                f"{path} is a section, not a value: set a key of it, such as {path}.{example}=..."
            )
        if old is None and isinstance(field.default, Spec):
            old = explicit(field.default)
        return merge(field.annotation, old or {}, new, path + ".")
    if new == NONE and _allows(type(None), field.annotation):
        return None
    if isinstance(new, bool) and not _allows(bool, field.annotation):  # pydantic would take true for 1
        raise ConfigError(f"{path} takes a value and is no switch; got {str(new).lower()}")
    return new


def _merge_slot(
    field: FieldInfo, variants: dict[str, type[Spec]], old: Mapping[str, Any], new: Any, path: str
) -> dict[str, Any]:
    if isinstance(new, str):
        new = {"kind": new}
    if not isinstance(new, Mapping):
        raise ConfigError(f"{path} takes one of {', '.join(variants)}; got {new!r}")
    default_kind = getattr(field.default, "kind", next(iter(variants)))
    old_kind = old.get("kind", default_kind)
    kind = new.get("kind", old_kind)
    if not isinstance(kind, str) or kind not in variants:
        hint = did_you_mean(str(kind), variants)
        raise ConfigError(f"{path}.kind is one of {', '.join(variants)}; got {kind!r}{hint}")
    if not old and isinstance(field.default, Spec):
        old = explicit(field.default)
    kept = {k: v for k, v in old.items() if k in variants[kind].model_fields}
    return merge(
        variants[kind], kept | {"kind": kind}, {k: v for k, v in new.items() if k != "kind"}, path + "."
    )


def _allows(value_type: type, annotation: Any) -> bool:
    members = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return value_type in members


def parse_override(text: str) -> dict[str, Any]:
    """`a.b=1` as `{"a": {"b": 1}}`: the value is read as TOML, and as a plain word where it is none.

    Raises:
        ConfigError: there is no `=`, or a part of the key is empty.
    """
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise ConfigError(f"{text!r} is no setting: write it as key=value, such as train.lr=3e-4")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    first, *rest = key.split(".")
    for part in reversed(rest):
        parsed = {part: parsed}
    return {first: parsed}


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file's settings.

    Raises:
        ConfigError: the file is absent, is not UTF-8, or is not TOML; the message gives the line.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; --config takes a TOML file") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a UTF-8 text file") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def to_toml(spec: Spec) -> str:
    """The whole of a spec, defaults included, as TOML that reads back to an equal spec."""
    return tomli_w.dumps(_without_null(spec.model_dump(mode="json")))


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        kind_first = sorted(value.items(), key=lambda item: item[0] != "kind")
        return {key: _without_null(inner) for key, inner in kind_first}
    return NONE if value is None else value


def resolve(spec_type: type[SpecT], *layers: Mapping[str, Any]) -> SpecT:
    """A checked spec from layers of settings, later ones winning.

    Raises:
        ConfigError: one line for the first thing wrong: an unknown key (with the nearest), an ill-typed
            value (with what was expected), or parts that do not fit each other.
    """
    settings: dict[str, Any] = {}
    for layer in layers:
        settings = merge(spec_type, settings, layer)
    try:
        return spec_type.model_validate(settings)
    except ValidationError as error:
        raise _first_problem(spec_type, error) from None


def _first_problem(spec_type: type[Spec], error: ValidationError) -> ConfigError:
    problem = error.errors(include_url=False)[0]
    message = problem["msg"].removeprefix("Value error, ")
    key = ".".join(_without_tags(spec_type, problem["loc"]))
    if problem["type"] == "value_error":  # raised by a check of ours, whose message says it all
        return ConfigError(f"{key}: {message}" if key else message)
    return ConfigError(f"{key}: {message}; got {problem['input']!r}")


def _without_tags(spec_type: type[Spec], loc: Iterable[str | int]) -> Iterator[str]:
    """An error's location without the kinds that pydantic puts after each slot's name."""
    current: type[Spec] | None = spec_type
    variants: dict[str, type[Spec]] = {}
    for part in loc:
        if variants and part in variants:
            current, variants = variants[str(part)], {}
            continue
        yield str(part)
        field = current.model_fields.get(str(part)) if current else None
        variants = slot_variants(field) if field else {}
        annotation = field.annotation if field else None
        current = annotation if isinstance(annotation, type) and issubclass(annotation, Spec) else None
