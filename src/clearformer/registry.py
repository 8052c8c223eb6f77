"""Parts of your own: kinds for the slots of a configuration, named texts, and studies.

    @cf.register("attention")
    class Decayed(AttentionBase):
        kind: Literal["decayed"] = "decayed"
        ...

    cf.ModelConfig(attention="decayed")

A registered kind is a member of its slot's union like any other: it is validated, listed in messages and recorded in
a run's config.toml by its name. To open such a run, import the part again: in Python, with `--import FILE.py` on the
command line, or by installing a package that names its module under the entry points `clearformer.parts`. A settings
file never imports code: it only names a kind.

A union is rebuilt only when a kind is added or removed.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import PydanticUndefinedAnnotation, PydanticUserError

from clearformer.config import Spec, is_packaged, slot_variants
from clearformer.data import LabelledData, PairsData, TextData
from clearformer.data.config import DataSpec
from clearformer.data.kinds import BUILT_IN_BY_KIND, KINDS, OWN_KINDS
from clearformer.data.text.generated import GeneratedSource
from clearformer.data.text.sources import BUILT_IN, BuiltIn
from clearformer.errors import ConfigError, shortened, shown
from clearformer.late import made_above
from clearformer.model.attention import AttentionBase
from clearformer.model.config import ModelConfig
from clearformer.model.init import InitBase
from clearformer.model.positions import PositionBase
from clearformer.parts import import_parts, imported_files
from clearformer.text.kinds.vocabulary import TOKENIZERS, VocabularyTokenizer
from clearformer.training.config import RunConfig, TrainConfig
from clearformer.training.objectives import ObjectiveSpec
from clearformer.training.tasks import TASKS, Task

__all__ = [
    "AttentionBase",
    "InitBase",
    "LabelledData",
    "PairsData",
    "PositionBase",
    "TextData",
    "VocabularyTokenizer",
    "import_parts",
    "imported_files",
    "register",
    "unregister",
]

SLOTS: dict[str, tuple[type[Spec], str]] = {
    "attention": (ModelConfig, "attention"),
    "position": (ModelConfig, "position"),
    "norm": (ModelConfig, "norm"),
    "ffn": (ModelConfig, "ffn"),
    "init": (ModelConfig, "init"),
    "data": (RunConfig, "data"),
    "tokenizer": (RunConfig, "tokenizer"),
    "optimizer": (TrainConfig, "optimizer"),
    "schedule": (TrainConfig, "schedule"),
    "objective": (TrainConfig, "objective"),
}
"""The spec and the field of each slot."""

BASES: dict[str, type[Spec]] = {
    "attention": AttentionBase,
    "position": PositionBase,
    "init": InitBase,
    "data": DataSpec,
    "objective": ObjectiveSpec,
}
"""The base class of a slot's kinds, where they have one."""

METHODS: dict[str, dict[str, tuple[str, ...]]] = {
    "attention": {"build": ("d_model", "dropout")},
    "position": {"build": ("sizes",)},
    "norm": {"build": ("d",)},
    "ffn": {"build": ("d_model",)},
    "init": {"apply": ("model", "n_layers", "seed")},
    "data": {},
    "tokenizer": {"train": ("texts", "specials")},
    "optimizer": {"build": ("model", "lr", "dtype")},
    "schedule": {"after_warmup": ("step", "warmup_steps", "progress")},
    "objective": {},
}
"""The methods that every kind of a slot must have, and the arguments that they are called with."""

