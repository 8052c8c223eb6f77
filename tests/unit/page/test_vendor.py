"""The libraries that the page brings along: named, hashed, and no larger than they may be."""

import hashlib
import re
import tomllib
from pathlib import Path

import clearformer
from clearformer.page.standalone.modules import IMPORT

STATIC = Path(clearformer.__file__).parent / "page" / "static"
VENDOR = STATIC / "vendor"
MOST_BYTES = 300_000  # of all that the page loads before a view asks for more
LINKED = re.compile(r'(?:src|href)="(?P<path>[^"]+\.(?:js|css))"')


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


def loaded(path: Path, found: set[Path]) -> set[Path]:
    """A file and all that a browser loads because of it."""
    if path not in found:
        found.add(path)
        linked = {".html": LINKED, ".js": IMPORT}.get(path.suffix)
        for each in linked.finditer(path.read_text()) if linked else ():
            loaded((path.parent / each["path"].removeprefix("static/")).resolve(), found)
    return found


def test_the_page_is_small() -> None:
    files = loaded(STATIC.resolve() / "index.html", set())
    names = {path.relative_to(STATIC.resolve()).as_posix() for path in files}
    assert {"index.html", "style.css", "live.js", "app.js", "vendor/preact.js", "vendor/uplot.css"} <= names
    elsewhere = {"exported.js", "notebook.js", "sources/embedded.js", "sources/kernel.js", "vendor/uplot.js"}
    assert {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.js")} - names == elsewhere
    assert sum(path.stat().st_size for path in files) < MOST_BYTES


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
