"""The page's JavaScript modules as one text, for where no server hands out files.

Each module becomes a function that is called once and returns what the module exports; an import becomes a constant
that takes its names from there, and what is imported later is there at once. This is no parser: it reads imports and
exports as our own modules and the vendored ones write them, and refuses a module in which any is left.
"""

import re
from functools import cache
from pathlib import Path, PurePosixPath

STATIC = Path(__file__).parents[1] / "static"

IMPORT = re.compile(
    r"^import\s*(?:(?P<default>[\w$]+)\s*,?\s*)?(?:\{(?P<names>[^{}]*)\})?\s*(?:from\s*)?"
    r'"(?P<path>[^"]+)";?',
    re.MULTILINE,
)
LATER = re.compile(r'\bimport\("(?P<path>[^"]+)"\)(?=\.then\b)')  # others name types, in comments
EXPORTED = re.compile(r"^export (?P<kind>async function|function|class|const) (?P<name>[\w$]+)", re.MULTILINE)
NAMES = re.compile(r"(?:^|(?<=[;}]))export\s*\{(?P<names>[\w$,\s]+)\};?", re.MULTILINE)
DEFAULT = re.compile(r"(?:^|(?<=[;}]))export default\s+", re.MULTILINE)
LEFT = re.compile(r"(?:^|[;}])(?:import|export)\b(?!\()[^\n]{0,60}", re.MULTILINE)
SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)  # which a browser would ask for
RENAMED = " as "


@cache
def bundled(entry: str) -> str:
    """A module and all that it imports as the text of one, whose default export is the module's own, if it has one.

    Args:
        entry: Its path in the folder of static files.

    Raises:
        ValueError: modules import each other in a circle, or one is written in a way that is not understood.
    """
    order: list[PurePosixPath] = []
    _visit(PurePosixPath(entry), order, ())
    parts = [_as_function(path, order) for path in order]
    last = _name(order[-1], order)
    return "\n".join([*parts, f"export default {last}.default;\n"])


def _visit(path: PurePosixPath, order: list[PurePosixPath], importing: tuple[PurePosixPath, ...]) -> None:
    """Put a module behind those that it imports."""
    if path in importing:
        raise ValueError(
            f"modules import each other in a circle: {' -> '.join(map(str, (*importing, path)))}"
        )
    if path not in order:
        text = _read(path)
        for found in (*IMPORT.finditer(text), *LATER.finditer(text)):
            _visit(_path(path, found["path"]), order, (*importing, path))
        order.append(path)


def _as_function(path: PurePosixPath, order: list[PurePosixPath]) -> str:
    """A module as a constant that holds its exports."""
    exports: dict[str, str] = {}

    def take(found: re.Match[str]) -> str:
        source = _name(_path(path, found["path"]), order)
        wanted = [] if found["default"] is None else [f"default: {found['default']}"]
        wanted += [": ".join(pair) for pair in _pairs(found["names"] or "")]
        return f"const {{ {', '.join(wanted)} }} = {source};" if wanted else ""

    def declare(found: re.Match[str]) -> str:
        exports[found["name"]] = found["name"]
        return f"{found['kind']} {found['name']}"

    def hand_on(found: re.Match[str]) -> str:
        exports.update({outer: inner for inner, outer in _pairs(found["names"])})
        return ""

    def keep(_: re.Match[str]) -> str:
        exports["default"] = "$default"
        return "const $default = "

    def at_hand(found: re.Match[str]) -> str:
        return f"Promise.resolve({_name(_path(path, found['path']), order)})"

    text = LATER.sub(at_hand, SOURCE_MAP.sub("", _read(path)))
    for pattern, replacement in ((IMPORT, take), (EXPORTED, declare), (NAMES, hand_on), (DEFAULT, keep)):
        text = pattern.sub(replacement, text)
    if left := LEFT.search(text):
        raise ValueError(
            f"{path}: an import or export is written in a way that is not understood: {left[0]!r}"
        )
    returned = ", ".join(f"{outer}: {inner}" for outer, inner in exports.items())
    return f"// {path}\nconst {_name(path, order)} = (() => {{\n{text.rstrip()}\nreturn {{ {returned} }};\n}})();"


def _pairs(names: str) -> list[tuple[str, str]]:
    """Names and what they are called on the other side: `a, b as c` is (a, a) and (b, c)."""
    found = []
    for each in filter(None, map(str.strip, names.split(","))):
        inner, _, outer = each.partition(RENAMED)
        found.append((inner, outer or inner))
    return found


def _name(path: PurePosixPath, order: list[PurePosixPath]) -> str:
    return f"$module{order.index(path)}"


def _path(importer: PurePosixPath, imported: str) -> PurePosixPath:
    """The path of what a module imports, in the folder of static files."""
    if not imported.startswith("."):
        raise ValueError(f"{importer}: only modules beside it can be imported; got {imported!r}")
    parts = list(importer.parent.parts)
    for part in imported.split("/"):
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return PurePosixPath(*parts)


def _read(path: PurePosixPath) -> str:
    return (STATIC / path).read_text(encoding="utf-8")
