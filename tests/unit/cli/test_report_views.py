"""Reports of evaluations as text."""

from clearformer.cli.views.evaluation import evaluation_text, section_lines
from clearformer.training.tasks.reports import EvaluationReport, Figure, Section


def test_sections_stand_apart_and_their_figures_in_columns() -> None:
    report = EvaluationReport(
        (
            Section(text="a note"),
            Section(figures=(Figure("loss", "1.5"), Figure("perplexity", "4.48"))),
            Section(text="two\nlines"),
        ),
        values={},
    )

    assert evaluation_text(report) == (
        "a note\n\nloss                1.5\nperplexity          4.48\n\ntwo\nlines"
    )


def test_figures_under_a_heading_are_indented_and_one_without_a_name_goes_on() -> None:
    figures = (Figure("this run", "90%"), Figure("baseline", "80%"), Figure("", "of words"))

    assert section_lines(Section("all of it:", figures)) == [
        "all of it:",
        "  this run  90%",
        "  baseline  80%",
        "            of words",
    ]
