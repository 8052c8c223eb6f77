"""The page as one file: what stands in it, what it may do, and what is refused."""

import base64
import gzip
import hashlib
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clearformer as cf
from clearformer import lens
from clearformer.cli import main
from clearformer.errors import MissingPackageError, UserError
from clearformer.page.selection import Selection
from clearformer.page.standalone import export
from clearformer.page.views import VIEWS, View, views_of
from clearformer.page.wire import decode

from ..lens.test_embeddings import TEXT, run_of
from ..lens.trainings import home_with_data, trained
from .conftest import FAMILIES, Client
from .test_server import card, same

WICKED = "</script><!-- <script>document.title = 1</script> \N{LINE SEPARATOR}]]>"


@pytest.fixture(autouse=True)
def _nothing_is_drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take seconds a page."""
    if "drawn" not in request.node.name:
        monkeypatch.setattr(export, "picture_of", lambda *_: None)


def test_places_counted_from_the_last_are_written_from_the_first() -> None:
    run: Any = run_of("encoder-decoder")
    selection = Selection(
        text=TEXT, output="a bank", part="cross_attn", position=-1, key=-2, layer=-1, head=-1
    )
    placed = export.at_its_place(run, selection)
    found = lens.attention(run, TEXT, "a bank")
    pattern = found.patterns[f"decoder_blocks.{placed.layer}.cross_attn.hook_pattern"]
    n_heads, n, m = pattern.shape
    assert placed.layer == len(run.model.stack("decoder_").blocks) - 1
    assert (placed.position, placed.key, placed.head) == (n - 1, m - 2, n_heads - 1)
    assert export.at_its_place(run, placed) == placed


class Elements(HTMLParser):
    """A file's elements, as a browser parses them: their names, attributes and the text in them."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open_tag = ""
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))
        self.open_tag = tag

    def handle_endtag(self, tag: str) -> None:
        self.open_tag = ""

    def handle_data(self, data: str) -> None:
        if self.open_tag:
            tag, attributes, text = self.found[-1]
            self.found[-1] = tag, attributes, text + data

    def of(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, text) for name, attributes, text in self.found if name == tag]


def opened(file: Path) -> tuple[Elements, dict[str, Any]]:
    """A page's elements and the values of its blocks of data."""
    elements = Elements(file.read_text())
    blocks = {
        str(attributes["id"]): decode(gzip.decompress(base64.b64decode(text)))
        for attributes, text in elements.of("script")
        if "id" in attributes
    }
    return elements, blocks


