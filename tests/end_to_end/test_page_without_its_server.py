"""The page as one file opened from disk, and a view in a notebook: in headless Chromium, by what stands there."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import clearformer as cf
from clearformer import lens
from clearformer.model import ModelConfig
from clearformer.model.attention import MultiHead
from clearformer.page.standalone import export
from clearformer.page.views import views_of
from clearformer.text import BPETokenizerSpec, specials_of

from ..seeding import seed
from ..unit.lens.test_embeddings import TEXT
from ..unit.lens.trainings import home_with_data, trained
from ..unit.page.conftest import FAMILIES, saved_runs
from .test_page_in_a_browser import CHROMIUM, MINUS, MOST_TRIES, api, section_of

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no browser here")
MOST_WAITING = 30_000  # milliseconds
RIGHTS = "all => all.map((each) => each.getBoundingClientRect().right)"
GAPS = """all => all.map((each) => {
  const [token, score] = [...each.querySelectorAll("text")].map((text) => text.getBoundingClientRect());
  return score.left - token.right;
})"""
TOP = "document.getElementById('beams').getBoundingClientRect().top"
WICKED = "the </script><!-- <b>bank</b> &amp; '\" ]]>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return saved_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def files(runs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages of all families as files; each view has a picture, and the three that are looked at have their own."""
    folder = tmp_path_factory.mktemp("pages")
    outputs = {"encoder-decoder": {"output": "the river"}}
    drawn = export.picture_of

    def few(view: Any, answer: Any) -> str | None:
        if view.beside or "found" not in answer or view.function in ("ledger", "block", "next_draw"):
            return drawn(view, answer)
        return "<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'/>"

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(export, "picture_of", few)
        return {
            family: cf.export_page(
                run,
                folder / f"{family}.html",
                text=TEXT,
                pictures=family == "decoder",
                **outputs.get(family, {}),
            )
            for family, run in runs.items()
        }


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        api.expect.set_options(timeout=MOST_WAITING)
        yield context
        browser.close()


class Opened:
    """A page that is opened, with what it complained of and asked for."""

    def __init__(self, context: Any, address: str) -> None:
        self.page = context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on(
            "console",
            lambda message: self.complaints.append(message.text) if message.type == "error" else None,
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)
        self.page.wait_for_selector("section.view")

    def section(self, name: str, shown: str = ".content > *") -> Any:
        return section_of(self.page, name, shown)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exported_page_shows_every_view_and_asks_for_nothing(
    context: Any, runs: dict[str, Any], files: dict[str, Path], family: str
) -> None:
    file = files[family]
    opened = Opened(context, file.as_uri())
    for name, view in views_of(runs[family]).items():
        if view.beside or view.is_long:
            continue
        section = opened.section(name)
        assert section.locator(":scope > .error:not(:empty)").count() == 0, section.inner_text()
        assert section.locator(".content").inner_text().strip()
        as_picture = api.expect(section.get_by_role("button", name="PNG").first)
        (as_picture.to_be_enabled if family == "decoder" else as_picture.to_be_disabled)()
    assert opened.page.locator("textarea[name=text]").is_disabled()
    assert opened.page.locator("input[name=layer]").is_disabled()
    assert "exported page of the run" in opened.page.locator(".banner").inner_text()
    assert opened.complaints == []
    assert [url for url in opened.asked if not url.startswith("data:")] == [file.as_uri()]
    opened.page.close()


def test_an_exported_page_is_explored_as_far_as_its_numbers_go(
    context: Any, runs: dict[str, Any], files: dict[str, Path]
) -> None:
    run = runs["decoder"]
    opened = Opened(context, files["decoder"].as_uri())
    page = opened.page
    ledger = opened.section("ledger")
    assert f"{abs(lens.ledger(run, TEXT).logit):.4f}" in ledger.locator(".sum").inner_text()
    opened.section("tokens").locator("[role=option]").nth(2).click()
    api.expect(page.locator("#tokens .facts")).to_contain_text(
        f"{lens.tokens(run, TEXT).probabilities[2]:.4f}"
    )
    n = len(lens.tokens(run, TEXT).tokens)
    api.expect(ledger.locator("header .badge")).to_have_text(f"as exported: position {n - 1}")
    attention = opened.section("attention")
    attention.locator(".wall button").nth(1).click()
    api.expect(attention.locator("h3")).to_have_text("layer 0, head 1")
    attention.locator("[role=gridcell]").focus()
    page.keyboard.press("Home")
    own = lens.attention(run, TEXT).patterns["blocks.0.attn.hook_pattern"]
    api.expect(attention.locator(".reading")).to_contain_text(f"{own[1, 2, 0]:.4f}")
    sampling = opened.section("sampling")
    assert sampling.get_by_role("button", name="Append").is_disabled()
    assert sampling.locator("input[name=temperature]").is_disabled()
    ledger.get_by_role("button", name="Table").click()
    n_parts = len(lens.ledger(run, TEXT).parts)
    api.expect(ledger.locator(".as-table tbody tr")).to_have_count(n_parts)
    ledger.get_by_role("button", name="Copy as Python").click()
    api.expect(ledger.locator(".said")).to_have_text("copied")
    assert "cf.lens.ledger(run" in page.evaluate("navigator.clipboard.readText()")
    with page.expect_download() as download:
        ledger.get_by_role("button", name="CSV").click()
    assert download.value.path().read_text().startswith("part,layer,head,value")
    ledger.get_by_role("button", name="Enlarge").click()
    assert "is-large" in (ledger.get_attribute("class") or "")
    page.keyboard.press("Escape")
    assert opened.complaints == []
    page.close()