ATTRIBUTES = {"objective": ("family", "data_kinds", "activity")}
"""The class attributes that every kind of a slot must set."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

_OWN_TEXTS: set[str] = set()

PartT = TypeVar("PartT", bound=Any)
Slot = Literal[
    "attention",
    "position",
    "norm",
    "ffn",
    "init",
    "data",
    "tokenizer",
    "optimizer",
    "schedule",
    "objective",
    "text",
    "study",
]


def register(slot: Slot) -> Callable[[PartT], PartT]:
    """Add the decorated kind to a slot, or the decorated function to the texts known by name.

    A kind is a frozen `Spec` with a `kind` and the methods of the other kinds of its slot, such as `build`.

    Args:
        slot: `attention`, `position`, `norm`, `ffn`, `init`, `data`, `tokenizer`, `optimizer` or `schedule` decorates
            a class of settings. `objective` decorates a `Task`, whose settings are its `objective_type`. `text`
            decorates a function that yields documents; its name is then a `data.name`. `study` decorates a `Study`,
            which the command line then finds by its name.

    Raises:
        ConfigError: there is no such slot, the class has no kind, or the name is taken.
    """
    if slot == "text":
        return _add_text
    if slot == "study":
        return made_above("register.study")
    _check_slot(slot, "text", "study")

    def add(part: PartT) -> PartT:
        ADDING.get(slot, partial(_add_kind, slot))(part)
        return part

    return add


def unregister(slot: Slot, name: str) -> None:
    """Remove a registered kind or text.

    Raises:
        ConfigError: there is no such slot, none of that name in it, or it is one of the package's own.
    """
    _check_slot(slot, "text")
    known: Any = BUILT_IN if slot == "text" else slot_variants(_field(slot))
    if name not in known:
        raise ConfigError(f"there is no {slot} {shown(name)}; there are {', '.join(known)}")
    registered = _OWN_TEXTS if slot == "text" else [kind for kind in known if not is_packaged(known[kind])]
    if name not in registered:
        raise ConfigError(f"the {slot} {name!r} is one of the package's own and stays")
    if slot == "text":
        BUILT_IN.pop(name)
    else:
        _set_kinds(slot, [spec for kind, spec in known.items() if kind != name])
        # A kind of another slot may have the same name.
        if slot == "objective":
            TASKS.pop(known[name])
        elif slot == "data":
            OWN_KINDS.pop(name)
        elif slot == "tokenizer":
            TOKENIZERS.pop(name, None)


def _check_slot(slot: Any, *others: str) -> None:
    names = [*SLOTS, *others]
    if not isinstance(slot, str) or slot not in names:
        raise ConfigError(
            f"there is no slot {shown(slot)}; there are {', '.join(names[:-1])} and {names[-1]}"
        )


# --- texts ------------------------------------------------------------------------------------------------


def _check_makes_texts(documents: Any) -> None:
    """Raise ConfigError unless this is a named function without required arguments."""
    name = getattr(documents, "__name__", None)
    if not callable(documents) or name is None:
        raise ConfigError(f"a text is registered as a function that yields documents; got {shown(documents)}")
    if not NAME.fullmatch(name):
        raise ConfigError(f"{shown(name)} cannot be a text's name (data.name): write a function, def NAME()")
    try:
        inspect.signature(documents).bind()
    except TypeError as error:
        raise ConfigError(f"the text {name}: its function must take no arguments: {error}") from None


def _add_text(documents: Any) -> Any:
    _check_makes_texts(documents)
    name = documents.__name__
    if name not in _OWN_TEXTS and any(name in known for known in BUILT_IN_BY_KIND.values()):
        raise ConfigError(f"the text {name} already exists; rename the function")
    about = (documents.__doc__ or name).strip().partition("\n")[0]
    source = GeneratedSource(name, about, documents)
    _OWN_TEXTS.add(name)
    BUILT_IN[name] = BuiltIn(about=about, size="-", where=lambda: "made by a function", open=lambda: source)
    return documents


# --- objectives -------------------------------------------------------------------------------------------


def _add_objective(task: Any) -> None:
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise ConfigError(f"an objective is registered as a task (a clearformer Task); got {shown(task)}")
    if missing := sorted(task.__abstractmethods__):
        raise ConfigError(f"{task.__name__}: a task needs the methods {', '.join(missing)}")
    settings = getattr(task, "objective_type", None)
    if not isinstance(settings, type) or is_packaged(settings):
        raise ConfigError(
            f"{task.__name__}: set objective_type to settings of its own, such as a subclass of NextTokenObjective "
            "with another kind"
        )
    _add_kind("objective", settings)
    TASKS[settings] = task


# --- data and tokenizers ------------------------------------------------------------------------------------


def _add_data(spec_type: Any) -> None:
    """Add a kind of data, whose class makes the documents, pairs or texts itself."""
    if isinstance(spec_type, type) and issubclass(spec_type, DataSpec) and not _makes_data(spec_type):
        names = " or ".join(f"{base.__name__} with {base.made_by}()" for base in KINDS.values())
        raise ConfigError(
            f"{spec_type.__name__}: a kind of data must be a subclass of {names} (clearformer.registry)"
        )
    _add_kind("data", spec_type)
    OWN_KINDS[spec_type.model_fields["kind"].default] = spec_type


def _makes_data(spec_type: type[DataSpec]) -> bool:
    is_of_a_form = issubclass(spec_type, tuple(KINDS.values()))
    return is_of_a_form and callable(getattr(spec_type, spec_type.made_by, None))


def _add_tokenizer(spec_type: Any) -> None:
    """Add a kind of tokenizer, and the class that reads its files (`tokenizer_type`) if it has one of its own."""
    own = getattr(spec_type, "tokenizer_type", None)
    if own is not None and not (isinstance(own, type) and issubclass(own, VocabularyTokenizer)):
        raise ConfigError(
            f"{spec_type.__name__}: tokenizer_type must be a subclass of clearformer.registry.VocabularyTokenizer; "
            f"got {shown(own)}"
        )
    _add_kind("tokenizer", spec_type)
    kind = spec_type.model_fields["kind"].default
    if not hasattr(spec_type, "needs_corpus"):
        spec_type.needs_corpus = True
    if own is not None:
        own.kind = kind
        TOKENIZERS[kind] = own


# --- unions -----------------------------------------------------------------------------------------------


ADDING: dict[str, Callable[[Any], None]] = {
    "objective": _add_objective,
    "data": _add_data,
    "tokenizer": _add_tokenizer,
}
"""How to add a part to a slot whose kinds bring more than settings."""


def _field(slot: str) -> Any:
    owner, name = SLOTS[slot]
    return owner.model_fields[name]


def _add_kind(slot: str, spec_type: Any) -> None:
    if not (isinstance(spec_type, type) and issubclass(spec_type, Spec)):
        raise ConfigError(
            f"a kind of {slot} must be a settings class (a clearformer Spec); got {shown(spec_type)}"
        )
    field = spec_type.model_fields.get("kind")
    kind = field.default if field and get_origin(field.annotation) is Literal else None
    if not isinstance(kind, str):
        raise ConfigError(
            f'{spec_type.__name__} has no kind: add kind: Literal["NAME"] = "NAME" to its settings'
        )
    if not NAME.fullmatch(kind):
        raise ConfigError(
            f"{spec_type.__name__}: {shown(kind)} cannot name a kind: use only letters, digits, - and _"
        )
    known = slot_variants(_field(slot))
    if kind in known and _place_of(known[kind]) != _place_of(spec_type):  # a notebook cell may run again
        raise ConfigError(f"{kind} is already a kind of {slot} ({known[kind].__name__}); choose another name")
    _check_methods(slot, spec_type)
    _set_kinds(slot, [*(spec for name, spec in known.items() if name != kind), spec_type])


def _check_methods(slot: str, spec_type: type[Spec]) -> None:
    """Raise ConfigError if a kind lacks the base class, a method or an attribute of its slot."""
    base = BASES.get(slot, Spec)
    if not issubclass(spec_type, base):
        raise ConfigError(
            f"{spec_type.__name__}: a kind of {slot} must be a subclass of clearformer.registry.{base.__name__}"
        )
    abstract = getattr(spec_type, "__abstractmethods__", frozenset())
    absent = sorted(abstract) or [
        *(name for name in METHODS[slot] if not callable(getattr(spec_type, name, None))),
        *(name for name in ATTRIBUTES.get(slot, ()) if not hasattr(spec_type, name)),
    ]
    if absent:
        raise ConfigError(
            f"{spec_type.__name__} has no {' and no '.join(absent)}: a kind of {slot} needs it; "
            f"see the built-in kinds"
        )
    for name, arguments in METHODS[slot].items():
        signature = inspect.signature(getattr(spec_type, name))
        try:
            signature.bind("self", *arguments)
        except TypeError:
            raise ConfigError(
                f"{spec_type.__name__}.{name} takes {signature}; "
                f"a kind of {slot} is called with ({', '.join(('self', *arguments))})"
            ) from None


def _place_of(spec_type: type) -> tuple[str, str]:
    """Return the file that defines a class, which may have been imported twice, or else its module; and its name."""
    try:
        source = inspect.getsourcefile(spec_type)
    except (TypeError, OSError):  # typed at a prompt
        source = None
    return source or spec_type.__module__, spec_type.__qualname__


def _set_kinds(slot: str, kinds: list[type[Spec]]) -> None:
    """Replace the union's members in every field of a slot; where that fails, all stays as it was."""
    before = list(slot_variants(_field(slot)).values())
    try:
        _replace_kinds(before, kinds)
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        _replace_kinds(kinds, before)
        name = kinds[-1].__name__
        raise ConfigError(f"{name} cannot be a kind of {slot}: {shortened(str(error))}") from error


