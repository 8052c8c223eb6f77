"""The report of studies: what it says first, what it does not say, and that it says it in every form alike."""

import itertools
import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from clearformer.errors import UserError
from clearformer.study.figures import Bars, Curves, Matrix, Texts
from clearformer.study.outcomes import (
    NOT_JUDGED,
    NOT_REPRODUCED,
    REFUTED,
    REPRODUCED,
    SLIP,
    UNDECIDED,
    Outcome,
)
from clearformer.study.report import write_report, write_study, write_study_report
from clearformer.study.report.content import command, section, summary
from clearformer.study.report.markdown_pages import escaped, fenced
from clearformer.study.report.nodes import Bullets, Command, Judged, Link, Node, Paragraph, Picture, Table
from clearformer.study.report.result import result_of
from clearformer.study.report.trained import in_common
from clearformer.study.store import Record
from clearformer.study.study import Claim, Published, Training
from clearformer.study.trials import trials

from .parts import tiny_study
from .reported import losses, outcome_of, planted, study

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Elements with their attributes as a browser finds them; raises where they are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str]]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.found if name == tag]


def paragraphs(outcome: Outcome) -> dict[str, str]:
    """A study's paragraphs by their leads."""
    return {node.lead: node.text for node in section(outcome) if isinstance(node, Paragraph)}


def table(nodes: Any, caption: str) -> Table:
    return next(node for node in nodes if isinstance(node, Table) and node.caption.startswith(caption))


def verdicts(found: Table) -> list[str]:
    return [cell.verdict for row in found.rows for cell in row if isinstance(cell, Judged)]


class TestSummary:
    def test_counts_the_failures_first(self) -> None:
        first, second, third, *_ = (node for node in summary([planted()]) if isinstance(node, Paragraph))
        assert (
            first.text
            == "Of 3 published numbers, 1 is not reproduced, 1 is a slip of the lecture and 1 is reproduced."
        )
        assert second.text == "Of 2 claims about a difference, 1 is refuted and 1 holds."
        assert third.text == "6 of 6 runs are done, in 1 study."

    def test_lists_what_is_not_reproduced_with_its_reason_before_all_else(self) -> None:
        tables = [node for node in summary([planted()]) if isinstance(node, Table)]
        assert [each.caption for each in tables] == [
            "Not reproduced",
            "Slips of the lectures, published and measured",
            "Claims that are refuted or undecided",
            "All studies",
        ]
        (row,) = tables[0].rows
        assert row[:5] == (Link("planted"), "high", "loss", "1.63 (§ 5.4)", "± 0.05")
        assert row[-1] == Judged(NOT_REPRODUCED, "Another text.")

    def test_counts_the_numbers_that_no_lecture_prints_and_those_told_twice(self) -> None:
        implied = Published("a", "loss", 0.0, 0.1, "1", printed=False)
        twice = Published("a", "loss", 1.0, 0.1, "1")
        both = [
            outcome_of(study("a", name=name, published=(implied, twice)), {"a": losses(1.0)})
            for name in ("s", "t")
        ]
        said = [node.text for node in summary(both) if isinstance(node, Paragraph)]
        assert (
            "Of these, 2 follow from what a lecture says and are not printed there and 2 repeat one of another study."
            in said
        )

    def test_names_the_studies_by_whether_they_are_refuted(self) -> None:
        claim = Claim("B is lower.", "loss", "b", "a", decides=True)
        of = {
            "refuted": outcome_of(
                study("a", "b", name="refuted", claims=(claim,)), {"a": losses(1, 1.1), "b": losses(2, 2.1)}
            ),
            "fine": outcome_of(
                study("a", "b", name="fine", claims=(claim,)), {"a": losses(2, 2.1), "b": losses(1, 1.1)}
            ),
            "silent": outcome_of(study("a", name="silent"), {"a": losses(1.0)}),
        }
        (bullets,) = (node for node in summary(list(of.values())) if isinstance(node, Bullets))
        assert bullets.items == (
            "It has come in 1 study: refuted.",
            "No single number tells in 1 study: silent.",
            "It has not come in 1 study: fine.",
        )
        said = paragraphs(of["refuted"])["Is it refuted"]
        assert said == "Yes. These do not hold: B is lower."
        assert paragraphs(of["fine"])["Is it refuted"] == "No."

    def test_says_which_studies_are_partial_and_which_shortened(self) -> None:
        partial = outcome_of(study("a", seeds=2), {"a": losses(1.0)})
        waiting = outcome_of(study("a"), {})
        nodes = summary([partial, planted(True, 0.05), waiting])
        said = " ".join(node.text for node in nodes if isinstance(node, Paragraph))
        assert "7 of 11 runs are done, in 3 studies. Partial: planted (1 of 2). Not started: 1 study." in said
        assert "planted (0.05 of its steps). Published numbers of these trainings are not judged." in said

    def test_lists_those_that_wait_without_a_link_and_counts_their_numbers(self) -> None:
        of = study("a", name="later", published=(Published("a", "loss", 1.0, 0.1, "1.2"),))
        nodes = list(summary([planted()], [outcome_of(of, {})]))
        assert isinstance(nodes[0], Paragraph)
        assert nodes[0].text.startswith("Of 4 published numbers, ")
        assert nodes[0].text.endswith("1 is reproduced and 1 is not run yet.")
        assert [row[0] for row in table(nodes, "All").rows] == [Link("planted"), "later"]

    def test_counts_a_number_whose_runs_diverged_as_undecided(self) -> None:
        of = study("a", published=(Published("a", "loss", 1.0, 0.1, "1.2"),), seeds=1)
        diverged = outcome_of(of, {"a": [{"diverged_at": 3}]})
        assert paragraphs(diverged)[""] == "Of 1 published number, 1 is undecided."
        (first, *_) = summary([planted(), diverged])
        assert isinstance(first, Paragraph)
        assert "1 is a slip of the lecture, 1 is undecided and 1 is reproduced." in first.text