@pytest.mark.parametrize(
    ("width", "place"), [(1280, 200), (500, 16)]
)  # of a view's top: under the bar, if it stays
def test_a_link_to_a_view_leads_there_though_the_views_above_come_meanwhile(
    context: Any, files: dict[str, Path], width: int, place: int
) -> None:
    opened = Opened(context, files["decoder"].as_uri())
    page = opened.page
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(reduced_motion="no-preference")  # the way there is what is tested
    page.get_by_role("link", name="Beam tree").click()
    assert top_at_rest(page) == place
    page.mouse.move(width / 2, 600)
    page.mouse.wheel(0, -300)
    assert top_at_rest(page) == place + 300
    page.goto("about:blank")
    page.goto(f"{files['decoder'].as_uri()}#beams")
    page.wait_for_selector("section.view")
    assert top_at_rest(page) == place
    assert opened.complaints == []
    page.close()


def top_at_rest(page: Any) -> int:
    """Where the top of the beam tree stands in the window, once it has stood there for a moment."""
    tops: list[int] = []
    for _ in range(MOST_TRIES):
        page.wait_for_timeout(100)
        tops.append(round(page.evaluate(TOP)))
        if len(tops) > 8 and len(set(tops[-8:])) == 1:
            break
    return tops[-1]


def test_an_exported_training_offers_no_second_look(context: Any, tmp_path: Path) -> None:
    with home_with_data(tmp_path):
        file = cf.export_page(trained("decoder"), tmp_path / "trained.html", pictures=False)
    opened = Opened(context, file.as_uri())
    training = opened.section("training")
    api.expect(training.locator(".events .error")).to_contain_text("takes too long for an exported page")
    assert training.get_by_role("button", name="Look again").count() == 0
    opened.page.close()


def test_the_map_of_an_encoder_decoder_has_two_stacks_that_share_the_embedding(
    context: Any, runs: dict[str, Any], files: dict[str, Path]
) -> None:
    opened = Opened(context, files["encoder-decoder"].as_uri())
    embedding = lens.architecture(runs["encoder-decoder"]).components[0]
    overview = opened.section("overview")
    api.expect(overview.locator(".stack h3")).to_have_text(["encoder", "decoder"])
    assert overview.locator(".block > p").all_inner_texts() == ["block 0 of 0 to 2"] * 2
    embeddings = overview.locator(".box[title=embed] small").all_inner_texts()
    assert embeddings == [f"{embedding.parameters / 1000:.1f}k", "shared"]
    opened.page.close()


@pytest.fixture(scope="module")
def long_tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a text of 45 tokens, some of which are long, by a model of 11 heads."""
    seed(0)
    text = " ".join(["The counterrevolutionaries bluntly lend internationalization"] * 9)
    tokenizer = BPETokenizerSpec(vocab_size=350).train([text] * 3, specials=specials_of("decoder"))
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, d_model=22, n_layers=1, attention=MultiHead(n_heads=11)
    )
    folder = tmp_path_factory.mktemp("long")
    run = cf.Run(cf.build(config), tokenizer).save(folder / "run")
    return cf.export_page(run, folder / "page.html", text=text, pictures=False)


def test_bytes_that_are_not_in_the_file_are_not_those_of_another_token(
    context: Any, runs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long text the file has the bytes of the chosen token alone."""
    monkeypatch.setattr(export, "MOST_TOKENS", 2)
    file = cf.export_page(runs["decoder"], tmp_path / "page.html", text=TEXT, position=3, pictures=False)
    opened = Opened(context, file.as_uri())
    tokens = opened.section("tokens", ".pieces")
    api.expect(tokens.locator(".pieces")).to_be_visible()
    tokens.locator(".strip [role=option]").nth(5).click()
    api.expect(tokens.locator(".facts dd").first).to_contain_text("5 of")
    api.expect(tokens.locator(".pieces")).to_have_count(0)
    tokens.locator(".strip [role=option]").nth(3).click()
    api.expect(tokens.locator(".pieces")).to_be_visible()
    assert opened.complaints == []
    opened.page.close()


