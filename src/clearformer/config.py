"""Settings as frozen data: a base class, TOML in and out, and `key=value` overrides.

A *section* is a `Spec` inside a `Spec` (`train.lr`). A *slot* is a union of specs distinguished by `kind`
(`model.position.kind`); a bare word is short for its kind (`model.position=rope`). Where an override changes a
slot's kind, fields that were set are kept if the new kind has them too; all others take its defaults.

Python takes the same settings as the command line, with the same errors: `ModelConfig(position="rope")`,
`ModelConfig(attention={"n_heads": 8})`, `RunConfig(**{"train.lr": 3e-4})`.
"""

import hashlib
import inspect
import os
import re
import sys
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar, Union, get_args, get_origin

import tomli_w
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from clearformer.errors import ConfigError, SettingError, did_you_mean, shortened, shown
from clearformer.parts import load_installed_parts

NONE = "none"  # TOML has no null: an absent value is written as this word where the field allows it
OWN_KIND = "; load your own kinds with --import FILE.py, or by importing them in Python"
LIBRARIES = {"numpy", "pydantic", "pydantic_core", "tokenizers", "torch", "transformers", "typing_extensions"}
CODE_DIGITS = 16  # hex digits of a hash of code
LARGEST_FILE = 2**20  # bytes of settings; a run's are a few thousand, and its labels
LARGEST_WHOLE = 2**63 - 1  # the largest integer of torch and NumPy

PROBLEMS = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "settings by name",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of {ge} or more",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number with fewer digits",
    "int_type": "a whole number",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "list_type": 'a list, such as [1, 2] or ["a", "b"]',
    "literal_error": "{expected}",
    "path_type": "a path",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_type": "text (quote a number or date that is meant as text: '\"2024\"')",
    "string_unicode": "text in UTF-8",
    "too_long": "at most {max_length} values",
    "too_short": "at least {min_length} values",
    "tuple_type": 'a list, such as [1, 2] or ["a", "b"]',
    "whole_number_size": "a whole number below 2^63",
}
"""The values that a setting takes, by the type of pydantic's error."""

OF_SEVERAL = {"missing", "value_error"}
"""The types of errors that other settings may mend."""


def _not_empty(value: str) -> str:
    if not value:
        raise ValueError("empty (is a shell variable unset?): give a value or remove the setting")
    return value


def _of_a_file(value: str) -> str:
    if "\0" in value:
        raise ValueError(f"{value!r} has a NUL character, which no file name can have")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{value!a} is not a UTF-8 name, as settings files need: rename it") from None
    return value


Name = Annotated[str, AfterValidator(_not_empty)]
"""A setting that names something; it may not be empty."""
PathName = Annotated[Name, AfterValidator(_of_a_file)]
"""A setting that names a file or a folder; it may not be empty, which would mean the current folder."""


class _SpecType(type(BaseModel)):
    """The type of all specs: their constructors read settings as the command line does."""

    if not TYPE_CHECKING:  # a type checker should see the fields

        def __call__(cls, *unnamed: Any, **settings: Any) -> Any:
            if unnamed:
                example = next((name for name in cls.model_fields if name != "kind"), None)
                hint = f", such as {cls.__name__}({example}=...)" if example else ""
                raise ConfigError(f"{cls.__name__} takes settings by name{hint}; got {shown(unnamed[0])}")
            try:
                return super().__call__(**merge(cls, {}, nested(settings)))
            except ValidationError as error:
                raise _first_problem(cls, error.errors(include_url=False)) from None


class Spec(BaseModel, metaclass=_SpecType):
    """A frozen group of settings. Unknown keys raise an error that names the nearest known one."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    own_kinds: ClassVar[bool] = True
    """Whether users may add kinds to the slot that holds this."""

    @field_validator("*")
    @classmethod
    def _can_be_kept(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
            raise PydanticCustomError("whole_number_size", "a whole number of 64 bits")
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise PydanticCustomError("string_unicode", "text in UTF-8") from None
        return value

    @model_validator(mode="before")
    @classmethod
    def _check_known_keys(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            for key in data:
                if key not in cls.model_fields:
                    raise unknown_key(cls, str(key), prefix="")
        return data

    if not TYPE_CHECKING:  # a type checker knows that a spec is frozen

        def __setattr__(self, name: str, value: Any) -> None:
            raise ConfigError(f"settings are frozen; use cfg.replace({name}={shown(value)})")

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, validated like a new spec."""
        settings = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**(settings | changes))


