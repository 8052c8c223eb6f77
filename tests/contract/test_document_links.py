"""Links between the documents: each leads to a file of the repository, and to a heading where it names one."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), BENCHMARKS / "RESULTS.md"]
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def prose(document: Path) -> str:
    """A document without its blocks of code."""
    return FENCED.sub("", document.read_text(encoding="utf-8"))


def anchors(document: Path) -> Iterator[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    seen: dict[str, int] = {}
    for heading in HEADING.findall(prose(document)):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        seen[anchor] = seen.get(anchor, -1) + 1
        yield f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: str(each.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    for link in LINK.findall(prose(document)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        assert target.exists(), link
        if anchor:
            assert anchor in set(anchors(target)), link


def test_every_section_of_the_results_stands_in_its_contents() -> None:
    results = BENCHMARKS / "RESULTS.md"
    contents, _, sections = results.read_text(encoding="utf-8").partition("\n## ")
    headings = re.findall(r"^#{2,3} (.+)$", "## " + sections, re.MULTILINE)
    assert re.findall(r"\[([^\]]+)\]\(#", contents) == headings


def test_every_result_file_is_named_in_a_document() -> None:
    text = "".join(map(prose, DOCUMENTS))
    unnamed = [file.name for file in (BENCHMARKS / "results").iterdir() if file.name not in text]
    assert unnamed == []