def test_what_a_query_reads_is_within_the_card(context: Any, long_tokens: Path) -> None:
    opened = Opened(context, long_tokens.as_uri())
    for width in (1280, 1000, 500):
        opened.page.set_viewport_size({"width": width, "height": 900})
        attention = opened.section("attention")
        api.expect(attention.locator(".reads b").first).to_be_visible()
        most = attention.evaluate("each => each.getBoundingClientRect().right - 16")
        rights = attention.locator(".reads li > *").evaluate_all(RIGHTS)
        assert max(rights) <= most + 1, width
        pattern = attention.locator(".heatmap-body").evaluate("each => each.clientWidth")
        assert pattern > 300, width
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    opened.page.close()


def test_a_token_of_the_beam_tree_ends_before_its_score(context: Any, long_tokens: Path) -> None:
    opened = Opened(context, long_tokens.as_uri())
    scored = ".beam-tree g:has(> .score:not(:empty))"
    nodes = opened.section("beams", scored).locator(scored)
    nodes.first.wait_for()
    gaps = nodes.evaluate_all(GAPS)
    assert len(gaps) > 10
    assert min(gaps) > 2
    assert any("…" in words for words in nodes.all_text_contents())
    opened.page.close()


def test_views_of_an_exported_page_are_saved_as_pictures(context: Any, files: dict[str, Path]) -> None:
    opened = Opened(context, files["decoder"].as_uri())
    for name in ("ledger", "block", "sampling"):
        for kind, beginning in (("SVG", b"<?xml"), ("PNG", b"\x89PNG")):
            section = opened.section(name)
            with opened.page.expect_download() as download:
                section.get_by_role("button", name=kind).click()
            content = download.value.path().read_bytes()
            assert content.startswith(beginning)
            assert download.value.suggested_filename == f"{name}.{kind.lower()}"
            assert len(content) > 5_000
    assert opened.complaints == []
    opened.page.close()


def test_the_inspector_of_an_exported_page_explains_one_number_of_each_matrix(
    context: Any, runs: dict[str, Any], files: dict[str, Path]
) -> None:
    run = runs["decoder"]
    opened = Opened(context, files["decoder"].as_uri())
    block = opened.section("block")
    matrices = block.locator("figure.matrix")
    found = lens.block(run, TEXT)
    assert matrices.count() == len(found.arrays)
    at = next(i for i, array in enumerate(found.arrays) if array.name == "blocks.0.attn.hook_q")
    cell = matrices.nth(at).locator("[role=gridcell]")
    cell.focus()
    opened.page.keyboard.press("Enter")
    inspector = block.locator(".inspector")
    explained = lens.cell(run, TEXT, name="blocks.0.attn.hook_q", row=found.position, column=0)
    api.expect(inspector.locator(".inspected")).to_contain_text(f"{abs(explained.value):.4f}")
    cell.focus()
    for key in ("ArrowRight", "Enter"):
        opened.page.keyboard.press(key)
    api.expect(inspector.locator(".error")).to_contain_text(f"of this one, [{found.position}, 0]")
    assert opened.complaints == []
    opened.page.close()


def test_a_text_that_looks_like_markup_is_a_text(context: Any, runs: dict[str, Any], tmp_path: Path) -> None:
    page = cf.export_page(runs["decoder"], tmp_path / "page.html", text=WICKED, pictures=False)
    opened = Opened(context, page.as_uri())
    assert opened.page.input_value("textarea[name=text]") == WICKED
    tokens = opened.section("tokens").locator("[role=option]").all_inner_texts()
    assert "".join(tokens).replace("\N{OPEN BOX}", " ") == WICKED
    assert opened.page.locator("main b:text-is('bank'), main script").count() == 0
    assert opened.complaints == []
    opened.page.close()


