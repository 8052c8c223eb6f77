import sys
from pathlib import Path

import numpy as np
import pytest

from clearformer.errors import DiskError, MissingPackageError, UserError
from clearformer.evaluation import figures
from clearformer.evaluation.classes.metrics import ClassificationReport, classification_report
from clearformer.evaluation.figures import confusion_matrix_figure, saved_figure

from ...full_disk import largest_file

pytest.importorskip("matplotlib")


@pytest.fixture
def report() -> ClassificationReport:
    labels, predictions = np.random.default_rng(0).integers(3, size=(2, 5003))
    return classification_report(labels, predictions, ["yes", "no $x_1$", "perhaps"])


def test_an_svg_has_every_label_count_and_score(
    report: ClassificationReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # text as text, not as outlines
    path = tmp_path / "new" / "confusion.svg"
    confusion_matrix_figure(report, path, title="films")
    content = path.read_text()
    for name in report.names:
        assert content.count(f">{name}<") == 2
    for count in report.confusion.ravel():
        assert f">{count:,}<" in content
    for text in ("films", "label", "prediction", f"accuracy {report.accuracy:.1%} of 5,003, macro-F1 "):
        assert text in content


def test_a_png_grows_with_the_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "LARGEST_SIDE", 6.0)  # the real one would be a picture of 4,000 pixels
    widths = []
    for n in (2, 8, 45):
        path = tmp_path / f"{n}.png"
        confusion_matrix_figure(
            classification_report(range(n), range(n), [f"class {i}" for i in range(n)]), path
        )
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG")
        widths.append(int.from_bytes(content[16:20]))
    assert widths[0] < widths[1] < widths[2] < 1300


@pytest.mark.filterwarnings("error")
def test_long_labels_are_cut_so_that_the_matrix_keeps_its_room(tmp_path: Path) -> None:
    names = ["short", "a label that\nis a sentence " * 20]
    confusion_matrix_figure(classification_report([0, 1], [1, 1], names), tmp_path / "long.png")


@pytest.mark.filterwarnings("error:Glyph")
def test_letters_that_the_font_lacks_come_from_an_installed_one(tmp_path: Path) -> None:
    """Matplotlib itself comes with U+20E4, an enclosing triangle, in two other fonts."""
    with saved_figure(tmp_path / "a.png", 3, 2) as figure:
        axes = figure.subplots()
        axes.set_xticks([0, 1], ["a\u20e4", "b"])
    families = axes.get_xticklabels()[0].get_fontfamily()
    assert {"STIXGeneral", "DejaVu Math TeX Gyre"} & set(families)

    with saved_figure(tmp_path / "a.png", 3, 2) as figure:
        plain = figure.subplots().text(0, 0, "b")
    assert len(plain.get_fontfamily()) == 1


def test_a_font_that_was_removed_since_it_was_listed_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.font_manager import FontEntry, fontManager

    gone = FontEntry(fname=str(tmp_path / "gone.ttf"), name="Gone")
    monkeypatch.setattr(fontManager, "ttflist", [gone, *fontManager.ttflist])
    with saved_figure(tmp_path / "a.png", 3, 2) as figure:
        text = figure.subplots().text(0, 0, "a\u20e4")
    assert {"STIXGeneral", "DejaVu Math TeX Gyre"} & set(text.get_fontfamily())


def test_a_figure_needs_a_known_ending_and_a_place(report: ClassificationReport, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"confusion.txt: a figure is written as .png, .svg, .pdf"):
        confusion_matrix_figure(report, tmp_path / "confusion.txt")
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="cannot be written"):
        confusion_matrix_figure(report, tmp_path / "file" / "confusion.png")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_on_a_full_disk_an_earlier_figure_stays(
    report: ClassificationReport, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"confusion{suffix}"
    path.write_text("the earlier one")
    with (
        largest_file(1000),
        pytest.raises(DiskError, match=f"confusion{suffix}: cannot be written: File too"),
    ):
        confusion_matrix_figure(report, path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "the earlier one"


def test_without_matplotlib_it_says_what_to_install(
    report: ClassificationReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPackageError, match=r"matplotlib.*pip install 'clearformer\[figures\]'"):
        confusion_matrix_figure(report, tmp_path / "confusion.png")