@pytest.mark.usefixtures("_nothing_is_imported")
class TestSection:
    def test_has_each_verdict_with_its_reason_and_interval(self) -> None:
        found = table(section(planted()), "Published")
        assert verdicts(found) == [REPRODUCED, NOT_REPRODUCED, SLIP]
        assert found.rows[0][4:7] == ("1.253", "1.215 to 1.291", "3")
        assert found.rows[2][-1] == Judged(SLIP, "A misprint.")

    def test_judges_claims_by_paired_differences(self) -> None:
        found = table(section(planted()), "Claims")
        assert verdicts(found)[1] == REFUTED
        assert found.rows[0][2] == "\N{MINUS SIGN}0.767"

    def test_names_no_winner_where_the_interval_holds_zero(self) -> None:
        of = study("a", "b", claims=(Claim("a is lower.", "loss", "a", "b"),), seeds=3)
        found = table(section(outcome_of(of, {"a": losses(1, 2, 3), "b": losses(2, 1, 3.1)})), "Claims")
        assert verdicts(found) == [UNDECIDED]

    def test_marks_claims_that_were_written_afterwards(self) -> None:
        claim = Claim("a is lower.", "loss", "a", "b")
        of = study("a", "b", claims=(claim, replace(claim, afterwards=True)), seeds=2)
        outcome = outcome_of(of, {"a": losses(1, 1.1), "b": losses(2, 2.1)})
        rows = table(section(outcome), "Claims").rows
        assert [row[0] for row in rows] == ["a is lower.", "a is lower. (Written afterwards.)"]
        assert [each.get("afterwards") for each in result_of(outcome)["claims"]] == [None, True]
        said = [node.text for node in summary([outcome]) if isinstance(node, Paragraph)]
        assert (
            "Of 2 claims about a difference, 2 hold. 1 was written when results were known: such a claim tests what is "
            "said of them, and predicted nothing."
        ) in said

    def test_of_shortened_trainings_judges_nothing_and_says_so(self) -> None:
        said = paragraphs(planted(trained=True, scale=0.05))
        assert said["Shortened"].startswith("Trainings ran for 0.05 of their steps.")
        assert "What it means" not in said
        assert verdicts(table(section(planted(True, 0.05)), "Published")) == [NOT_JUDGED] * 3

    def test_says_what_it_means_only_when_whole(self) -> None:
        whole = planted()
        assert paragraphs(whole)["What it means"] == "It is as it is."
        assert "What it means" not in paragraphs(replace(whole, seeds=1))
        assert "What it means" in paragraphs(replace(whole, seeds=4))
        whole.records["low"].pop(2)
        assert "What it means" not in paragraphs(whole)

    def test_of_a_sweep_does_not_say_what_would_refute_it(self) -> None:
        of = study("a", "b", refuted_if="")
        assert "What would refute it" not in paragraphs(outcome_of(of, {"a": losses(1.0)}))

    def test_of_a_partial_study_says_run_by_run_what_is_missing_and_why_without_places(self) -> None:
        some = outcome_of(
            study("a", "b", seeds=3),
            {"a": losses(1.0)},
            failures={"b, seed 1": "/home/someone/data/text.txt: damaged; see C:\\Users\\me\\log.txt"},
        )
        nodes = list(section(some))
        (items,) = (node.items for node in nodes if hasattr(node, "items"))  # type: ignore[union-attr]
        assert items == (
            "a, seeds 2 and 3: not run yet",
            "b, seed 1: failed: text.txt: damaged; see log.txt",
            "b, seeds 2 and 3: not run yet",
        )
        assert paragraphs(some)["Partial"] == "5 of 6 runs are missing:"

    def test_lists_every_arm_with_its_interval_and_seeds(self) -> None:
        found = table(section(planted()), "All arms")
        assert found.heads == ("arm", "loss, nats a token", "seeds")
        assert found.rows == (("low", "1.253 ± 0.038", "3"), ("high", "2.020 ± 0.066", "3"))

    def test_tells_the_command_the_machine_the_versions_and_the_date(self) -> None:
        of = planted(trained=True, scale=0.05)
        said = paragraphs(of)
        assert (said["Machine"], said["Date"]) == ("A Processor, 2 CPUs, 1 thread", "2026-03-14")
        assert said["Versions"] == "clearformer 0.1.0, torch 2.13.0"
        assert said["Time"] == "6.0 minutes for 6 runs"
        assert [node.text for node in section(of) if isinstance(node, Command)] == [
            "clearformer study run planted --seeds 3 --scale 0.05"
        ]

    def test_its_command_imports_the_file_of_functions_of_ones_own(self) -> None:
        assert command(planted()) == "clearformer study run planted --import reported.py --seeds 3"

    def test_its_command_has_every_digit_of_the_scale(self) -> None:
        assert command(planted(trained=True, scale=0.123456789)).endswith("--seeds 3 --scale 0.123456789")

    def test_names_the_trainings_that_diverged_and_the_rates_that_were_tried(self) -> None:
        of = study("p", seeds=1)
        arms = tuple(Training(f"s, rate {rate}", side="s") for rate in (1, 2))
        of = study("p", seeds=1, tuned_by="loss")
        of = type(of)(**{**vars(of), "arms": arms})
        got = outcome_of(of, {"s, rate 1": [{"loss": 2.0}], "s, rate 2": [{"diverged_at": 31}]})
        nodes = list(section(got))
        assert table(nodes, "Learning rates").rows[0][:3] == ("s", "s, rate 1", "2")
        assert ("s, rate 2, seed 1: at step 31",) in [getattr(node, "items", None) for node in nodes]

    def test_shows_figures_of_which_something_was_measured_and_texts_as_text(self) -> None:
        figures = (Bars("Loss", "loss"), Curves("Way"), Texts("Samples", "sample"), Matrix("M", "m", "low"))
        of = outcome_of(study("low", figures=figures), {"low": [{"loss": 1.0, "sample": "to be"}]})
        shown: list[Node] = [node for node in section(of) if type(node).__name__ in ("Picture", "Samples")]
        assert [node.title for node in shown] == ["Loss", "Samples"]  # type: ignore[union-attr]
        assert isinstance(shown[0], Picture)