def test_the_button_gives_the_page_as_it_is(
    context: Any, runs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "picture_of", lambda *_: None)  # which take seconds; `files` has some
    looking = cf.look(runs["decoder"], text=TEXT, browser=False)
    live = Opened(context, looking.address + "&layer=1&head=1&position=3")
    with live.page.expect_download() as download:
        live.page.get_by_role("button", name="Export").click()
    api.expect(live.page.locator(".export .said")).to_contain_text("MB")
    looking.close()
    live.page.close()
    content = download.value.path()
    file = content.rename(content.with_suffix(".html"))
    opened = Opened(context, file.as_uri())
    api.expect(opened.section("attention").locator("h3")).to_have_text("layer 1, head 1")
    assert f"{abs(lens.ledger(runs['decoder'], TEXT, position=3).logit):.4f}" in (
        opened.section("ledger").locator(".sum").inner_text()
    )
    opened.page.close()


# --- a view in a notebook ---------------------------------------------------------------------------------

NOTEBOOK = """<!doctype html><link rel="icon" href="data:," />
<style>h2 { color: rgb(1, 2, 3) } body { font-family: monospace; margin: 16px }</style>
<h2 id="own">the notebook's own</h2><div id="cell"></div><script type="module">
import widget from "/widget.js";
const read = async (path, body) => (await fetch(path, { method: "POST", body: JSON.stringify(body) })).json();
const view = (text) => new DataView(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
const listeners = {};
const tell = (event, ...values) => [...(listeners[event] ?? [])].forEach((listener) => listener(...values));
const state = {};
let changed = {};
const isNew = (name, value) => name === "answer" || JSON.stringify(value) !== JSON.stringify(state[name]);
const take = (traits) => {
  traits.answer = view(traits.answer);
  const names = Object.keys(traits).filter((name) => isNew(name, traits[name]));
  Object.assign(state, traits);
  names.forEach((name) => tell(`change:${name}`));
};
const model = {
  get: (name) => state[name],
  set: (name, value) => {
    state[name] = changed[name] = value;
    tell(`change:${name}`);
  },
  on: (event, listener) => (listeners[event] ??= []).push(listener),
  off: (event, listener) => {
    listeners[event] = (listeners[event] ?? []).filter((each) => each !== listener);
  },
  save_changes: async () => {
    const sent = changed;
    changed = {};
    take(await read("/traits", sent));
  },
  send: async (message) => {
    for (const { content, buffers } of await read("/message", message)) {
      tell("msg:custom", content, buffers.map(view));
    }
  },
};
take(await read("/traits", {}));
window.end = widget.render({ model, el: document.getElementById("cell") });
</script>"""
SENT = ("view", "title", "about", "uses", "stylesheet", "selection", "asked", "error", "answered")


class Notebook:
    """A page that shows a widget, with a stand-in for a notebook's side of anywidget's protocol."""

    def __init__(self, widget: Any) -> None:
        self.widget, self.replies = widget, []
        widget.send = lambda content, buffers=(): self.replies.append(
            {"content": content, "buffers": [base64.b64encode(each).decode() for each in buffers]}
        )
        answers = {
            "/": self.page,
            "/widget.js": self.script,
            "/traits": self.traits,
            "/message": self.message,
        }

        one_at_a_time = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.path not in answers:
                    self.send_error(404)
                    return
                with one_at_a_time:  # as in a kernel
                    kind, content = answers[self.path](json.loads(body) if body else None)
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.end_headers()
                self.wfile.write(content.encode())

            def log_request(self, code: Any = "-", size: Any = "-") -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}/"

    def page(self, _: Any) -> tuple[str, str]:
        return "text/html", NOTEBOOK

    def script(self, _: Any) -> tuple[str, str]:
        return "text/javascript", self.widget._esm

    def traits(self, changed: dict[str, Any]) -> tuple[str, str]:
        for name, value in changed.items():
            setattr(self.widget, name, value)
        traits = {name: getattr(self.widget, name) for name in SENT}
        answer = base64.b64encode(self.widget.answer).decode()
        return "application/json", json.dumps(traits | {"answer": answer})

    def message(self, content: dict[str, Any]) -> tuple[str, str]:
        self.replies.clear()
        self.widget._handle_custom_msg(content, [])
        return "application/json", json.dumps(self.replies)

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def shown() -> Iterator[Any]:
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    notebooks = []

    def show(*arguments: Any, **selected: Any) -> Notebook:
        notebooks.append(Notebook(lens.show(*arguments, **selected)))
        return notebooks[-1]

    yield show
    for each in notebooks:
        each.close()


