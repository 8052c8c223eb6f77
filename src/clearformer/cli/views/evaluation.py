"""Evaluation reports as text."""

from collections.abc import Iterable

from clearformer.training.tasks.reports import EvaluationReport, Figure, Section


def evaluation_text(report: EvaluationReport) -> str:
    """Format all sections, with a blank line between them."""
    return "\n\n".join("\n".join(section_lines(section)) for section in report.sections)


def section_lines(section: Section) -> list[str]:
    """Format the lines of a section; figures are indented under a heading."""
    heading = [section.heading] if section.heading else []
    text = [section.text] if section.text else []
    return [*heading, *figure_lines(section.figures, indented=bool(heading)), *text]


def figure_lines(figures: Iterable[Figure], indented: bool) -> list[str]:
    """Format names and values in two columns."""
    return [f"  {name:8}  {value}" if indented else f"{name:<20}{value}" for name, value in figures]