def _replace_kinds(before: list[type[Spec]], after: list[type[Spec]]) -> None:
    """Replace a union's members in every field that has them, and rebuild the specs that contain one."""
    union: Any = Union[tuple(after)]  # noqa: UP007  (made of a list)
    changed = set()
    for spec_type in _all_specs():
        for field in spec_type.model_fields.values():
            if set(slot_variants(field).values()) == set(before):
                field.annotation = union
                changed.add(spec_type)
    rebuilt: set[type[Spec]] = set()
    for spec_type in _all_specs():
        _rebuild(spec_type, changed, rebuilt)


def _rebuild(spec_type: type[Spec], changed: set[type[Spec]], seen: set[type[Spec]]) -> bool:
    """Rebuild a class if its fields or those of a class inside it changed, inner ones first; return whether it was."""
    if spec_type in seen:
        return spec_type in changed
    seen.add(spec_type)
    inner = [_rebuild(each, changed, seen) for each in _specs_in(spec_type)]
    if spec_type in changed or any(inner):
        changed.add(spec_type)
        spec_type.model_rebuild(force=True)
    return spec_type in changed


def _specs_in(spec_type: type[Spec]) -> Iterator[type[Spec]]:
    for field in spec_type.model_fields.values():
        yield from _specs_of(field.annotation)


def _specs_of(annotation: Any) -> Iterator[type[Spec]]:
    if isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, Spec):
        yield annotation
    for member in get_args(annotation):
        yield from _specs_of(member)


def _all_specs(base: type[Spec] = Spec) -> Iterable[type[Spec]]:
    """Return all subclasses of a spec, in the order of their definition."""
    found: dict[type[Spec], None] = {}
    for spec_type in base.__subclasses__():
        found[spec_type] = None
        found |= dict.fromkeys(_all_specs(spec_type))
    return list(found)