def test_a_view_in_a_notebook_is_pressed_and_answers_from_python(
    context: Any, runs: dict[str, Any], shown: Any
) -> None:
    run = runs["decoder"]
    notebook = shown(run, TEXT, "tokens", position=1)
    opened = Opened(context, notebook.address)
    own = lens.tokens(run, TEXT)
    api.expect(opened.page.locator("section .facts")).to_contain_text(f"{own.probabilities[1]:.4f}")
    opened.page.locator("section [role=option]").nth(4).click()
    api.expect(opened.page.locator("section .facts")).to_contain_text(f"{own.probabilities[4]:.4f}")
    assert told(opened.page, notebook, "position", 4)
    assert opened.page.evaluate("getComputedStyle(document.getElementById('own')).color") == "rgb(1, 2, 3)"
    title = "document.querySelector('#cell > div').shadowRoot.querySelector('h2')"
    assert opened.page.evaluate(f"getComputedStyle({title}).color") != "rgb(1, 2, 3)"
    opened.page.evaluate("window.end()")
    assert opened.page.locator("section").count() == 0
    assert opened.complaints == []
    opened.page.close()


def test_a_view_in_a_notebook_offers_no_way_to_others_that_are_not_there(
    context: Any, runs: dict[str, Any], shown: Any
) -> None:
    opened = Opened(context, shown(runs["encoder"], TEXT, "tokens", masked=[1]).address)
    api.expect(opened.page.get_by_role("button", name="Show all")).to_have_count(1)
    assert opened.page.get_by_role("button", name="What the model fills in").count() == 0
    opened.page.close()
    opened = Opened(context, shown(runs["decoder"], TEXT, "overview").address)
    boxes = opened.page.locator("section .box:has(b:text-is('token embedding'))")
    api.expect(boxes).to_have_count(1)
    assert boxes.evaluate("box => box.tagName") == "DIV"
    assert opened.page.locator("section button.box").count() > 0  # which choose a layer
    opened.page.close()


def told(page: Any, notebook: Any, name: str, value: Any) -> bool:
    """Whether the kernel comes to know a part of the selection, which it is told after the page."""
    for _ in range(MOST_TRIES):
        if notebook.widget.selection[name] == value:
            return True
        page.wait_for_timeout(50)
    return False


def test_a_desk_in_a_notebook_asks_the_kernel_for_what_is_selected(
    context: Any, runs: dict[str, Any], shown: Any
) -> None:
    run = runs["decoder"]
    notebook = shown(run, TEXT, "sampling")
    opened = Opened(context, notebook.address)
    page = opened.page
    before = lens.next_draw(run, TEXT)
    api.expect(page.locator("section .facts")).to_contain_text(f"{before.entropy_after:.3f} (drawn from)")
    page.fill("input[name=top_k]", "3")
    page.keyboard.press("Tab")
    after = lens.next_draw(run, TEXT, top_k=3)
    api.expect(page.locator("section .facts")).to_contain_text(f"{after.entropy_after:.3f} (drawn from)")
    assert notebook.widget.found.entropy_after == after.entropy_after
    drawn = [int(after.ids[after.drawn])]
    page.get_by_role("button", name="Append").click()
    next_one = lens.next_draw(run, TEXT, top_k=3, drawn=drawn)
    api.expect(page.locator("section .facts")).to_contain_text(f"{next_one.entropy_after:.3f} (drawn from)")
    assert told(page, notebook, "drawn", drawn)
    assert opened.complaints == []
    page.close()


def test_windows_in_a_notebook_are_of_the_prediction_that_is_selected(
    context: Any, shown: Any, tmp_path: Path
) -> None:
    with home_with_data(tmp_path):
        notebook = shown(trained("decoder"), "the bank", "learned", sample=4)
        opened = Opened(context, notebook.address)
        learned = opened.page.locator("section .learned")
        api.expect(learned.locator(".passages").first).to_be_visible()
        assert learned.locator(".is-stale").count() == 0
        assert learned.get_by_text("of another prediction").count() == 0
        opened.page.close()


def test_the_inspector_and_pictures_come_by_messages(context: Any, runs: dict[str, Any], shown: Any) -> None:
    run = runs["decoder"]
    name = "blocks.0.attn.hook_q"
    notebook = shown(run, TEXT, "block", matrix=name, row=1, column=2)
    opened = Opened(context, notebook.address)
    explained = lens.cell(run, TEXT, name=name, row=1, column=2)
    sign = MINUS if explained.value < 0 else ""
    api.expect(opened.page.locator(".inspected")).to_contain_text(f"{sign}{abs(explained.value):.4f}")
    with opened.page.expect_download() as download:
        opened.page.get_by_role("button", name="SVG").click()
    assert b"<svg" in download.value.path().read_bytes()
    notebook.widget._answer = lambda _: 1 / 0  # type: ignore[method-assign]
    opened.page.get_by_role("button", name="PNG").click()
    api.expect(opened.page.locator(".said").first).to_contain_text("this view failed")
    opened.page.close()