@pytest.mark.parametrize("family", FAMILIES)
def test_the_numbers_in_it_are_the_lens_own(runs: dict[str, Any], family: str, tmp_path: Path) -> None:
    run = runs[family]
    outputs: dict[str, Any] = {"output": "the river"} if family == "encoder-decoder" else {}
    _, blocks = opened(cf.export_page(run, tmp_path / "page.html", text=TEXT, head=1, **outputs))
    answers = blocks["index"]["answers"]
    shown = [each["view"] for each in answers]
    assert {name for name, view in views_of(run).items() if not view.beside} <= set(shown)
    numbers, heads = ([i for i, name in enumerate(shown) if name == beside] for beside in ("cell", "pattern"))
    patterns = blocks[f"answer-{shown.index('attention')}"]["found"]["patterns"]
    assert len(heads) == sum(map(len, patterns.values()))
    assert len(numbers) == len(blocks[f"answer-{shown.index('block')}"]["found"]["arrays"])
    others = [i for i, name in enumerate(shown) if name not in ("cell", "pattern")]
    for i in others + numbers[::7] + heads[::5]:
        if VIEWS[shown[i]].is_long:
            assert "takes too long for an exported page" in blocks[f"answer-{i}"]["error"]
            continue
        scope: dict[str, Any] = {}
        exec(blocks[f"answer-{i}"]["python"], scope)  # noqa: S102  (our own snippet)
        same(blocks[f"answer-{i}"]["found"], scope["found"])
        assert i in heads or answers[i]["selection"]["head"] == 1


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let an exported page have these views alone, which are those that a test looks at."""
    monkeypatch.setattr(export, "VIEWS", {name: VIEWS[name] for name in names})
    beside = {name: chosen for name, chosen in export.BESIDE.items() if name in names}
    monkeypatch.setattr(export, "BESIDE", beside)


def test_the_heads_of_both_texts_are_held_however_long_the_texts_are(
    runs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "attention", "block", "score", "pattern")
    run, longer = runs["encoder-decoder"], "the bank of the river is by the bank of the river"
    for text, output in (("the bank", longer), (longer, "the bank")):
        parts: tuple[dict[str, Any], ...] = ({}, {"part": "encoder"})
        for selected in parts:
            page = cf.export_page(run, tmp_path / "page.html", text=text, output=output, **selected)
            _, blocks = opened(page)
            shown = [each["view"] for each in blocks["index"]["answers"]]
            for view in ("pattern", "block", "score"):
                for i in (i for i, each in enumerate(shown) if each == view):
                    assert "error" not in blocks[f"answer-{i}"], (view, selected)
            (tmp_path / "page.html").unlink()


def test_two_runs_are_exported_as_their_difference(runs: dict[str, Any], tmp_path: Path) -> None:
    run = runs["decoder"]
    other = cf.Run(cf.build(run.model.config), run.tokenizer).save(tmp_path / "other")
    _, blocks = opened(cf.export_page(run, tmp_path / "page.html", text=TEXT, versus=other))
    answers = [(each["view"], blocks[f"answer-{i}"]) for i, each in enumerate(blocks["index"]["answers"])]
    views = [view for view, _ in answers]
    assert {"comparison", "matched", "tokens", "block", "attention", "pattern", "ledger", "lens"} <= set(
        views
    )
    for view, answer in answers:
        if view in ("comparison", "matched", "ledger", "pattern"):
            scope: dict[str, Any] = {}
            exec(answer["python"], scope)  # noqa: S102  (our own snippet)
            same(answer["found"], scope["found"])
            assert len(answer["runs"]) == 2
    assert f"compared with the run {other.name} step 0" in blocks["index"]["about"]
    assert blocks["index"]["first"]["versus"] == other.name
    assert set(blocks["index"]["lines"]) == {run.name, other.name}


def test_a_run_beside_its_own_step_says_where_to_choose_the_step(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    with home_with_data(tmp_path):
        run = trained("decoder")
        _, blocks = opened(cf.export_page(run, file, text="the bank", versus=run.name, versus_checkpoint="0"))
    assert "choose step 0 under" in blocks["index"]["python"]


def test_two_runs_of_other_tokens_are_exported_and_their_views_say_so(
    runs: dict[str, Any], tmp_path: Path
) -> None:
    made = run_of("decoder", "byte")
    other = cf.Run(made.model, made.tokenizer).save(tmp_path / "other")
    _, blocks = opened(cf.export_page(runs["decoder"], tmp_path / "page.html", text=TEXT, versus=other))
    answers = {each["view"]: blocks[f"answer-{i}"] for i, each in enumerate(blocks["index"]["answers"])}
    assert "token" in answers["tokens"]["error"]
    assert "found" in answers["overview"]
    assert "pieces" not in answers


def test_its_policy_names_its_one_script_and_style_and_nothing_else(
    runs: dict[str, Any], tmp_path: Path
) -> None:
    elements, _ = opened(cf.export_page(runs["decoder"], tmp_path / "page.html", text=TEXT))
    [policy] = [each["content"] for each, _ in elements.of("meta") if each.get("http-equiv")]
    [script] = [text for each, text in elements.of("script") if each["type"] == "module"]
    [(_, style)] = elements.of("style")
    assert policy == (
        f"default-src 'none'; script-src '{hashed(script)}'; style-src '{hashed(style)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    assert not [
        each for _, each, _ in elements.found if "src" in each or any(name.startswith("on") for name in each)
    ]
    assert [each["href"] for each, _ in elements.of("link")] == ["data:,"]


def test_each_view_is_drawn_as_it_is_by_itself(runs: dict[str, Any], tmp_path: Path) -> None:
    run = runs["encoder"]
    _, blocks = opened(cf.export_page(run, tmp_path / "page.html", text="the bank"))
    answers = blocks["index"]["answers"]
    drawn = {each["view"]: blocks[f"picture-{i}"] for i, each in enumerate(answers) if each["is_drawn"]}
    views = views_of(run)
    assert set(drawn) == {name for name, view in views.items() if not view.beside and not view.is_long}
    assert all(svg.startswith("<?xml") and svg.rstrip().endswith("</svg>") for svg in drawn.values())
    assert len([name for name in blocks if name.startswith("picture-")]) == len(drawn)


def test_without_matplotlib_nothing_is_drawn(
    runs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any) -> bytes:
        raise MissingPackageError("a figure needs matplotlib")

    monkeypatch.setattr(View, "drawn", missing)
    _, blocks = opened(cf.export_page(runs["decoder"], tmp_path / "page.html", text=TEXT))
    assert not any(each["is_drawn"] for each in blocks["index"]["answers"])


def test_every_view_that_is_opened_beside_others_is_held() -> None:
    assert {name for name, view in VIEWS.items() if view.beside} == export.BESIDE.keys()


def hashed(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def test_a_text_that_looks_like_markup_ends_nothing(runs: dict[str, Any], tmp_path: Path) -> None:
    run = cf.Run(runs["decoder"].model, runs["decoder"].tokenizer).save(tmp_path / "a & <b>'\"")
    plain, _ = opened(cf.export_page(run, tmp_path / "plain.html", text="the"))
    elements, blocks = opened(cf.export_page(run, tmp_path / "page.html", text=WICKED))
    assert blocks["index"]["first"]["text"] == WICKED
    assert {name for name, _, _ in elements.found} == {name for name, _, _ in plain.found}
    [(_, title)] = elements.of("title")
    assert unescape(title) == f"{run.name} · clearformer"
    assert WICKED not in (tmp_path / "page.html").read_text()


def test_a_view_that_cannot_be_had_says_why_and_the_others_are_there(
    runs: dict[str, Any], tmp_path: Path
) -> None:
    _, blocks = opened(cf.export_page(runs["decoder"], tmp_path / "page.html", text=TEXT, position=1, key=3))
    answers = {each["view"]: blocks[f"answer-{i}"] for i, each in enumerate(blocks["index"]["answers"])}
    assert "key 3: the query at position 1 may not read it" in answers["score"]["error"]
    np.testing.assert_array_equal(
        answers["tokens"]["found"]["losses"], cf.lens.tokens(runs["decoder"], TEXT).losses
    )


@pytest.mark.parametrize("damaged", [b'{"step": 2, "lo', b"\xff" * 8])
def test_a_run_whose_metrics_are_damaged_is_exported_and_says_so(
    runs: dict[str, Any], tmp_path: Path, damaged: bytes
) -> None:
    run = runs["decoder"].save(tmp_path / "damaged")
    run.folder.metrics_file.write_bytes(
        b'{"step": 1, "loss": 1.0}\n' + damaged + b'\n{"step": 3, "loss": 1.0}\n'
    )
    _, blocks = opened(cf.export_page(run, tmp_path / "page.html", text=TEXT))
    assert blocks["index"]["lines"] == {run.name: []}
    [place] = [i for i, each in enumerate(blocks["index"]["answers"]) if each["view"] == "training"]
    assert "line 2" in blocks[f"answer-{place}"]["error"]


@pytest.mark.parametrize(
    ("family", "selected", "line"),
    [
        ("decoder", {"position": 99}, "position 99 is beyond the text"),
        ("decoder", {"position": -99}, "position -99 is beyond the text"),
        ("decoder", {"layer": 9}, "layer 9: there are 3 layers, 0 to 2"),
        ("decoder", {"head": 2}, "head 2: there are 2 heads, 0 to 1"),
        ("decoder", {"part": "cross_attn"}, "part: only an encoder-decoder has cross_attn"),
        ("decoder", {"target": "zz"}, "target: 'zz' is not a token"),
        ("encoder", {"foil": "zz"}, "foil: 'zz' is not a token"),
        ("encoder-decoder", {"part": "encoder", "position": 99}, "position 99 is beyond the source"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(
    family: str, selected: dict[str, Any], line: str, runs: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"^{line}"):
        cf.export_page(runs[family], tmp_path / "page.html", text=TEXT, **selected)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_is_said_and_nothing_is(
    runs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, file = runs["decoder"], tmp_path / "page.html"
    with pytest.raises(UserError, match=re.escape("ends in .html; got 'page.txt'")):
        cf.export_page(run, "page.txt")
    with pytest.raises(UserError, match="positoin"):
        cf.export_page(run, file, positoin=3)
    with pytest.raises(UserError, match="the text is empty"):
        cf.export_page(run, file, text="")
    with monkeypatch.context() as patch:
        patch.setattr(export, "MOST_BYTES", 2 * 2**20 // 10)
        with pytest.raises(UserError, match=f"text: a page of its {len(TEXT)} characters exceeds 0 MB"):
            cf.export_page(run, file, text=TEXT)
    assert not file.exists()
    file.write_text("mine")
    with pytest.raises(UserError, match="exists; choose another name, or delete it"):
        cf.export_page(run, file, text=TEXT)
    assert file.read_text() == "mine"


def test_the_command_writes_it_and_opens_no_server(
    runs: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, name = str(tmp_path / "page.html"), runs["decoder"].name
    assert main(["look", name, "--export", file, "--text", "the river"]) == 0
    assert (
        capsys.readouterr().out
        == f"{file}: {Path(file).stat().st_size / 2**10:.1f} KiB; open it in a browser\n"
    )
    _, blocks = opened(Path(file))
    assert blocks["index"]["first"]["text"] == "the river"
    for arguments, words in (
        ([file], f"--export: {file} exists"),
        (["page.pdf"], "--export: a page is written to a file that ends in .html"),
        ([""], "--export: the name is empty"),
        (["new.html", "--port", "8000"], "--export: starts no server; omit --port"),
        (["new.html", "--no-browser"], "omit --browser"),
    ):
        assert main(["look", name, "--export", *arguments]) == 2
        assert words in capsys.readouterr().err
    assert main(["look", name, name, "--export", str(tmp_path / "new.html")]) == 2
    assert f"both runs are called {name}" in capsys.readouterr().err


def test_the_command_writes_the_difference_of_two_runs(
    runs: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, "tokens", "ledger")
    run = runs["decoder"]
    torch.manual_seed(2)
    other = cf.Run(cf.build(run.model.config), run.tokenizer).save(tmp_path / "another")
    file = tmp_path / "both.html"
    assert main(["look", run.name, str(other.folder.path), "--export", str(file), "--text", TEXT]) == 0
    capsys.readouterr()
    _, blocks = opened(file)
    index = blocks["index"]
    assert (index["first"]["versus"], index["first"]["versus_checkpoint"]) == (other.name, str(other.step))
    [place] = [i for i, answer in enumerate(index["answers"]) if answer["view"] == "ledger"]
    changes = lens.beside(lens.ledger, run, other, TEXT).changes
    assert blocks[f"answer-{place}"]["found"]["changes"]["logit"] == pytest.approx(changes.logit, abs=1e-5)


def test_the_server_writes_it_of_what_is_selected(decoder_page: Client) -> None:
    selection = card(decoder_page)["first"] | {"position": 2, "layer": 1}
    status, headers, content = decoder_page.ask("POST", "/api/export", selection)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert content.startswith(b"<!doctype html>")
    status, _, answer = decoder_page.ask("POST", "/api/export", selection | {"text": ""})
    assert status == 400
    assert b"the text is empty" in answer
