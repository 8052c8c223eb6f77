"""The report of a study: figures, tables and verdicts, as one HTML file, or as Markdown with figures as files."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from clearformer.errors import UserError
from clearformer.files import disk_errors, write_file
from clearformer.results import plain
from clearformer.study.outcomes import Outcome
from clearformer.study.report.content import TITLE, section, summary
from clearformer.study.report.html_page import html_page
from clearformer.study.report.markdown_pages import PAGE, markdown_page
from clearformer.study.report.nodes import Heading, Node, Paragraph, Picture
from clearformer.study.report.result import result_of
from clearformer.study.study import Study

RESULT, REPORT, FIGURES = "result.json", "report.html", "figure-*.svg"
MADE_BY = "Made by clearformer study report."


def check_is_own(folder: Path, names: Sequence[str]) -> None:
    """Check that no file of a folder would be replaced that an earlier report did not write.

    Args:
        folder: The folder of all studies, whose pages say what made them; or a study's own, with the `RESULT` of one.
        names: The names of the files to write.

    Raises:
        UserError: there is one.
    """
    if _is_result(folder / RESULT):
        return
    for file in (folder / name for name in names):
        if file.exists() and not (
            file.is_file() and MADE_BY in file.read_text(encoding="utf-8", errors="replace")
        ):
            raise UserError(
                f"{file} exists and is no report of clearformer: choose another folder, or move it away"
            )


def check_can_be_written(study: Study, folder: Path) -> None:
    """Raise UserError if the report that `write_study` writes would replace a file of another origin."""
    check_is_own(folder / study.name, [RESULT, REPORT])


def _is_result(file: Path) -> bool:
    """Whether a file is the result.json of a study."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and {"name", "refuted_if", "published", "claims"} <= content.keys()


def write_study(outcome: Outcome, folder: Path) -> Path:
    """Write FOLDER/NAME/result.json and report.html; returns the report's path.

    Raises:
        MissingPackageError: matplotlib is not installed.
        UserError: a file of another origin would be replaced.
        DiskError: the files cannot be written.
    """
    check_can_be_written(outcome.study, folder)
    return write_own_report(outcome, list(section(outcome, level=1)), folder / outcome.study.name)


def write_study_report(outcome: Outcome, folder: Path) -> Path:
    """Write what `write_study` writes and the same as Markdown; the report over all studies stays as it is.

    Raises:
        MissingPackageError: matplotlib is not installed.
        UserError: a file of another origin would be replaced.
        DiskError: the files cannot be written.
    """
    check_is_own(folder / outcome.study.name, [RESULT, PAGE, REPORT])
    own, nodes = folder / outcome.study.name, list(section(outcome, level=1))
    report = write_own_report(outcome, nodes, own)
    write_markdown(nodes, own, is_among_others=(folder / PAGE).exists())
    return report


def write_report(outcomes: Sequence[Outcome], folder: Path, waiting: Sequence[Outcome] = ()) -> Path:
    """Write one report over several studies; returns its path.

    FOLDER/report.html is the whole report in one file; FOLDER/README.md is the summary as Markdown; FOLDER/NAME/ has
    README.md, figure-N.svg and result.json of each study. The summary also counts and lists studies in `waiting`,
    which have not been run.

    Raises:
        MissingPackageError: matplotlib is not installed.
        UserError: a file of another origin would be replaced.
        DiskError: it cannot be written.
    """
    check_is_own(folder, [PAGE, REPORT])
    for outcome in outcomes:
        check_is_own(folder / outcome.study.name, [RESULT, PAGE])
    sections = [list(section(outcome)) for outcome in outcomes]
    top: list[Node] = [Heading(TITLE, 1), *summary(outcomes, waiting), Paragraph(MADE_BY, kind="small")]
    for outcome, nodes in zip(outcomes, sections, strict=True):
        own = folder / outcome.study.name
        write_result(outcome, own)
        write_markdown(list(raised(nodes)), own, is_among_others=True)
    write_file(folder / PAGE, markdown_page(top).encode())
    whole = html_page(TITLE, [*top, *(node for nodes in sections for node in nodes)])
    write_file(folder / REPORT, whole.encode())
    return folder / REPORT


def write_own_report(outcome: Outcome, nodes: Iterable[Node], own: Path) -> Path:
    """Write a study's result.json and its report.html; returns the latter's path."""
    write_result(outcome, own)
    write_file(own / REPORT, html_page(outcome.study.question, nodes).encode())
    return own / REPORT


def write_markdown(nodes: Sequence[Node], own: Path, is_among_others: bool) -> None:
    """Write a study's README.md and figures; among others, it links to the page of all studies."""
    write_pictures([node for node in nodes if isinstance(node, Picture)], own)
    link = f"\n[All studies](../{PAGE})\n" if is_among_others else ""
    write_file(own / PAGE, (markdown_page(nodes) + link).encode())


def raised(nodes: Iterable[Node]) -> Iterator[Node]:
    """Raise each heading of a section by one level, for a page of its own."""
    for node in nodes:
        yield replace(node, level=node.level - 1) if isinstance(node, Heading) else node


def write_pictures(pictures: Sequence[Picture], folder: Path) -> None:
    """Write a study's figures, and delete those of an earlier report that it no longer has."""
    for picture in pictures:
        write_file(folder / picture.file, picture.svg.encode())
    with disk_errors(folder):
        for path in set(folder.glob(FIGURES)) - {folder / picture.file for picture in pictures}:
            path.unlink()


def write_result(outcome: Outcome, folder: Path) -> None:
    """Write a study's result.json."""
    content = json.dumps(plain(result_of(outcome)), indent=1, allow_nan=False) + "\n"
    write_file(folder / RESULT, content.encode())
