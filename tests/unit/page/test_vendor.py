"""The libraries that the page brings along: named, hashed, and no larger than they may be."""

import hashlib
import re
import tomllib
from pathlib import Path

import clearformer

STATIC = Path(clearformer.__file__).parent / "page" / "static"
VENDOR = STATIC / "vendor"
MOST_BYTES = 300_000  # of all that the page loads before a view asks for more


def test_each_file_is_what_its_source_has_but_for_the_change_that_is_named() -> None:
    named = tomllib.loads((VENDOR / "VENDOR.toml").read_text())
    files = {path.name for path in VENDOR.iterdir() if path.suffix in (".js", ".css")}
    assert named.keys() == files
    for name, entry in named.items():
        content = (VENDOR / name).read_text()
        assert {"package", "version", "source", "licence", "sha256"} <= entry.keys()
        if "changed_to" in entry:
            assert content.count(entry["changed_to"]) == 1
            content = content.replace(entry["changed_to"], entry["changed_from"])
        assert hashlib.sha256(content.encode()).hexdigest() == entry["sha256"], name


def test_the_page_is_small() -> None:
    loaded = loaded_from(STATIC / "index.html", set())
    assert {STATIC / "style.css", STATIC / "app.js", VENDOR / "preact.js"} <= loaded
    assert STATIC / "notebook.js" not in loaded
    assert sum(path.stat().st_size for path in loaded) < MOST_BYTES


def loaded_from(path: Path, known: set[Path]) -> set[Path]:
    """A file and all that a browser loads because of it."""
    known.add(path)
    for name in re.findall(r'(?:from|import|src=|href=)\s?"([\w./-]+\.(?:js|css))"', path.read_text()):
        found = (path.parent / name.removeprefix("static/")).resolve()
        if found not in known and found.is_file():
            loaded_from(found, known)
    return known


def test_nothing_is_loaded_from_elsewhere_and_no_text_becomes_markup() -> None:
    for path in STATIC.rglob("*"):
        if path.suffix not in (".js", ".html", ".css") or path.parent == VENDOR:
            continue
        content = path.read_text()
        assert not re.search(r"https?://|//cdn|@import|url\(", content), path
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySet|\beval\(|new Function", content
        ), path
        for imported in re.findall(r'from "([^"]+)"|import "([^"]+)"', content):
            assert (path.parent / (imported[0] or imported[1])).is_file(), (path, imported)
