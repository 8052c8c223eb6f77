"""Bundle the page's JavaScript modules into one, and its style sheets into one, for use without a server.

Each module becomes a function that is called once and returns the module's exports. An import becomes a constant that
takes names from there; a dynamic import resolves at once. This is no parser: it recognises imports and exports in the
forms that our own and the vendored modules use, and refuses a module with any other.
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
LATER = re.compile(r'\bimport\("(?P<path>[^"]+)"\)(?=\.then\b)')  # without `.then`, a type in a comment
EXPORTED = re.compile(r"^export (?P<kind>async function|function|class|const) (?P<name>[\w$]+)", re.MULTILINE)
NAMES = re.compile(r"(?:^|(?<=[;}]))export\s*\{(?P<names>[\w$,\s]+)\};?", re.MULTILINE)
DEFAULT = re.compile(r"(?:^|(?<=[;}]))export default\s+", re.MULTILINE)
LEFT = re.compile(r"(?:^|[;}])(?:import|export)\b(?!\()[^\n]{0,60}", re.MULTILINE)
SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)  # a browser would request it
RENAMED = " as "


@cache
def bundled(entry: str) -> str:
    """Return a module and everything it imports as the source of one module, which has the same default export.

    Args:
        entry: The module's path in the folder of static files.

    Raises:
        ValueError: modules import each other in a circle, or one has an import or export in another form.
    """
    order: list[PurePosixPath] = []
    _visit(PurePosixPath(entry), order, ())
    parts = [_as_function(path, order) for path in order]
    last = _name(order[-1], order)
    return "\n".join([*parts, f"export default {last}.default;\n"])


def styles() -> str:
    """Return the page's style sheets as one."""
    return "\n".join(map(_read, (PurePosixPath("vendor/uplot.css"), PurePosixPath("style.css"))))


def _visit(path: PurePosixPath, order: list[PurePosixPath], importing: tuple[PurePosixPath, ...]) -> None:
    """Append a module to `order`, after those that it imports."""
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
    """Return the source of a module as a constant that holds its exports."""
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
    """Parse a list of names into pairs of inner and outer name: `a, b as c` is (a, a) and (b, c)."""
    found = []
    for each in filter(None, map(str.strip, names.split(","))):
        inner, _, outer = each.partition(RENAMED)
        found.append((inner, outer or inner))
    return found


def _name(path: PurePosixPath, order: list[PurePosixPath]) -> str:
    return f"$module{order.index(path)}"


def _path(importer: PurePosixPath, imported: str) -> PurePosixPath:
    """Resolve the path of an imported module, relative to the folder of static files."""
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