NASTY = '<script>alert("1")</script> | `a` *b* [c](d) & ```'


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a report of two studies, one of which has nasty names."""
    folder = tmp_path_factory.mktemp("studies")
    nasty = study(
        NASTY,
        "plain",
        name="nasty",
        question=NASTY,
        claims=(Claim(NASTY, "loss", NASTY, "plain"),),
        figures=(Bars(NASTY, "loss"), Texts(NASTY, "sample")),
        fairness=NASTY,
        seeds=2,
    )
    values = {
        arm: [{"loss": 1.0, "sample": NASTY}, {"loss": 2.0, "sample": NASTY}] for arm in (NASTY, "plain")
    }
    write_report([planted(figures=(Bars("Loss", "loss"),)), outcome_of(nasty, values)], folder)
    return folder


class TestHTML:
    def test_is_one_file_that_fetches_and_runs_nothing(self, written: Path) -> None:
        text = (written / "report.html").read_text()
        page = Page(text)
        assert not page.all("script")
        assert not page.all("link")
        assert not page.all("img")
        addresses = [
            each[name] for _, each in page.found for name in ("href", "src", "xlink:href") if name in each
        ]
        assert all(address.startswith(("#", "data:image/png")) for address in addresses)
        assert not re.search(r"@import|url\((?!#)", text)
        assert page.all("meta")[1]["content"].startswith("default-src 'none'")

    def test_escapes_all_words(self, written: Path) -> None:
        page = Page((written / "report.html").read_text())
        assert page.words.count(NASTY) >= 6

    def test_is_accessible(self, written: Path) -> None:
        page = Page((written / "report.html").read_text())
        assert page.all("html") == [{"lang": "en"}]
        levels = [int(tag[1]) for tag, _ in page.found if re.fullmatch(r"h\d", tag)]
        assert levels.count(1) == 1
        assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
        assert len(page.all("caption")) == len(page.all("table")) > 0
        assert all("scope" in each for each in page.all("th"))
        assert len(page.all("svg")) == len(page.all("desc")) == 2
        assert all(each["role"] == "img" for each in page.all("svg"))
        ids = Counter(each["id"] for _, each in page.found if "id" in each)
        assert max(ids.values()) == 1

    def test_links_lead_to_its_sections(self, written: Path) -> None:
        page = Page((written / "report.html").read_text())
        ids = {each["id"] for _, each in page.found if "id" in each}
        links = [each["href"][1:] for each in page.all("a")]
        assert {"planted", "nasty"} <= set(links) <= ids


class TestMarkdown:
    def test_every_link_and_picture_is_there(self, written: Path) -> None:
        for page in (
            written / "README.md",
            written / "planted" / "README.md",
            written / "nasty" / "README.md",
        ):
            words = re.sub(r"^(`{3,}).*?^\1$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
            targets = re.findall(r"(?<!\\)\]\(([^)\\]+)\)", words)
            assert targets
            for target in targets:
                assert (page.parent / target).is_file(), target

    def test_a_page_of_a_study_begins_with_its_question(self, written: Path) -> None:
        lines = (written / "planted" / "README.md").read_text().splitlines()
        assert lines[0] == "# Is it so?"
        assert "[All studies](../README.md)" in lines

    def test_rows_of_tables_have_as_many_cells_as_heads(self, written: Path) -> None:
        for page in written.rglob("README.md"):
            for block in re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE):
                counts = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
                assert len(counts) == 1

    def test_marks_of_markdown_lose_their_meaning(self) -> None:
        assert escaped("a | b*c_\n<d> & `e`") == r"a \| b\*c\_ \<d\> &amp; \`e\`"
        assert escaped("1. no list") == r"1\. no list"
        assert escaped("- no list") == r"\- no list"

    def test_a_text_of_fences_is_fenced(self) -> None:
        assert fenced("```\nto be\n````") == "`````text\n```\nto be\n````\n`````"


class TestResult:
    def test_has_what_its_contract_names(self, written: Path) -> None:
        result = json.loads((written / "planted" / "result.json").read_text())
        assert [each["verdict"] for each in result["published"]] == [REPRODUCED, NOT_REPRODUCED, SLIP]
        first = result["published"][0]
        assert (first["value"], first["seeds"]) == (1.25, 3)
        assert first["measured"] == pytest.approx(1.2533333)
        assert first["interval"] == pytest.approx([1.2154, 1.2913], abs=1e-4)

    def test_has_every_number_seed_by_seed_and_what_is_missing(self) -> None:
        some = outcome_of(study("a", "b", seeds=2), {"a": losses(1.0, 3.0)})
        result = result_of(some)
        assert result["values"]["a"]["loss"]["mean"] == 2.0
        assert result["values"]["a"]["loss"]["by_seed"] == {1: 1.0, 2: 3.0}
        assert result["missing"] == ["b, seed 1", "b, seed 2"]
        assert (result["scale"], result["is_whole"]) == (1.0, False)

    def test_a_planted_number_is_not_reproduced_in_every_form(self, written: Path) -> None:
        for file in ("planted/result.json", "planted/README.md", "README.md", "report.html"):
            assert NOT_REPRODUCED in (written / file).read_text(), file


def test_a_study_alone_has_its_report_beside_its_result(tmp_path: Path) -> None:
    report = write_study(planted(figures=(Bars("Loss", "loss"),)), tmp_path)
    assert report == tmp_path / "planted" / "report.html"
    page = Page(report.read_text())
    assert "Is it so?" in page.words
    assert len(page.all("svg")) == 1
    assert json.loads((tmp_path / "planted" / "result.json").read_text())["name"] == "planted"


def test_the_report_of_one_study_leaves_that_over_all_as_it_is(tmp_path: Path) -> None:
    study = planted(figures=(Bars("Loss", "loss"),))
    report = write_study_report(study, tmp_path)
    assert report == tmp_path / "planted" / "report.html"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["planted"]
    alone = (tmp_path / "planted" / "README.md").read_text()
    assert "../README.md" not in alone
    joint = write_report([study], tmp_path)
    pages = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    assert "../README.md" in (tmp_path / "planted" / "README.md").read_text()
    joint.write_text("over all")
    write_study_report(study, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == {**pages, joint: b"over all"}


def test_a_report_is_the_same_bytes_from_the_same_values(tmp_path: Path) -> None:
    figures = (Bars("Loss", "loss"),)
    one, other = (write_report([planted(figures=figures)], tmp_path / name) for name in ("one", "other"))
    for file in one.parent.rglob("*.*"):
        assert file.read_bytes() == (other.parent / file.relative_to(one.parent)).read_bytes()


def test_a_report_takes_away_the_figures_that_a_study_no_longer_has(tmp_path: Path) -> None:
    write_report([planted(figures=(Bars("Loss", "loss"), Bars("Again", "loss")))], tmp_path)
    (tmp_path / "planted" / "mine.svg").write_text("<svg/>")
    write_report([planted(figures=(Bars("Loss", "loss"),))], tmp_path)
    assert {path.name for path in (tmp_path / "planted").glob("*.svg")} == {"figure-1.svg", "mine.svg"}


def test_few_arms_with_many_values_have_a_row_for_each_value() -> None:
    many = {f"value_{i}": float(i) for i in range(11)}
    found = table(section(outcome_of(study("a", "b"), {"a": [many], "b": [many]})), "All arms")
    assert found.heads == ("value", "a", "b")
    assert found.rows[3] == ("value 3", "3", "3")


def test_a_figure_says_which_arms_diverged() -> None:
    values = {"a": losses(1.0, 1.1), "b": [{"diverged_at": 7}] * 2, "c": [{"diverged_at": 7}, {"loss": 2.0}]}
    outcome = outcome_of(study("a", "b", "c", figures=(Bars("Losses", "loss"),)), values)
    (picture,) = (node for node in section(outcome) if isinstance(node, Picture))
    assert picture.note.endswith(
        "b diverged and is not drawn; c diverged in 1 of 2 runs and is drawn without."
    )


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_settings_in_common_are_those_that_no_arm_overrides(scale: float) -> None:
    settings = {
        "model": {"position": {"kind": "rope", "base": 7}, "d_model": 12, "attention": {"n_heads": 2}},
        "train.max_steps": 9,
    }
    arms = [
        Training("a", "quick", {"model.position": "none"}),
        Training("b", "quick", {"model.attention.kind": "dot"}),
    ]
    common = {"model.d_model": 12, "model.attention.n_heads": 2} | (
        {"train.max_steps": 9} if scale == 1 else {}
    )
    assert in_common(settings, arms, is_scaled=scale != 1) == common


def test_a_section_tells_what_was_trained_and_in_which_precision(tmp_path: Path) -> None:
    of = tiny_study(tmp_path, seeds=1)
    records: dict[str, dict[int, Record]] = {}
    for trial, dtype in zip(trials(of), ("float32", None), strict=True):
        settings = json.loads(json.dumps(trial.settings))
        settings["config"]["train"]["dtype"] = "auto"
        about = {"processor": "A Processor"} | ({"dtype": dtype} if dtype else {})
        records[trial.arm.label] = {
            1: Record(f"{trial.settings_key}-0123", settings, 1, {"m": {"x": 1.0}}, 1.0, about)
        }
    nodes = list(section(Outcome(of, 1.0, 2, records, {})))
    (shared,) = (node.text for node in nodes if isinstance(node, Paragraph) and node.lead == "Every training")
    assert shared.startswith("preset quick; data.path=")
    assert "3 steps of 2 \N{MULTIPLICATION SIGN} 8 tokens" in shared
    assert shared.endswith("(SHA-256 0123…)")
    assert table(nodes, "Settings of each arm").rows == (
        ("1 layers", "model.n_layers=1", "A Processor", "float32"),
        ("2 layers", "model.n_layers=2", "A Processor", "auto: not recorded"),
    )


def test_files_that_no_report_wrote_are_not_replaced(tmp_path: Path) -> None:
    study = planted(figures=(Bars("Loss", "loss"),))
    for write, name in (
        (lambda: write_report([study], tmp_path), "README.md"),
        (lambda: write_report([study], tmp_path), "report.html"),
        (lambda: write_report([study], tmp_path), f"{study.study.name}/README.md"),
        (lambda: write_study_report(study, tmp_path), f"{study.study.name}/README.md"),
        (lambda: write_study(study, tmp_path), f"{study.study.name}/report.html"),
        (lambda: write_study(study, tmp_path), f"{study.study.name}/result.json"),
    ):
        own = tmp_path / name
        own.parent.mkdir(exist_ok=True)
        own.write_text("mine")
        with pytest.raises(UserError, match=f"{name} exists and is no report of clearformer"):
            write()
        assert own.read_text() == "mine"
        assert [file for file in tmp_path.rglob("*") if file.is_file()] == [own]
        own.unlink()
    for _ in range(2):
        write_report([study], tmp_path)
        write_study_report(study, tmp_path)
