"""The page's modules as one text: what is exported and imported, and what is refused."""

import re
from pathlib import Path

import pytest

from clearformer.page.standalone import modules
from clearformer.page.standalone.modules import STATIC, bundled
from clearformer.page.views import VIEWS


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the page's own."""
    monkeypatch.setattr(modules, "STATIC", tmp_path)
    (tmp_path / "parts").mkdir()
    return tmp_path


def test_every_view_has_a_component_of_its_name() -> None:
    """Without one it would never appear; those beside others are drawn by them."""
    [listed] = re.findall(r"^export const VIEWS = \{(.*)\};$", (STATIC / "app.js").read_text(), re.MULTILINE)
    named = [entry.partition(":")[0].strip() for entry in listed.split(",")]
    assert sorted(named) == sorted(name for name, view in VIEWS.items() if not view.beside)


def made(entry: str) -> str:
    """The text, not kept for later tests."""
    return bundled.__wrapped__(entry)


def test_each_module_comes_once_and_behind_those_that_it_imports(write: Path) -> None:
    (write / "a.js").write_text(
        'import { one, two as second } from "./parts/b.js";\nimport c from "./parts/c.js";\n'
        "export default one + second + c;\n"
    )
    (write / "parts" / "b.js").write_text(
        'import c from "./c.js";\nexport const one = 1;\nconst two = c;\nexport { two };\n'
    )
    (write / "parts" / "c.js").write_text("export default 5;\n//# sourceMappingURL=c.js.map\n")
    text = made("a.js")
    assert re.findall(r"^// (.*)$", text, re.MULTILINE) == ["parts/c.js", "parts/b.js", "a.js"]
    assert "const { one: one, two: second } = $module1;" in text
    assert "const { default: c } = $module0;" in text
    assert "return { one: one, two: two };" in text
    assert text.rstrip().endswith("export default $module2.default;")
    assert "sourceMappingURL" not in text


def test_names_are_taken_from_minified_modules_too(write: Path) -> None:
    (write / "m.js").write_text(
        'import{options as n}from"./o.js";var t=n;function f(){}export{f as go,t as it};'
    )
    (write / "o.js").write_text("var q={};export{q as options};\nexport default q;\n")
    text = made("m.js")
    assert "const { options: n } = $module0;var t=n;function f(){}" in text
    assert "return { go: f, it: t };" in text
    assert "return { options: q, default: $default };" in text


def test_what_is_imported_later_is_at_hand(write: Path) -> None:
    (write / "l.js").write_text(
        '/** @type {import("./t.js").T} */\nexport const later = () => import("./o.js").then(use);\n'
    )
    (write / "o.js").write_text("export default 5;\n")
    text = made("l.js")
    assert re.findall(r"^// (.*)$", text, re.MULTILINE) == ["o.js", "l.js"]
    assert "const later = () => Promise.resolve($module0).then(use);" in text


def test_what_is_declared_where_it_is_exported_keeps_its_name(write: Path) -> None:
    (write / "d.js").write_text(
        "export async function a() {}\nexport class B {}\nexport function c() {}\nexport const d = 1;\n"
    )
    text = made("d.js")
    assert "return { a: a, B: B, c: c, d: d };" in text
    assert "\nasync function a() {}\nclass B {}\nfunction c() {}\nconst d = 1;" in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("export let a = 1;\n", "not understood: 'export let a = 1;'"),
        ('export * from "./b.js";\n', "not understood"),
        ('import * as all from "./b.js";\n', "not understood"),
        ('import { a } from "preact";\n', "only modules beside it"),
        ('import { a } from "./x.js";\n', "circle: x.js -> x.js"),
    ],
)
def test_what_it_does_not_understand_is_refused(write: Path, content: str, words: str) -> None:
    (write / "x.js").write_text(content)
    with pytest.raises(ValueError, match=re.escape(words)):
        made("x.js")


@pytest.mark.parametrize("entry", ["exported.js", "notebook.js"])
def test_the_pages_own_modules_are_all_there_and_ask_for_nothing(entry: str) -> None:
    text = bundled(entry)
    names = set(re.findall(r"^// ([\w/.-]+\.js)$", text, re.MULTILINE))
    views = {f"views/{path.name}" for path in (STATIC / "views").iterdir()}
    assert views | {"app.js", "vendor/preact.js", "vendor/uplot.js"} <= names
    assert "sources/server.js" not in names
    assert not re.search(r"\bfetch\(|WebSocket|XMLHttpRequest|^\s*import[\s{]", text, re.MULTILINE)