SpecT = TypeVar("SpecT", bound=Spec)


def unknown_key(
    spec_type: type[Spec], key: str, prefix: str, variants: Mapping[str, type[Spec]] | None = None
) -> ConfigError:
    """Return the error for a key that `spec_type` does not have; `variants` are the kinds of its slot."""
    known = [name for name in spec_type.model_fields if name != "kind"]
    kinds = [kind for kind, variant in (variants or {}).items() if key in variant.model_fields]
    sections = [name for name, field in spec_type.model_fields.items() if key in _keys_below(field)]
    if kinds:
        hint = f"; {prefix}kind={_one_of(kinds)} has it"
    elif sections:
        hint = f"; did you mean {_one_of([f'{prefix}{section}.{key}' for section in sections])}?"
    else:
        hint = did_you_mean(key, known) or f"; it has {', '.join(known) or 'no settings'}"
    kind = spec_type.model_fields.get("kind")
    key = shortened(key)
    if not prefix and not kind:
        return ConfigError(f"unknown key {key!r}{hint}")
    owner = f"{prefix.rstrip('.') or spec_type.__name__}" + (f" of kind {kind.default!r}" if kind else "")
    return ConfigError(f"unknown key '{prefix}{key}': {owner} has no {key!r}{hint}")


def _keys_below(field: FieldInfo) -> set[str]:
    """Return the keys of a field that is a section, or of all the kinds of one that is a slot."""
    specs = list(slot_variants(field).values())
    if isinstance(field.annotation, type) and issubclass(field.annotation, Spec):
        specs.append(field.annotation)
    return {key for spec in specs for key in spec.model_fields if key != "kind"}


