"""The page as a person uses it: in headless Chromium, by mouse and by keyboard alone."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import clearformer as cf
from clearformer import lens
from clearformer.page import look
from clearformer.page.selection import Selection
from clearformer.page.views import VIEWS
from clearformer.page.wire import encode

from ..unit.lens.test_embeddings import SPECS, TEXT, run_of
from ..unit.lens.trainings import EVERY, STEPS, home_with_data, trained
from ..unit.page.conftest import FAMILIES, saved_runs

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
api.expect.set_options(timeout=20_000)  # other programs may use the machine
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
MINUS = "\N{MINUS SIGN}"
SIZE: Any = {"width": 1280, "height": 900}
FOCUSED = "(at => [at.closest('section')?.id ?? '', at.getAttribute('role') || at.name || ''])(document.activeElement)"
KEEP_WORDS = """window.written = [];
const { fillText } = CanvasRenderingContext2D.prototype;
CanvasRenderingContext2D.prototype.fillText = function (words, ...where) {
  written.push(words);
  return fillText.call(this, words, ...where);
};"""
PIXELS = """(red) => {
  const canvas = document.querySelector("#training .curve canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return data.filter((each, i) => i % 4 === 0 && each === red && data[i + 3] === 255).length;
}"""  # of the first curve that have so much red
QUEUED = """const Observer = IntersectionObserver;
window.IntersectionObserver = function (told, options) {
  return new Observer((entries) => told([...entries.map(() => ({ isIntersecting: false })), ...entries]), options);
};"""  # an older word that nothing is near waits before each newer one
MOST_TRIES, MOST_TABS = 300, 300
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=f"there is no browser here ({', '.join(BROWSERS)})")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return saved_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Window:
    """A browser's window on the page of a run, that keeps what went wrong in it and what it asked for."""

    def __init__(self, browser: Any, run: Any, text: str = TEXT, other: Any = None) -> None:
        self.runs, self.text = (run, other), text
        self.context = browser.new_context(viewport=SIZE, reduced_motion="reduce")
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on(
            "console",
            lambda message: self.complaints.append(message.text) if message.type == "error" else None,
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.enter()

    def enter(self) -> None:
        """Open the page of a server that begins."""
        self.looking = look(*self.runs, text=self.text, browser=False)
        self.host = urlsplit(self.looking.address).netloc
        self.page.goto(self.looking.address)
        self.page.wait_for_selector("section.view")

    def enter_anew(self) -> None:
        """Open the page as if nothing had been done in this window."""
        self.page.goto("about:blank")
        self.looking.close()
        for other in self.context.pages[1:]:
            other.close()
        self.context.clear_cookies()
        self.page.emulate_media(color_scheme="light")
        self.page.set_viewport_size(SIZE)
        self.complaints.clear()
        self.asked.clear()
        self.enter()

    def section(self, name: str) -> Any:
        """A view, once it has come."""
        return section_of(self.page, name)

    def selected(self) -> dict[str, str]:
        """What the address says."""
        return {name: values[0] for name, values in parse_qs(urlsplit(self.page.url).query).items()}

    def close(self) -> None:
        self.context.close()
        self.looking.close()


@contextmanager
def held(page: Any, view: str) -> Iterator[None]:
    """Keep a view's answers from coming; they come at the end."""
    routes: list[Any] = []
    page.route(f"**/api/view/{view}", lambda route: routes.append(route))
    try:
        yield
    finally:
        for route in routes:
            route.continue_()
        page.unroute(f"**/api/view/{view}")


def section_of(page: Any, name: str, shown: str = ".content > *") -> Any:
    """A view of a page, once it has come and has what is to be shown.

    Views above it grow as they come, so that it is scrolled to again. The page itself scrolls: playwright's own
    scrolling waits until nothing moves, for too long on a busy machine.
    """
    found = page.locator(f"section#{name}")
    for _ in range(MOST_TRIES):
        found.evaluate("view => view.scrollIntoView()")
        if found.locator(f"{shown}, .error:not(:empty)").count():
            break
        page.wait_for_timeout(100)
    return found


@pytest.fixture(scope="module")
def opened(browser: Any, runs: dict[str, Any]) -> Iterator[Window]:
    found = Window(browser, runs["decoder"])
    yield found
    found.close()


@pytest.fixture
def window(opened: Window) -> Window:
    """The page of the decoder as it is when it is opened: a new window takes a browser as long as the page itself."""
    opened.enter_anew()
    return opened


@pytest.mark.parametrize("family", FAMILIES)
def test_every_view_draws_itself_without_a_word_of_complaint(
    browser: Any, runs: dict[str, Any], family: str
) -> None:
    window = Window(browser, runs[family])
    names = window.page.eval_on_selector_all("section.view", "all => all.map(each => each.id)")
    assert len(names) >= 6
    for name in names:
        section = window.section(name)
        assert section.locator(".error:not(:empty)").count() == 0, section.inner_text()
        assert section.locator(".content").inner_text().strip()
    assert window.complaints == []
    assert {urlsplit(url).netloc for url in window.asked if not url.startswith(("data:", "blob:"))} == {
        window.host
    }
    assert "token=" not in window.page.url
    window.close()


def check_signed(shown: list[str], values: list[float]) -> None:
    """Signed numbers of the page against the model's: four digits, or an exponent where they are smaller."""
    assert all(text[0] in "+" + MINUS for text in shown)
    assert [float(text.replace(MINUS, "-")) for text in shown] == pytest.approx(values, abs=5.1e-5)


def test_the_numbers_that_are_read_are_the_models(window: Window, runs: dict[str, Any]) -> None:
    run = runs["decoder"]
    attention = window.section("attention")
    own = lens.attention(run, TEXT).patterns["blocks.0.attn.hook_pattern"]
    attention.locator("[role=gridcell]").focus()
    for _ in range(3):
        window.page.keyboard.press("ArrowRight")
    window.page.wait_for_timeout(50)
    assert attention.locator(".reading").inner_text().endswith(f"{own[0, -1, 3]:.4f}")
    ledger = lens.ledger(run, TEXT)
    assert f"{abs(ledger.logit):.4f}" in window.section("ledger").locator(".sum").inner_text()
    shown = window.section("ledger").locator(".bar-value").all_inner_texts()
    check_signed(shown, [part.value for part in ledger.largest][: len(shown)])
    tokens = lens.tokens(run, TEXT)
    window.section("tokens").locator("[role=option]").nth(2).click()
    api.expect(window.section("tokens").locator(".facts")).to_contain_text("2 of")
    api.expect(window.section("tokens").locator(".facts")).to_contain_text(f"{tokens.probabilities[2]:.4f}")


def test_a_text_that_begins_with_a_token_twice_has_each_loss_at_its_token(
    window: Window, runs: dict[str, Any]
) -> None:
    own = lens.tokens(runs["decoder"], "TT, the bank")
    assert own.tokens[0] == own.tokens[1]
    window.page.fill("textarea[name=text]", "TT, the bank")
    tokens = window.section("tokens").locator("[role=option]")
    api.expect(tokens).to_have_count(len(own.tokens))
    api.expect(tokens.nth(0)).to_have_attribute("aria-label", "0: T, not predicted")
    for place in (1, 2):
        said = re.compile(f"loss {own.losses[place - 1]:.3f} nats")
        api.expect(tokens.nth(place)).to_have_attribute("aria-label", said)


def test_no_spelling_is_checked_in_what_a_model_reads(window: Window) -> None:
    is_checked = "every => every.map(each => each.spellcheck)"
    fields = "textarea, input[type=text]"
    assert not any(window.page.locator(".lens-bar").locator(fields).evaluate_all(is_checked))


def test_a_table_that_was_refused_is_shown_once_it_comes(window: Window, runs: dict[str, Any]) -> None:
    page, table = window.page, "**/api/table/tokens"
    page.route(table, lambda route: route.fulfill(status=400, body='{"error": "not now"}'))
    tokens = window.section("tokens")
    tokens.get_by_role("button", name="Table").click()
    api.expect(tokens.locator(".error:not(:empty)")).to_have_text("not now")
    page.unroute(table)
    page.fill("textarea[name=text]", "the bank")
    api.expect(tokens.locator(".as-table tbody tr")).to_have_count(
        len(lens.tokens(runs["decoder"], "the bank").tokens)
    )
    assert tokens.locator(".error:not(:empty)").count() == 0


def test_no_table_of_another_text_stands_below_an_error(window: Window) -> None:
    tokens = window.section("tokens")
    tokens.get_by_role("button", name="Table").click()
    api.expect(tokens.locator(".as-table")).to_have_count(1)
    window.page.fill("textarea[name=text]", "")
    api.expect(tokens.locator(".error:not(:empty)")).to_contain_text("empty")
    assert tokens.locator(".as-table").count() == 0
    assert tokens.get_by_role("button", name="CSV").is_disabled()


def test_a_class_by_the_mean_of_all_vectors_is_of_the_text(browser: Any) -> None:
    made = run_of("encoder", n_classes=3, pooling="mean")
    window = Window(browser, cf.Run(made.model, made.tokenizer))
    logits = window.section("lens")
    api.expect(logits.locator(".ranks caption")).to_contain_text("of the text")
    assert logits.locator(".column-names").inner_text() == "the text"
    api.expect(logits.locator(".reading")).to_contain_text("of the text: ")
    assert window.section("sources").locator("[aria-current], .is-chosen").count() == 0
    window.section("ledger").locator(".bars button").first.click()
    window.page.wait_for_url("**layer=*")
    assert "position" not in window.selected()
    assert window.complaints == []
    window.close()


def test_a_token_from_right_to_left_leaves_the_numbers_beside_it_alone(browser: Any) -> None:
    hebrew = "\N{HEBREW LETTER SHIN}\N{HEBREW LETTER LAMED}"
    tokenizer = SPECS["char"].train([hebrew])
    model = cf.build(run_of("decoder").model.config.replace(vocab_size=tokenizer.vocab_size))
    window = Window(browser, cf.Run(model, tokenizer), text=hebrew)
    isolated = [f"\N{FIRST STRONG ISOLATE}{letter}\N{POP DIRECTIONAL ISOLATE}" for letter in hebrew]
    reading = window.section("attention").locator(".reading")
    api.expect(reading).to_contain_text(f"query 1 {isolated[1]} reads key 0 {isolated[0]}")
    code = window.section("tokens").locator("code").first
    assert code.evaluate("at => getComputedStyle(at).unicodeBidi") == "isolate"
    window.close()


def test_a_pattern_of_a_page_s_first_text_is_seen_whole(browser: Any, runs: dict[str, Any]) -> None:
    run = runs["decoder"]
    words = " the" * 40
    while len(lens.tokens(run, words).tokens) > 32:
        words = words.removesuffix(" the")
    window = Window(browser, run, text=words)
    box = window.section("attention").locator(".heatmap-body").last
    assert box.evaluate("at => at.scrollHeight - at.clientHeight") <= 0
    window.close()


def test_the_map_leads_to_the_attention_of_each_stack(browser: Any, runs: dict[str, Any]) -> None:
    window = Window(browser, runs["encoder-decoder"])
    stacks = window.section("overview").locator(".stack")
    for stack, title, words in (
        (0, "encoder_blocks.0.attn", ", encoder"),
        (1, "decoder_blocks.0.attn", "layer 0, head 0"),
    ):
        stacks.nth(stack).locator(f".box[title='{title}']").click()
        api.expect(window.page.locator("#attention h3")).to_have_text(re.compile(f"{words}$"))
    window.close()


def test_two_runs_beside_each_other_are_shown_as_a_difference(
    browser: Any, runs: dict[str, Any], tmp_path: Any
) -> None:
    run = runs["decoder"]
    other = cf.Run(cf.build(run.model.config), run.tokenizer).save(tmp_path / "other")
    window = Window(browser, run, other=other)
    both = f"{other.name} step 0 {MINUS} {run.name} step 0"
    for name in ("comparison", "tokens", "block", "attention", "ledger", "lens"):
        section = window.section(name)
        api.expect(section.locator("header .badge")).to_have_text(both)
        assert section.locator(".error:not(:empty)").count() == 0, section.inner_text()
    largest = lens.beside(lens.ledger, run, other, TEXT).changes.largest[0].value
    first_bar = window.section("ledger").locator(".bar-value").first
    api.expect(first_bar).to_have_text(f"{MINUS if largest < 0 else '+'}{abs(largest):.4f}")
    pattern = lens.beside(lens.head_pattern, run, other, TEXT).changes.weights
    attention = window.section("attention")
    api.expect(attention.locator(".reading")).to_have_text(re.compile(rf": ({pattern[-1, 0]:.4f}|.*e-\d)$"))
    api.expect(window.section("sampling").locator("header .badge")).to_have_text(
        f"{run.name} step 0 only: no difference"
    )
    window.page.locator("select[name=versus]").select_option("")
    api.expect(window.page.locator("section#comparison")).to_have_count(0)
    api.expect(window.section("ledger").locator("header .badge")).to_have_count(0)
    own = lens.ledger(run, TEXT)
    api.expect(window.section("ledger").locator(".sum")).to_contain_text(f"{abs(own.logit):.4f}")
    assert urlsplit(window.page.url).query == "versus="  # also in a link: none beside
    window.page.go_back()
    api.expect(window.section("ledger").locator("header .badge")).to_have_text(both)
    assert window.complaints == []
    window.close()


def test_of_two_runs_a_bar_leads_to_the_key_that_the_first_reads_most(
    browser: Any, runs: dict[str, Any], tmp_path: Any
) -> None:
    """The score behind it is that of the first run, whatever the second reads."""
    run = runs["decoder"]
    other = cf.Run(cf.build(run.model.config), run.tokenizer).save(tmp_path / "other")
    window = Window(browser, run, other=other)
    bar = window.section("ledger").locator(".bars button").first
    both = lens.beside(lens.ledger, run, other, TEXT)
    head: Any = next(part for part in both.changes.largest if part.head is not None)
    weights = lens.attention(run, TEXT).patterns[head.name.replace("hook_z", "hook_pattern")][head.head, -1]
    bar.click()
    window.page.wait_for_url("**key=**")
    assert window.selected()["key"] == str(int(weights.argmax()))
    window.close()


def test_by_keyboard_alone_one_gets_from_the_text_to_a_head(window: Window) -> None:
    page = window.page
    window.section("attention")
    page.locator("textarea[name=text]").focus()
    seen = []
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        seen.append(tuple(page.evaluate(FOCUSED)))
        if seen[-1] == ("attention", "gridcell"):
            break
    assert ("", "layer") in seen
    assert ("tokens", "option") in seen
    assert seen[-1] == ("attention", "gridcell")
    before = page.locator("#attention .reading").inner_text()
    page.keyboard.press("Control+Home")
    page.keyboard.press("PageDown")
    page.wait_for_timeout(100)
    assert page.locator("#attention .reading").inner_text() != before
    assert window.selected()["position"] == "10"


def test_a_link_shows_what_its_sender_saw_and_back_goes_back(window: Window) -> None:
    page = window.page
    page.fill("input[name=layer]", "2")
    page.fill("input[name=target]", "t")
    page.fill("textarea[name=text]", "the bank of the river")
    api.expect(page.locator("#tokens .facts")).to_contain_text("of ")
    page.wait_for_function(
        "() => { const said = new URL(location).searchParams; return said.get('text') === 'the bank of the river'"
        " && said.get('layer') === '2' && said.get('target') === 't'; }"
    )
    other = window.context.new_page()
    other.goto(page.url)
    section_of(other, "attention").locator("h3").wait_for()
    assert other.input_value("textarea[name=text]") == "the bank of the river"
    assert other.input_value("input[name=target]") == "t"
    assert "layer 2" in other.locator("#attention h3").inner_text()
    page.go_back()
    api.expect(page.locator("textarea[name=text]")).to_have_value(TEXT)
    assert window.selected()["layer"] == "2"


def test_what_was_drawn_after_a_text_is_not_drawn_after_another(window: Window) -> None:
    page = window.page
    window.section("sampling").get_by_role("button", name="Append").click()
    page.wait_for_url(lambda url: "drawn=" in url)
    page.fill("textarea[name=text]", "the bank of the river")
    page.wait_for_url(lambda url: "drawn=" not in url)
    window.section("sampling")
    assert window.complaints == []


def test_a_click_on_older_continuations_goes_on_after_what_they_continue(
    window: Window, runs: dict[str, Any]
) -> None:
    chosen = Selection()
    own = lens.continuations(
        runs["decoder"], TEXT, num=chosen.num, max_new_tokens=chosen.new_tokens, seed=chosen.seed
    )
    ids = [str(each.id) for each in own.continuations[0].tokens]
    tokens = window.section("continuations").locator(".drawn").first.locator("button")
    api.expect(tokens).to_have_count(len(ids))
    with held(window.page, "continuations"):
        for place in (1, 2, 2):
            tokens.nth(place).click()
            window.page.wait_for_function(
                "ids => location.search.includes(ids)", arg="%2C".join(ids[: place + 1])
            )
            assert window.selected()["drawn"].split(",") == ids[: place + 1]


def test_a_click_on_an_older_search_goes_on_after_what_it_continues(
    window: Window, runs: dict[str, Any]
) -> None:
    chosen = Selection()
    own = lens.beam_tree(runs["decoder"], TEXT, beams=chosen.beams, max_new_tokens=chosen.new_tokens)
    beams = window.section("beams")
    api.expect(beams.locator("tbody tr:not(.is-to-come)")).to_have_count(len(own.found))
    with held(window.page, "beams"):
        for place in (0, 1):
            beams.get_by_role("button", name="continue here").nth(place).click()
            window.page.wait_for_timeout(100)
            assert window.selected()["drawn"].split(",") == [str(token) for token in own.found[place].tokens]
        nodes = beams.locator(".beam-tree g[role=button]")
        window.page.evaluate(
            "addEventListener('keydown', (event) => (window.isPrevented = event.defaultPrevented))"
        )
        for place, key in ((0, "Enter"), (1, "Space")):
            nodes.nth(place).focus()
            window.page.keyboard.press(key)
            window.page.wait_for_timeout(100)
            assert window.selected()["drawn"] == str(own.nodes[place].id)
            assert window.page.evaluate("isPrevented")  # by default, a space scrolls the page


def test_a_token_is_appended_once_however_often_it_is_pressed(window: Window, runs: dict[str, Any]) -> None:
    page, desk = window.page, window.section("sampling")
    append, greedy = (desk.get_by_role("button", name=name) for name in ("Append", "Greedy:"))
    first = lens.next_draw(runs["decoder"], TEXT, seed=Selection().seed)
    drawn = [int(first.ids[first.drawn])]
    append.wait_for()
    with held(page, "sampling"):
        append.focus()
        for key in ("Enter", "Enter", "Space"):
            page.keyboard.press(key)
        greedy.dispatch_event("click")
        page.wait_for_timeout(100)
        assert window.selected()["drawn"] == str(drawn[0])
        for button in (append, greedy):
            api.expect(button).to_be_disabled()
        api.expect(append).to_be_focused()
    api.expect(append).to_be_enabled()
    second = lens.next_draw(runs["decoder"], TEXT, seed=Selection().seed, drawn=drawn)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**drawn={drawn[0]}%2C{second.ids[second.drawn]}*")


def test_by_the_arrows_one_moves_through_the_layers_of_the_logit_lens(window: Window) -> None:
    cell = window.section("lens").locator("[role=gridcell]")
    cell.focus()
    rows = window.page.locator("#lens .row-names span").all_inner_texts()
    column = cell.get_attribute("aria-colindex")
    for key, row in (("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1)):
        window.page.keyboard.press(key)
        api.expect(cell).to_have_attribute("aria-label", re.compile(f"^{re.escape(rows[row])} at "))
        assert cell.get_attribute("aria-colindex") == column


def test_a_view_is_near_if_the_newest_of_several_words_says_so(window: Window) -> None:
    page = window.context.new_page()
    page.add_init_script(QUEUED)
    page.goto(f"http://{window.host}/")
    api.expect(page.locator("#tokens .facts")).to_contain_text("of ")


def test_a_page_is_opened_at_the_view_that_its_address_names(window: Window) -> None:
    page = window.page
    page.goto("about:blank")
    page.goto(f"{window.looking.address}#beams")
    tree = page.locator("section#beams")
    api.expect(tree.locator("svg")).to_be_in_viewport()
    page.wait_for_load_state("networkidle")
    page.wait_for_function("Math.abs(document.getElementById('beams').getBoundingClientRect().top - 200) < 2")
    assert page.url.endswith("#beams")
    assert window.complaints == []


def test_what_stands_in_the_middle_of_the_window_is_asked_for_first(window: Window) -> None:
    page = window.page
    for name in ("ledger", "score", "sources"):
        window.section(name)
    page.locator("#sources").evaluate("each => scrollTo(0, scrollY + each.getBoundingClientRect().top - 400)")
    page.wait_for_load_state("networkidle")
    window.asked.clear()
    with page.expect_response(lambda response: response.url.endswith("/api/view/ledger")):
        page.locator("input[name=target]").fill("t")  # the ledger stands above, and is near
    views = [url.rpartition("/")[2] for url in window.asked if "/api/view/" in url]
    assert views.index("sources") < views.index("ledger")


def test_what_is_wrong_is_said_where_it_is_and_the_rest_goes_on(window: Window) -> None:
    page = window.page
    window.section("ledger")
    page.fill("input[name=target]", "no such token")
    window.section("ledger")
    page.wait_for_selector("#ledger .error:not(:empty)")
    assert "target" in page.locator("#ledger .error:not(:empty)").inner_text()
    assert page.locator("#tokens .error:not(:empty)").count() == 0
    page.fill("input[name=target]", "t")
    window.section("ledger")
    page.wait_for_selector("#ledger .error:not(:empty)", state="detached")
    api.expect(page.locator("#ledger .sum")).to_contain_text("logit of t after")
    script = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"
    page.fill("textarea[name=text]", script)
    page.wait_for_timeout(1500)
    assert page.title() != "taken"
    assert page.locator("main img").count() == 0


def test_training_is_seen_while_it_goes_on(browser: Any, runs: dict[str, Any], tmp_path: Any) -> None:
    run = runs["decoder"].save(tmp_path / "live")

    def record(*steps: int) -> None:
        lines = [{"step": step, "loss": 3.0 / step, "lr": 0.1, "grad_norm": 1.0} for step in steps]
        with run.folder.metrics_file.open("a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))

    record(1, 2, 3)
    window = Window(browser, run)
    window.section("training")
    told = window.page.locator("#training .sum")
    api.expect(told).to_contain_text("step 3")
    window.page.wait_for_load_state("networkidle")
    asked = [url for url in window.asked if "training" in url]
    record(4, 5, 6)
    api.expect(told).to_contain_text("0.5000")
    assert [url for url in window.asked if "training" in url] == asked  # nothing was fetched again
    assert window.complaints == []
    window.close()


def test_the_legend_of_a_curve_tells_a_small_learning_rate(
    browser: Any, runs: dict[str, Any], tmp_path: Any
) -> None:
    run = runs["decoder"].save(tmp_path / "small")
    lines = [{"step": step, "loss": 2.83321, "lr": 0.00025} for step in range(1, 4)]
    run.folder.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    window = Window(browser, run)
    window.section("training")
    window.page.wait_for_load_state("networkidle")  # a curve that moves loses its cursor
    for title, value in (("loss, nats", "2.8332"), ("learning rate", "0.00025")):
        curve = window.section("training").locator(f"figure.curve:has(figcaption:text-is('{title}'))")
        curve.locator(".u-over").hover()
        api.expect(curve.locator(".u-legend .u-value").nth(1)).to_have_text(value)
    window.close()


def test_the_first_step_of_a_training_is_a_point_beside_labels_that_differ(
    browser: Any, runs: dict[str, Any], tmp_path: Any
) -> None:
    run = runs["decoder"].save(tmp_path / "first")
    line = {"step": 1, "loss": 10.83, "val_loss": 10.831, "lr": 0.1, "grad_norm": 1.0}
    run.folder.metrics_file.write_text(json.dumps(line) + "\n")
    window = Window(browser, run)
    window.context.add_init_script(KEEP_WORDS)
    window.enter_anew()
    window.section("training").locator(".curve canvas").first.wait_for()
    window.page.wait_for_function("['10.83', '10.8305', '10.831'].every((label) => written.includes(label))")
    assert "10.8" not in window.page.evaluate("written")
    for red in (0xB3, 0x0A):  # of the loss, and of the held-out loss
        window.page.wait_for_function(f"({PIXELS})({red}) > 0")
    assert window.complaints == []
    window.close()


def test_what_is_taken_from_a_view_is_what_it_shows(window: Window) -> None:
    ledger = window.section("ledger")
    with window.page.expect_download() as download:
        ledger.get_by_role("button", name="CSV").click()
    heads, *rows = download.value.path().read_text().splitlines()
    assert heads == "part,layer,head,value"
    assert len(rows) == len(lens.ledger(window_run(window), TEXT).parts)
    with window.page.expect_download() as download:
        ledger.get_by_role("button", name="PNG").click()
    assert download.value.path().read_bytes().startswith(b"\x89PNG")
    ledger.get_by_role("button", name="Table").click()
    ledger.locator(".as-table tbody tr").first.wait_for()
    assert ledger.locator(".as-table tbody tr").count() == len(rows)
    ledger.get_by_role("button", name="Enlarge").click()
    api.expect(ledger).to_have_class(re.compile("is-large"))
    window.page.keyboard.press("Escape")
    api.expect(ledger).not_to_have_class(re.compile("is-large"))


def test_of_an_enlarged_view_the_page_behind_it_is_out_of_reach(window: Window) -> None:
    tokens, page = window.section("tokens"), window.page
    tokens.get_by_role("button", name="Enlarge").click()
    api.expect(tokens).to_have_class(re.compile("is-large"))
    where = "(at => at === document.body ? 'none' : at.closest('section')?.id ?? 'behind')(document.activeElement)"
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(where))
    assert "tokens" in reached
    assert set(reached) <= {"tokens", "none"}
    assert page.evaluate("document.querySelectorAll('[inert]').length") > 2
    page.keyboard.press("Escape")
    api.expect(tokens).not_to_have_class(re.compile("is-large"))
    assert page.evaluate("document.querySelectorAll('[inert]').length") == 0


def test_on_a_phone_bars_have_room(window: Window) -> None:
    window.page.set_viewport_size({"width": 380, "height": 800})
    track = window.section("ledger").locator(".bar-track").first
    assert track.bounding_box()["width"] >= 96
    assert window.page.locator("#ledger .bar-name").first.get_attribute("title")


def test_a_number_out_of_range_is_refused_with_the_range(window: Window) -> None:
    field = window.page.locator("input[name=layer]")
    before = window.page.url
    for wrong in ("7", ""):
        field.fill(wrong)
        field.press("Enter")
        api.expect(field).to_have_attribute("aria-invalid", "true")
        api.expect(window.page.locator("label:has(input[name=layer]) [role=alert]")).to_have_text("0 to 2")
    assert window.page.url == before
    field.fill("1")
    field.press("Enter")
    api.expect(field).to_have_attribute("aria-invalid", "false")
    assert window.selected()["layer"] == "1"


def test_why_a_picture_could_not_be_made_stays_to_be_read(window: Window) -> None:
    window.page.route(
        "**/api/figure**", lambda route: route.fulfill(status=400, body="figures need matplotlib")
    )
    ledger = window.section("ledger")
    ledger.get_by_role("button", name="PNG").click()
    said = ledger.locator(".said")
    api.expect(said).to_have_text("figures need matplotlib")
    window.page.wait_for_timeout(2700)
    api.expect(said).to_have_text("figures need matplotlib")
    api.expect(said).to_have_attribute("role", "alert")
    ledger.get_by_role("button", name="Copy as Python").click()
    api.expect(said).not_to_have_text("figures need matplotlib")
    window.page.unroute("**/api/figure**")


def test_places_counted_from_the_last_are_the_same_in_every_view(window: Window) -> None:
    window.page.goto(f"http://{window.host}/?layer=-1&head=-1&key=-3&position=-1")
    attention = window.section("attention")
    n = len(window_run(window).tokenizer.encode(TEXT))
    api.expect(attention.locator(".one-head h3")).to_have_text("layer 2, head 1")
    api.expect(attention.locator(".reading")).to_contain_text(f"reads key {n - 3} ")
    api.expect(window.section("score")).to_contain_text("layer 2, head 1")
    api.expect(window.section("overview").locator(".block p")).to_have_text("block 2 of 0 to 2")


def test_an_enlarged_view_gives_way_to_the_one_that_it_leads_to(window: Window) -> None:
    attention = window.section("attention")
    attention.get_by_role("button", name="Enlarge").click()
    api.expect(attention).to_have_class(re.compile("is-large"))
    attention.get_by_role("button", name="Why does it read this key?").click()
    api.expect(attention).not_to_have_class(re.compile("is-large"))
    api.expect(window.page.locator("#score .content > *").first).to_be_in_viewport()


def window_run(window: Window) -> Any:
    """The run that a window shows, by its name."""
    import clearformer as cf

    return cf.load(window.page.title().removesuffix(" · clearformer"))


def test_what_a_screen_does_not_show_is_asked_for(window: Window) -> None:
    run, page = window_run(window), window.page
    long = TEXT * 6
    page.fill("textarea[name=text]", long)
    page.fill("input[name=position]", "-1")
    page.keyboard.press("Tab")
    n = len(lens.tokens(run, long).tokens)
    paged = window.section("block").get_by_role("group", name="the part of pattern that is shown")
    api.expect(paged).to_contain_text(f"positions {n - 48} to {n - 1} of {n}")
    paged.get_by_role("button", name="earlier rows of pattern").click()
    first = max(0, n - 96)
    api.expect(paged).to_contain_text(f"positions {first} to {first + 47} of {n}")
    figure = page.locator("#block figure", has=page.get_by_role("button", name="earlier rows of pattern"))
    cell = figure.locator("[role=gridcell]")
    cell.focus()
    page.keyboard.press("Control+Home")
    own = lens.attention(run, long).patterns["blocks.0.attn.hook_pattern"]
    api.expect(figure.locator(".reading")).to_contain_text(f"pattern[{first} ")
    api.expect(figure.locator(".reading")).to_contain_text(f"{own[0, first, 0]:.4f}")
    page.keyboard.press("Enter")
    api.expect(page.locator(".inspector .inspected")).to_contain_text(f"pattern[{first}, 0]")
    page.get_by_role("button", name="close the number inspector").click()
    whole = lens.next_draw(run, long, seed=1)
    sampling = window.section("sampling")
    api.expect(sampling.locator(".vocabulary li")).to_have_count(30)
    for _ in range(2):
        sampling.get_by_role("button", name=re.compile("^show .* more of")).click()
    api.expect(sampling.locator(".vocabulary li")).to_have_count(whole.n_tokens)
    assert sum("/api/view/vocabulary" in url for url in window.asked) == 1
    assert window.complaints == []


def test_continuations_are_seen_while_they_are_written(window: Window) -> None:
    window.section("continuations")
    window.page.locator("input[name=new_tokens]").fill("40")
    window.page.keyboard.press("Tab")
    api.expect(window.page.locator("#continuations .drawn").first.locator("button")).to_have_count(40)
    best = lens.beam_tree(window_run(window), TEXT, beams=3, max_new_tokens=40).found[0]
    api.expect(window.section("beams").locator("tbody tr").first).to_contain_text(f"{best.score:.3f}"[1:])
    assert window.complaints == []


def test_a_number_that_is_being_typed_stays_while_the_view_is_drawn_anew(window: Window) -> None:
    section = window.section("continuations")
    tokens = section.locator("input[name=new_tokens]")
    tokens.fill("7")
    section.locator("input[name=num]").evaluate(
        "(at) => { at.value = '2'; for (const name of ['input', 'change']) at.dispatchEvent(new Event(name)); }"
    )
    api.expect(section.locator(".drawn")).to_have_count(2)
    api.expect(tokens).to_have_value("7")
    tokens.press("Tab")
    api.expect(section.locator(".drawn").first.locator("button")).to_have_count(7)
    assert window.complaints == []


def test_the_desk_shows_what_edits_do(window: Window, runs: dict[str, Any]) -> None:
    run, desk = runs["decoder"], window.section("interventions")
    rows = desk.locator(".before-after tbody tr")
    head, other_text = "blocks.0.attn.hook_z:1", TEXT.replace("lends", "takes")

    def check_numbers(edits: list[str], donor: str | None = None) -> None:
        found = lens.with_edits(run, TEXT, edits=edits, donor=donor)
        for place, value in enumerate((found.before, found.after)):
            api.expect(rows.first.locator("td").nth(place)).to_have_text(
                f"{MINUS if value < 0 else ''}{abs(value):.4f}"
            )
        assert (found.before != found.after) == bool(edits)

    check_numbers([])
    switch = desk.locator(f"button.switch[title='{head}']")
    switch.click()
    api.expect(switch).to_have_attribute("aria-pressed", "true")
    check_numbers([f"zero {head}"])
    written = desk.locator(".continuations.is-pair > li")
    api.expect(written).to_have_count(2)
    desk.locator("select[name=site]").select_option("blocks.1.hook_resid_pre")
    desk.locator("input[name=donor]").fill(other_text)
    desk.locator("input[name=donor]").press("Enter")
    desk.get_by_role("button", name="Add edit").click()
    edits = [f"zero {head}", "patch blocks.1.hook_resid_pre"]
    api.expect(desk.locator(".edits code")).to_have_text(edits)
    check_numbers(edits, other_text)
    window.page.go_back()  # an edit is part of the address
    api.expect(desk.locator(".edits code")).to_have_text(edits[:1])
    check_numbers(edits[:1])
    desk.get_by_role("button", name=f"remove {edits[0]}").click()
    check_numbers([])
    assert window.complaints == []


def test_axe_finds_nothing(window: Window) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )
    page = window.page
    page.goto(
        f"http://{window.host}/?text=the%20bank"
    )  # the rules are of kinds of elements, not of their number
    page.wait_for_selector("section.view")
    for name in page.eval_on_selector_all("section.view", "all => all.map(each => each.id)"):
        window.section(name)
    everything: dict[str, Any] = {"resultTypes": ["violations"]}  # what passes is not written down
    only_colours = everything | {"runOnly": ["color-contrast"]}
    no_colours = everything | {"rules": {"color-contrast": {"enabled": False}}}  # a width changes none
    for scheme, width, options in (
        ("light", 1280, everything),
        ("dark", 1280, only_colours),
        ("light", 400, no_colours),
    ):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = axe.Axe().run(page, options=options).response["violations"]
        wrong = [(each["id"], [node["target"] for node in each["nodes"]][:3]) for each in found]
        assert wrong == [], (scheme, width)


# --- a run's training and its data ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with home_with_data(tmp_path_factory.mktemp("trained")):
        yield trained("decoder")


@pytest.fixture(scope="module")
def opened_history(browser: Any, trained_run: Any) -> Iterator[Window]:
    found = Window(browser, trained_run, text="the bank")
    yield found
    found.close()


@pytest.fixture
def history(opened_history: Window) -> Iterator[Window]:
    opened_history.enter_anew()
    yield opened_history
    assert opened_history.complaints == []


def test_a_head_s_bar_leads_to_the_score_behind_it(window: Window, runs: dict[str, Any]) -> None:
    run = runs["decoder"]
    window.section("ledger").locator(".bars button").first.click()
    largest: Any = next(part for part in lens.ledger(run, TEXT).largest if part.head is not None)
    score = window.section("score")
    own = lens.score(run, TEXT, layer=largest.layer, head=largest.head)
    api.expect(score.locator(".sum")).to_contain_text(f"layer {own.layer}, head {own.head}")
    api.expect(score.locator(".sum")).to_contain_text(f"{abs(own.score):.4f}")
    values = score.locator(".bars").first.locator(".bar-value").all_inner_texts()
    of_query = sorted(own.queries, key=lambda part: -abs(part.value))
    check_signed(values[:4], [part.value for part in of_query[:4]])
    attention = window.section("attention")
    assert attention.locator(".arcs path").count() == attention.locator(".reads li").count()
    assert window.complaints == []


def test_marks_are_set_on_the_curves_and_the_ledger_between_them_is_shown(
    history: Window, trained_run: Any
) -> None:
    page = history.page
    training = history.section("training")
    api.expect(training.locator(".events li")).to_have_count(2, timeout=20_000)
    bigram = lens.bigram(trained_run)
    api.expect(training.locator(".events")).to_contain_text(f"{bigram.loss:.4f}")
    api.expect(history.section("loss_changes")).to_contain_text("Mark a step before")
    curve = training.locator(".u-over").first
    curve.scroll_into_view_if_needed()
    size = curve.bounding_box()
    for share in (0.35, 0.99):
        curve.click(position={"x": share * size["width"], "y": size["height"] / 2})
    page.wait_for_url(f"**before=4&after={STEPS}**")
    ledger = history.section("loss_changes")
    own = lens.loss_changes_since(trained_run, page.locator("textarea[name=text]").input_value(), 4, STEPS)
    api.expect(ledger.locator(".sum")).to_contain_text(f"{own.before:.4f}")
    api.expect(ledger.locator(".badge")).to_contain_text(f"residue {own.residue:.1e}".replace("e-0", "e-"))
    shown = ledger.locator(".bar-value").all_inner_texts()
    check_signed(shown[:3], [part.value for part in own.largest(3)])
    curve.dblclick(
        position={"x": 0.7 * size["width"], "y": size["height"] / 2}
    )  # shows all steps, and marks none
    page.wait_for_timeout(400)
    assert {name: history.selected()[name] for name in ("before", "after")} == {
        "before": "4",
        "after": str(STEPS),
    }
    for name, step in (("before", 4), ("after", STEPS)):
        page.locator(f".marked button:has-text('{name}')").click()
        api.expect(page.locator(".slider output")).to_have_text(f"step {step}")
    assert history.selected()["checkpoint"] == str(STEPS)


def test_older_changes_of_the_loss_keep_the_steps_that_they_are_of(history: Window) -> None:
    page = history.page
    page.goto(f"http://{history.host}/?before=0&after=4")
    ledger = history.section("loss_changes").locator(".loss-changes")
    api.expect(ledger.locator(".sum")).to_contain_text("at step 4:")
    loss = ledger.locator(".sum b").nth(1).inner_text()
    with held(page, "loss_changes"):
        page.locator("input[name=mark_after]").fill(str(STEPS))
        page.keyboard.press("Tab")
        page.wait_for_url(f"**after={STEPS}*")
        api.expect(ledger).to_have_class(re.compile("is-stale"))
        api.expect(ledger.locator(".sum")).to_contain_text(f"{loss} at step 4:")
    api.expect(ledger.locator(".sum")).to_contain_text(f"at step {STEPS}:")
    api.expect(ledger).not_to_have_class(re.compile("is-stale"))


def test_of_a_mean_of_checkpoints_each_step_can_be_seen_and_the_mean_again(
    browser: Any, trained_run: Any
) -> None:
    mean = cf.load(trained_run.folder.path, average=2)
    window = Window(browser, mean, text="the bank")
    tokens, mean_button = window.section("tokens"), window.page.get_by_role("button", name="mean of 2")
    api.expect(mean_button).to_have_attribute("aria-pressed", "true")

    def check(run: Any, step: str) -> None:
        api.expect(window.page.locator("h1 small")).to_have_text(f"step {step}")
        tokens.locator("[role=option]").nth(2).click()
        facts = f"{lens.tokens(run, 'the bank').probabilities[2]:.4f}"
        api.expect(tokens.locator(".facts")).to_contain_text(facts)

    check(mean, f"{STEPS}, mean of 2 checkpoints")
    for step in (0, STEPS):
        window.page.locator("input[name=step]").fill(str(step))
        window.page.locator("input[name=step]").press("Enter")
        api.expect(mean_button).to_have_attribute("aria-pressed", "false")
    check(trained_run, str(STEPS))
    mean_button.click()
    check(mean, f"{STEPS}, mean of 2 checkpoints")
    window.close()


def test_a_step_between_is_replayed_on_request(history: Window, trained_run: Any) -> None:
    page, step = history.page, EVERY + 1
    assert step not in trained_run.kept_steps()
    page.locator("input[name=step]").fill(str(step))
    page.locator("input[name=step]").press("Enter")
    assert "checkpoint" not in history.selected()
    page.locator(".replay button").click()
    api.expect(page.locator(".slider output")).to_have_text(f"step {step}", timeout=20_000)
    tokens = lens.tokens(cf.replay(trained_run, step), page.locator("textarea[name=text]").input_value())
    history.section("tokens").locator("[role=option]").nth(2).click()
    api.expect(history.section("tokens").locator(".facts")).to_contain_text(f"{tokens.probabilities[2]:.4f}")


def test_a_step_that_another_has_displaced_is_offered_to_be_replayed_again(
    history: Window, trained_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clearformer.page.opened.MOST_BYTES", 1)
    page, steps = history.page, (EVERY + 1, EVERY + 3)
    assert not set(steps) & set(trained_run.kept_steps())
    for step in (*steps, steps[0]):
        page.locator("input[name=step]").fill(str(step))
        page.locator("input[name=step]").press("Enter")
        page.get_by_role("button", name=f"Replay step {step}").click()
        api.expect(page.locator(".slider output")).to_have_text(f"step {step}")


def test_checkpoints_appear_without_reloading(history: Window, trained_run: Any) -> None:
    slider = history.page.locator("input[name=checkpoint]")
    n = len(trained_run.kept_steps())
    api.expect(slider).to_have_attribute("max", str(n - 1))
    snapshot = trained_run.folder.snapshots / "step-00000004"
    away = snapshot.rename(trained_run.folder.path / "away")
    api.expect(slider).to_have_attribute("max", str(n - 2))
    away.rename(snapshot)
    api.expect(slider).to_have_attribute("max", str(n - 1))


def test_a_view_far_below_follows_from_a_step_that_is_not_kept_to_one_that_is(history: Window) -> None:
    page = history.page
    page.goto(f"http://{history.host}/?checkpoint={EVERY + 1}")
    missing = f"step {EVERY + 1} is not kept"
    api.expect(page.locator("#tokens .error")).to_contain_text(missing)
    page.locator("input[name=step]").fill(str(EVERY))
    page.locator("input[name=step]").press("Enter")
    api.expect(page.locator("#tokens .error")).to_have_text("")
    section = history.section("lens")
    assert section.locator(".error:not(:empty)").count() == 0, section.inner_text()


def test_an_address_may_say_the_best_checkpoint(history: Window, trained_run: Any) -> None:
    history.page.goto(f"http://{history.host}/?checkpoint=best")
    api.expect(history.page.locator(".slider output")).to_have_text(f"step {trained_run.step}")
    api.expect(history.page.locator("input[name=step]")).to_have_value(str(trained_run.step))


def test_a_window_with_a_tab_is_read_whole(history: Window, trained_run: Any) -> None:
    found = lens.tracin(trained_run, "the bank", sample=4)
    windows = [replace(each, score=1.0, text="the\tbank\tlends") for each in found.windows]
    answer = VIEWS["learned"].described(
        trained_run, Selection(run=trained_run.name, text="the bank"), replace(found, windows=windows)
    )
    history.page.route("**/api/view/learned", lambda route: route.fulfill(body=encode(answer)))
    learned = history.section("learned")
    learned.locator(".is-main").click()
    learned.locator(".passages button").first.click()
    api.expect(history.page.locator("textarea[name=text]")).to_have_value("the\tbank\tlends")
    assert "output" not in history.selected()
    history.page.unroute("**/api/view/learned")
    history.page.wait_for_load_state("networkidle")
    history.complaints.clear()  # this model's vocabulary has no tab


def test_what_takes_long_says_how_far_it_is_and_can_be_ended(
    history: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = history.page.locator("section#corpus")

    def endless(*_: Any, on_step: Any, **__: Any) -> Any:
        for _turn in range(4000):
            on_step(3, 8)
            time.sleep(0.005)

    with monkeypatch.context() as patch:
        patch.setattr(lens, "corpus", endless)
        corpus.scroll_into_view_if_needed()
        api.expect(corpus.locator(".state")).to_contain_text("computing: 3 of 8")
        corpus.get_by_role("button", name="Cancel").click()
        api.expect(corpus.locator(".error")).to_contain_text("cancelled before it finished")
    corpus.get_by_role("button", name="Ask again").click()
    api.expect(corpus.locator(".passages")).to_have_count(2)
    history.complaints.clear()  # the browser's own word on a refused question


def test_from_a_passage_to_its_prediction_and_to_the_windows_behind_it(
    history: Window, trained_run: Any
) -> None:
    page = history.page
    corpus = history.section("corpus")
    own = lens.corpus(trained_run)
    api.expect(corpus.locator(".sum")).to_contain_text(f"{own.mean:.4f}", timeout=20_000)
    losses = corpus.locator(".passage-head b").all_inner_texts()
    assert losses == [f"{each.loss:.4f}" for each in [*own.hardest, *own.easiest]]
    api.expect(corpus.locator(".passages small").first).to_contain_text(
        f"text.txt, bytes {own.hardest[0].spans[0].start:,} to"
    )
    cell = corpus.locator("[role=gridcell]")
    cell.focus()
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    api.expect(corpus.locator(".reading")).to_contain_text(f"{own.losses[1, 1]:.4f}")
    row, chosen = own.rows[1], history.selected()
    assert page.locator("textarea[name=text]").input_value() == row.text
    assert chosen["position"] == str(row.position + 1)
    assert chosen["target"] == own.labels[own.ids[1, 1]]
    learned = history.section("learned")
    learned.locator("input[name=sample]").fill("4")
    learned.locator("input[name=sample]").press("Enter")
    learned.locator(".is-main").click()
    found = lens.tracin(trained_run, row.text, position=row.position + 1, target=chosen["target"], sample=4)
    api.expect(learned.locator(".passages li")).to_have_count(
        len(found.largest()) + len(found.smallest()), timeout=20_000
    )
    scores = [*found.largest(), *found.smallest()]
    check_signed(learned.locator(".passage-head b").all_inner_texts(), [each.score for each in scores])