def _one_of(words: list[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def slot_variants(field: FieldInfo) -> dict[str, type[Spec]]:
    """Return the specs that a slot can hold, by their `kind`; empty where the field is no slot."""
    if field.discriminator != "kind":
        return {}
    members: tuple[Any, ...] = get_args(field.annotation) or (field.annotation,)
    return {member.model_fields["kind"].default: member for member in members}


def is_packaged(part: Any) -> bool:
    """Whether a function or a class is one of the package's own, and not a user's."""
    return part.__module__.partition(".")[0] == __name__.partition(".")[0]


def is_users(part: type) -> bool:
    """Whether a class is a user's: not of this package, of Python, or of the libraries that users derive from."""
    library = part.__module__.partition(".")[0]
    return not is_packaged(part) and library not in LIBRARIES and library not in sys.stdlib_module_names


def code_hash(part: type) -> str | None:
    """Return the hash of the files that define a class of the user's and its bases, or of the classes without a file.

    None for the package's own classes, and for those whose source is not known (typed at a prompt).
    """
    if is_packaged(part):
        return None
    sources: dict[bytes, None] = {}  # each file once
    for own in filter(is_users, part.__mro__):
        try:
            file = Path(inspect.getsourcefile(own) or "")
            sources[file.read_bytes() if file.is_file() else inspect.getsource(own).encode()] = None
        except (OSError, TypeError):
            if own is part:
                return None
    code = b"".join(sources)
    return hashlib.sha256(code).hexdigest()[:CODE_DIGITS]


def explicit(spec: Spec, default: Any = None) -> dict[str, Any]:
    """Return the settings of a spec that differ from their defaults, and every slot's kind; nested like the spec.

    `resolve` makes an equal spec of them. If they are to be laid over another spec, pass that as `default`: what it
    sets is included too, as it would take effect otherwise.
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


def whole(spec: Spec) -> dict[str, Any]:
    """Return all settings of a spec, defaults included, so that they override every setting they are laid over."""
    settings: dict[str, Any] = {}
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        settings[name] = whole(value) if isinstance(value, Spec) else NONE if value is None else value
    return settings


def as_written(value: Any) -> str:
    """Return a setting's value as a user types it."""
    if value is None:
        return NONE
    return str(value).lower() if isinstance(value, bool) else str(value)


def merge(
    spec_type: type[Spec],
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    prefix: str = "",
    variants: Mapping[str, type[Spec]] | None = None,
) -> dict[str, Any]:
    """Return `old` settings with `new` ones laid over them, key by key; `variants` are the kinds of a slot.

    Raises:
        ConfigError: `spec_type` has no such key or kind.
    """
    merged = dict(old)
    for key, value in new.items():
        if key not in spec_type.model_fields:
            raise unknown_key(spec_type, key, prefix, variants)
        field = spec_type.model_fields[key]
        merged[key] = _merge_field(field, old.get(key), value, prefix + key)
    return merged


def _merge_field(field: FieldInfo, old: Any, new: Any, path: str) -> Any:
    if variants := slot_variants(field):
        return _merge_slot(field, variants, old, new, path)
    if isinstance(field.annotation, type) and issubclass(field.annotation, Spec):
        if isinstance(new, Spec):
            return new
        if not isinstance(new, Mapping):
            example = next(iter(field.annotation.model_fields))
            raise ConfigError(
                f"{path} is a section, not a value: set one of its keys, such as {path}.{example}=..."
            )
        return merge(field.annotation, _settings(field.default if old is None else old), new, path + ".")
    if isinstance(new, str) and new == NONE and _allows(type(None), field.annotation):
        return None
    if isinstance(new, bool) and not _allows(bool, field.annotation):  # pydantic would read true as 1
        raise ConfigError(f"{path} takes a value and is not a switch; got {str(new).lower()}")
    return new


def _merge_slot(field: FieldInfo, variants: dict[str, type[Spec]], old: Any, new: Any, path: str) -> Any:
    if isinstance(new, Spec):
        return new
    if isinstance(new, str):
        new = {"kind": new}
    if not isinstance(new, Mapping):
        raise ConfigError(f"{path} takes one of {', '.join(variants)}; got {shown(new)}")
    old = _settings(old or field.default)
    default_kind = getattr(field.default, "kind", next(iter(variants)))
    kind = new.get("kind", old.get("kind", default_kind))
    if isinstance(kind, str) and kind not in variants and load_installed_parts():
        variants = slot_variants(field)
    if not isinstance(kind, str) or kind not in variants:
        hint = _hint(path, kind, variants) if isinstance(kind, str) else ""
        raise ConfigError(f"{path}.kind is one of {', '.join(variants)}; got {shown(kind)}{hint}")
    shared = {k: v for k, v in old.items() if k in variants[kind].model_fields}
    others = {k: v for k, v in new.items() if k != "kind"}
    return merge(variants[kind], shared | {"kind": kind}, others, path + ".", variants)


def _hint(path: str, kind: str, variants: Mapping[str, type[Spec]]) -> str:
    """Return what could be meant by a kind that there is not."""
    takes_own = all(spec.own_kinds for spec in variants.values())
    return _as_path(path, kind) or did_you_mean(kind, variants) or (OWN_KIND if takes_own else "")


def _as_path(path: str, kind: str) -> str:
    """Return a hint where a kind of data is rather the name of a file."""
    if path != "data" or not (Path(kind).suffix or os.path.exists(kind)):  # noqa: PTH110  (any string may come)
        return ""
    return f"; to read a file, write data={{'path': {shown(kind)}}} (data.path=... on the command line)"


def _settings(old: Any) -> Mapping[str, Any]:
    """Return the settings of a section or slot as a mapping."""
    return explicit(old) if isinstance(old, Spec) else old if isinstance(old, Mapping) else {}


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with `{"train.lr": 1}` written out as `{"train": {"lr": 1}}`; the later of two values wins.

    Raises:
        ConfigError: a name is not a string or has an empty part, or a key is set of something that is no section.
    """
    result: dict[str, Any] = {}
    for key, value in settings.items():
        _check_key(key)
        first, dot, rest = key.partition(".")
        new = nested({rest: value}) if dot else _plain(value)
        result[first] = _laid_over(key, first, result[first], new) if first in result else new
    return result


def sections_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return `nested` settings of a whole configuration, in which a spec stands for all settings of its section.

    Raises:
        ConfigError: see `nested`.
    """
    return {
        name: whole(value) if isinstance(value, Spec) else value for name, value in nested(settings).items()
    }


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted keys, the reverse of `nested`; a spec counts with all of its settings."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = whole(value) if isinstance(value, Spec) else value
    return found


def differing(own: Spec, other: Spec) -> dict[str, tuple[str, str]]:
    """Return the settings of a spec that differ in another one, by dotted keys: both values as a user types them."""
    others = flat(whole(other))
    return {
        key: (as_written(value), as_written(others.get(key)))
        for key, value in flat(whole(own)).items()
        if others.get(key) != value
    }


def _check_key(key: Any) -> None:
    if not isinstance(key, str):
        raise ConfigError(f"a setting's name is text; got {shown(key)}")
    if not all(key.split(".")):
        raise ConfigError(f"the key {shown(key)} has an empty part: write it as train.lr")


def _section(key: str, name: str, value: Any) -> Mapping[str, Any]:
    """Return the settings of a section or slot, as a mapping in which `key` can be set too."""
    if isinstance(value, Spec):
        return whole(value)
    if isinstance(value, str):
        return {"kind": value}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} is set to {shown(value)}, so {key} cannot be set: remove one of the two")
    return value


def _plain(value: Any) -> Any:
    """Return a value as the command line would give it: nested sections, paths as strings."""
    if isinstance(value, Mapping):
        return nested(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _laid_over(key: str, path: str, old: Any, new: Any) -> Any:
    """Return a later value laid over an earlier one: sections and slots key by key, a kind's name beside the rest."""
    if isinstance(new, Mapping):
        old = _section(key, path, old)
        both = {name: _laid_over(key, f"{path}.{name}", old[name], new[name]) for name in new if name in old}
        return {**old, **new, **both}
    if isinstance(new, str) and isinstance(old, Mapping):
        return {**old, "kind": new}
    return new


def _allows(value_type: type, annotation: Any) -> bool:
    members = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return value_type in members


def parse_override(text: str) -> dict[str, Any]:
    """Parse `a.b=1` into `{"a": {"b": 1}}`; a value that is not valid TOML is a plain string.

    Raises:
        ConfigError: there is no `=`, a part of the key is empty, or the value is nested too deep.
    """
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise ConfigError(
            f"{shortened(text)!r} is not a setting: write it as key=value, such as train.lr=3e-4"
        )
    first, *rest = key.split(".")
    parsed = _parse_value(first, value)
    for part in reversed(rest):
        parsed = {part: parsed}
    return {first: parsed}


def _parse_value(key: str, value: str) -> Any:
    try:
        # The brackets make a comment or a second value invalid TOML, so that the whole stays one string.
        document = tomllib.loads(f"value = [{value} ,]")
    except RecursionError:
        raise ConfigError(f"{shortened(key)}: the brackets of its value are nested too deeply") from None
    except ValueError:  # not TOML, or a number with too many digits
        return value
    return document["value"][0] if len(document) == len(document["value"]) == 1 else value


def read_toml(path: Path, largest: int = LARGEST_FILE) -> dict[str, Any]:
    """Read a TOML file's settings, of at most `largest` bytes.

    Raises:
        ConfigError: the file is absent, too large, not UTF-8, or not TOML; the message gives the line.
    """
    try:
        with path.open("rb") as file:
            content = file.read(largest + 1)
        if len(content) > largest:
            raise ConfigError(f"{path}: not a settings file: it is larger than {largest >> 20} MiB")
        return tomllib.loads(content.decode("utf-8-sig"))  # Windows editors begin a file with a mark
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; --config takes a TOML file") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a UTF-8 text file") from None
    except RecursionError:
        raise ConfigError(f"{path}: not valid TOML: brackets or tables are nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, or a number with too many digits
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def to_toml(spec: Spec, with_folders: bool = True) -> str:
    """Return a whole spec, defaults included, as TOML that reads back to an equal spec.

    Without folders, an absolute path is its last part alone, as in what is published.
    """
    return tomli_w.dumps(_for_toml(spec.model_dump(mode="json"), with_folders))


def _for_toml(value: Any, with_folders: bool) -> Any:
    if isinstance(value, dict):
        kind_first = sorted(value.items(), key=lambda item: item[0] != "kind")
        return {key: _for_toml(inner, with_folders) for key, inner in kind_first}
    if isinstance(value, str) and not with_folders and Path(value).is_absolute():
        return Path(value).name
    return NONE if value is None else value


def merge_all(spec_type: type[Spec], layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return layers of settings in one; later layers win. Their values are not checked.

    Raises:
        ConfigError: `spec_type` has no such key or kind.
    """
    settings: dict[str, Any] = {}
    for layer in layers:
        settings = merge(spec_type, settings, layer)
    return settings


def resolve(spec_type: type[SpecT], *layers: Mapping[str, Any]) -> SpecT:
    """Build a validated spec from layers of settings; later layers win.

    Raises:
        ConfigError: one line for the first mistake: an unknown key (with the nearest), an ill-typed
            value (with what was expected), or parts that do not fit each other.
    """
    settings = merge_all(spec_type, layers)
    try:
        return spec_type.model_validate(settings)
    except ValidationError as error:
        raise _first_problem(spec_type, error.errors(include_url=False)) from None


def check_each(spec_type: type[Spec], *layers: Mapping[str, Any]) -> None:
    """Check layers of settings each by itself, and not whether they fit each other.

    Raises:
        ConfigError: one line for the first mistake: an unknown key (with the nearest), or an ill-typed value.
    """
    settings = merge_all(spec_type, layers)
    try:
        spec_type.model_validate(settings)
    except ValidationError as error:
        of_one = [each for each in error.errors(include_url=False) if each["type"] not in OF_SEVERAL]
        if of_one:
            raise _first_problem(spec_type, of_one) from None
    except ConfigError:  # of parts that do not fit each other
        return


def _first_problem(spec_type: type[Spec], problems: Sequence[Any]) -> SettingError:
    first = problems[0]
    key = _written(_without_tags(spec_type, first["loc"]))
    if first["type"] == "value_error":  # raised by a check of ours, whose message is complete
        message = first["msg"].removeprefix("Value error, ")
        return SettingError(f"{key}: {message}" if key else message)
    of_key = takewhile(lambda each: _written(_without_tags(spec_type, each["loc"])) == key, problems)
    return SettingError(f"{key} {short_problem(*of_key)}" if key else short_problem(first))


def short_problem(*problems: Mapping[str, Any]) -> str:
    """Describe in one line which values a setting takes, and the one that was given.

    Args:
        problems: Errors of one value, as in pydantic's `ValidationError.errors`: one for each type that it could have.
    """
    first = problems[0]
    if first["type"] == "missing":
        return "is missing"
    texts = [PROBLEMS.get(each["type"]) for each in problems]
    if None in texts:
        return f"is invalid ({first['msg']}); got {shown(first['input'])}"
    wanted = [str(text).format(**_bounds(each)) for text, each in zip(texts, problems, strict=True)]
    return f"takes {' or '.join(dict.fromkeys(wanted))}; got {shown(first['input'])}{_nearest_word(problems)}"


def _bounds(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values to fill into a problem's text, whole floats as integers: 0 and not 0.0."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in problem.get("ctx", {}).items()
    }


def _nearest_word(problems: Iterable[Mapping[str, Any]]) -> str:
    words = [
        word
        for each in problems
        if each["type"] == "literal_error"
        for word in re.findall(r"'([^']*)'", each["ctx"]["expected"])
    ]
    value = next(iter(problems))["input"]
    return did_you_mean(value, words) if isinstance(value, str) else ""


def _written(parts: Iterable[str | int]) -> str:
    """Return a key's parts as a user writes them: `train.betas[1]`."""
    key = ""
    for part in parts:
        key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else part
    return key


def _without_tags(spec_type: type[Spec], loc: Iterable[str | int]) -> Iterator[str | int]:
    """Yield an error's location without the slots' kinds and unions' members that pydantic adds to it."""
    current: type[Spec] | None = spec_type
    variants: dict[str, type[Spec]] = {}
    for part in loc:
        if variants and part in variants:
            current, variants = variants[str(part)], {}
            continue
        field = current.model_fields.get(str(part)) if current else None
        if field is None and isinstance(part, str):
            continue
        yield part
        variants = slot_variants(field) if field else {}
        annotation = field.annotation if field else None
        current = annotation if isinstance(annotation, type) and issubclass(annotation, Spec) else None
