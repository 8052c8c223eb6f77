"""The page's views: each is one function of `clearformer.lens`, called with the selection.

A view shows exactly what that function returns: its arrays, its table, its figure. So each view can be copied as
Python code that gives the same numbers.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clearformer import lens
from clearformer.errors import ClearformerError, UserError, did_you_mean, shown
from clearformer.hooks import hook_points
from clearformer.lens import Shown
from clearformer.lens.numbers.matrix import MOST_COLUMNS, MOST_ROWS
from clearformer.model import Encoder, EncoderDecoder
from clearformer.page.selection import Selection
from clearformer.run import Run
from clearformer.runs.folders import folder_of
from clearformer.runs.opening import opening

TEXT = ("text", "output", "masked")
CHOSEN = ("position", "target", "foil")
FILTERS = ("top_k", "top_p", "min_p", "repetition_penalty")
DRAWS = ("temperature", *FILTERS, "seed")
OPTIONAL = (
    "output",
    "masked",
    "target",
    "foil",
    "matrix",
    "word",
    "contexts",
    "drawn",
    "edits",
    "donor",
    "temperature",
    *FILTERS,
)
"""Fields that are left out of a call when they have their default or are empty."""
PICTURES = ("svg", "png")
LENS_COLUMNS = 32  # of the logit lens; each needs the logits of the whole vocabulary at every layer

Fits = Callable[[Run], bool]


@dataclass(frozen=True)
class View:
    """One view.

    Attributes:
        title: Its heading.
        about: One sentence below the heading.
        function: The name of its function in `clearformer.lens`.
        uses: The fields of the selection that are arguments of the function.
        fits: Whether a run has this view.
        renamed: Pairs of a field and the function's name for it, where they differ.
        beside: Whether it opens inside another view and has no place of its own on the page.
        only: Fields that are arguments only for some runs.
        needs: Fields that must be selected, and their names in the error message.
        is_of_run: Whether it shows a whole run, whatever checkpoint is selected.
        is_read_at: Whether its position is that of a query, and so exists for models of classes as well.
        subtracts: Whether it shows the difference if two runs are selected; if not, it shows the first run alone.
        is_of_two: Whether its function takes two runs.
        is_long: Whether it may take long; its function then reports progress to `on_step`.
        takes_opened: Whether its function takes runs at other steps that are already open, as `opened`.
        is_in_parts: Whether its function passes intermediate results to `on_part`, which are shown until it is done.
        given: Further arguments of the function, always the same.
        at_once: Arguments that limit the first answer; the page requests the rest when a user wants to see it.
    """

    title: str
    about: str
    function: str
    uses: tuple[str, ...] = TEXT
    fits: Fits = lambda _: True
    renamed: tuple[tuple[str, str], ...] = ()
    beside: bool = False
    only: tuple[tuple[str, Fits], ...] = ()
    needs: tuple[tuple[str, str], ...] = ()
    is_of_run: bool = False
    is_read_at: bool = False
    subtracts: bool = False
    is_of_two: bool = False
    is_long: bool = False
    takes_opened: bool = False
    is_in_parts: bool = False
    given: tuple[tuple[str, Any], ...] = ()
    at_once: tuple[tuple[str, Any], ...] = ()

    @property
    def whole(self) -> "View":
        """The same view without limits (`at_once`), for tables, pictures and exported pages."""
        return replace(self, at_once=())

    @property
    def fields(self) -> list[str]:
        """The fields of the selection that the view depends on."""
        runs = ("run", "versus") if self.takes_other else ("run",)
        steps = () if self.is_of_run else ("checkpoint", "versus_checkpoint")[: len(runs)]
        return [*runs, *steps, *self.uses]

    @property
    def takes_other(self) -> bool:
        """Whether the view depends on the second run."""
        return self.subtracts or self.is_of_two

    def arguments(self, run: Run, selection: Selection) -> dict[str, Any]:
        """Return the keyword arguments of the function, after the run and the text."""
        renamed, only = dict(self.renamed), dict(self.only)
        found = {}
        for field in self.uses:
            value = getattr(selection, field)
            fits = self._takes(run, field) and only.get(field, takes_it)(run)
            if field == "text" or not fits or is_left_out(field, value):
                continue
            found[renamed.get(field, field)] = list(value) if isinstance(value, tuple) else value
        return found | dict(self.given) | dict(self.at_once)

    def _takes(self, run: Run, field: str) -> bool:
        return (field == "position" and self.is_read_at) or takes(run, field)

    def call(self, run: Run, selection: Selection, other: Run | None = None, **telling: Any) -> Shown:
        """Call the view's function.

        Args:
            run: The run, at the selected checkpoint.
            selection: The selection.
            other: The second run, at its checkpoint, for a view that takes one.
            telling: `on_step` for a long view, `on_part` for one in parts, `opened` for one that takes it.

        Raises:
            UserError: the selection does not fit the run or the text, or a needed field is not set.
        """
        for field, name in self.needs:
            if getattr(selection, field) == Selection.model_fields[field].default:
                raise UserError(f"{self.title}: {name} is not set")
        text = [selection.text] if "text" in self.uses else []
        function, arguments = getattr(lens, self.function), self.arguments(run, selection) | telling
        if self.is_of_two:
            if other is None:
                raise UserError(f"{self.title}: no run to compare with is set")
            return function(run, other, *text, **arguments)
        if other is None or not self.subtracts:
            return function(run, *text, **arguments)
        return lens.beside(function, run, other, *text, **arguments)

    def answer(self, run: Run, selection: Selection, other: Run | None = None) -> dict[str, Any]:
        """Return everything that the page shows of the view, including its table.

        Raises:
            UserError: the selection does not fit the run or the text.
        """
        found = self.call(run, selection, other)
        whole = self.whole.call(run, selection, other) if self.at_once else found
        return self.described(run, selection, found, other) | {"table": table_of(whole)}

    def described(
        self, run: Run, selection: Selection, found: Shown, other: Run | None = None
    ) -> dict[str, Any]:
        """Return everything that the page shows of a result, except its table."""
        return {
            "caption": found.caption(),
            "notes": found.notes(),
            "python": self.as_python(run, selection, other),
            "runs": [step_of(each) for each in (run, other) if each is not None],
            "found": found,
        }

    def picture(self, run: Run, selection: Selection, kind: str, other: Run | None = None) -> bytes:
        """Return the view as a picture.

        Raises:
            UserError: there is no such kind of picture, or the selection does not fit the run or the text.
            MissingPackageError: matplotlib is not installed.
        """
        check_picture(kind)
        return self.drawn(self.whole.call(run, selection, other), kind)

    def drawn(self, found: Shown, kind: str) -> bytes:
        """Draw a result; returns the picture's bytes."""
        with tempfile.TemporaryDirectory() as folder:
            return found.figure(Path(folder) / f"{self.function}.{kind}").read_bytes()

    def as_python(self, run: Run, selection: Selection, other: Run | None = None) -> str:
        """Return the call as runnable lines of Python that load the run at the step shown."""
        text = [repr(selection.text)] if "text" in self.uses else []
        given = [f"{name}={value!r}" for name, value in self.arguments(run, selection).items()]
        name = f"cf.lens.{self.function}"
        lines, arguments = ["import clearformer as cf", "", opening_line(run)], ["run", *text, *given]
        if other is not None:
            lines.append(opening_line(other, "other"))
            arguments.insert(1, "other")
            if not self.is_of_two:
                name, arguments = "cf.lens.beside", [name, *arguments]
        return "\n".join([*lines, f"found = {name}({', '.join(arguments)})", ""])


def takes_it(_: Run) -> bool:
    """Accept any run: the default for fields that `View.only` does not list."""
    return True


def table_of(found: Shown) -> dict[str, Any]:
    """Return the table of a result."""
    table = found.table()
    return {"heads": table.heads, "rows": table.rows, "words": table.n_left}


def check_picture(kind: str) -> None:
    """Raise UserError if there is no such kind of picture."""
    if kind not in PICTURES:
        raise UserError(f"a picture is {' or '.join(PICTURES)}; got {shown(kind)}")


def is_left_out(field: str, value: Any) -> bool:
    """Whether a field can be left out of a call, because it is optional and empty or at its default."""
    return field in OPTIONAL and (not value or value == Selection.model_fields[field].default)


def takes(run: Run, field: str) -> bool:
    """Whether a field of the selection applies to a run's kind of model."""
    if field in ("output", "part"):
        return isinstance(run.model, EncoderDecoder)
    if field == "masked":
        return isinstance(run.model, Encoder) and run.model.config.n_classes is None
    if field == "position" or field in DRAWS:
        return run.model.config.n_classes is None
    if field in ("drawn", "new_tokens"):
        return writes(run)
    return True


def tells_classes(run: Run) -> bool:
    """Whether a run's model classifies texts."""
    return run.model.config.n_classes is not None


def writes(run: Run) -> bool:
    """Whether a run's model generates text."""
    return not isinstance(run.model, Encoder)


def opening_line(run: Run, name: str = "run") -> str:
    """Return the line of Python that opens a run, or a comment where no line could."""
    if not is_kept(run):
        return f"# {name}: the one given to cf.look; it is not saved in a folder"
    return opening(run, name)


def beside_of(view: View, run: Run, other: Run | None) -> Run | None:
    """Return the second run if the view uses it, else None.

    Raises:
        UserError: that run has no such view.
    """
    if other is None or not view.takes_other or (view.is_of_run and other.name == run.name):
        return None
    if not view.fits(other):
        raise UserError(f"{view.title}: the compared run, {other.name}, has no such view")
    return other


def step_of(run: Run) -> str:
    """Return a run's name and step, for people, and how many checkpoints its weights are the mean of."""
    mean = f", mean of {run.average} checkpoints" if run.average > 1 else ""
    return f"{run.name} step {run.step:,}{mean}"


def has_patterns(run: Run) -> bool:
    """Whether a run's attention has weights to show (a `hook_pattern`)."""
    return any(name.endswith("hook_pattern") for name in hook_points(run.model))


def is_kept(run: Run) -> bool:
    """Whether a run is stored in a folder, and so has metrics."""
    return folder_of(run) is not None


def was_trained_here(run: Run) -> bool:
    """Whether a run was trained in its folder, so that its data are known."""
    try:
        run.folder.trained_on()
    except ClearformerError:
        return False
    return True


VIEWS = {
    "overview": View("Overview", "The model as its configuration describes it.", "architecture", ()),
    "comparison": View(
        "Two runs",
        "The second run against the first: the loss of each token, and the distance of weights and activations.",
        "differences",
        ("text", "output"),
        is_of_two=True,
    ),
    "matched": View(
        "Heads of two runs",
        "Each head with the most similar head of the other run, by attention pattern.",
        "match_heads",
        ("text",),
        fits=has_patterns,
        is_of_two=True,
        beside=True,
    ),
    "tokens": View(
        "Tokens",
        "The text as the model reads it, and how much each token surprised it.",
        "tokens",
        subtracts=True,
    ),
    "pieces": View(
        "One token",
        "The bytes of the selected token, and the pieces the tokenizer made it from.",
        "pieces",
        (*TEXT, "position"),
        is_read_at=True,
        beside=True,
    ),
    "block": View(
        "One block in numbers",
        "Every matrix of one block, for one head. Press a cell to see how its number is computed.",
        "block",
        (*TEXT, "layer", "head", "part", "position"),
        subtracts=True,
        at_once=(("most_rows", MOST_ROWS), ("most_columns", MOST_COLUMNS)),
    ),
    "matrix": View(
        "A part of a matrix",
        "Some numbers of one matrix of the block.",
        "matrix",
        (*TEXT, "layer", "head", "part", "matrix", "row", "column"),
        renamed=(("matrix", "name"),),
        subtracts=True,
        beside=True,
    ),
    "cell": View(
        "One number",
        "A number of the block, and what it is computed from.",
        "cell",
        (*TEXT, "layer", "head", "part", "matrix", "row", "column"),
        renamed=(("matrix", "name"),),
        beside=True,
    ),
    "attention": View(
        "Attention",
        "Each head's pattern: the query (row) reads the keys (columns).",
        "attention_overview",
        fits=has_patterns,
        subtracts=True,
    ),
    "pattern": View(
        "One head",
        "Where each token reads, in one head.",
        "head_pattern",
        (*TEXT, "layer", "head", "part", "position", "key"),
        fits=has_patterns,
        is_read_at=True,
        subtracts=True,
        beside=True,
    ),
    "ledger": View(
        "Residual ledger",
        "The logit of the target, minus the foil's, as the sum of what every part of the model wrote.",
        "ledger",
        (*TEXT, *CHOSEN),
        subtracts=True,
    ),
    "sources": View(
        "Source ledger",
        "The same logit as the sum of what each token of the text contributes, with all nonlinear parts held constant.",
        "sources",
        (*TEXT, *CHOSEN),
    ),
    "score": View(
        "Score ledger",
        "Why a head reads a key: its score as the sum of what was written to both vectors.",
        "score",
        (*TEXT, "layer", "head", "part", "position", "key"),
        renamed=(("part", "attention"),),
        is_read_at=True,
    ),
    "classes": View(
        "Classes",
        "How likely each class is, and what each token of the text contributes to the logit of one class.",
        "classes",
        ("text", "target", "foil", "method"),
        fits=tells_classes,
    ),
    "meanings": View(
        "Meanings",
        "One word's vectors in different contexts, in the plane that holds most of their variance.",
        "meanings",
        ("text", "word", "contexts", "layer"),
    ),
    "lens": View(
        "Logit lens",
        "What each layer would predict if it were the last.",
        "logit_lens",
        (*TEXT, "position", "target"),
        subtracts=True,
        given=(("most", LENS_COLUMNS),),
    ),
    "sampling": View(
        "Sampling desk",
        "The vocabulary by probability, what each setting cuts off, and the token drawn.",
        "next_draw",
        (*TEXT, "position", *DRAWS, "drawn"),
        at_once=(("most", 120),),
    ),
    "vocabulary": View(
        "The whole vocabulary",
        "Every token by probability.",
        "next_draw",
        (*TEXT, "position", *DRAWS, "drawn"),
        beside=True,
    ),
    "continuations": View(
        "Continuations",
        "Several continuations at once, each token coloured by how much it surprised the model.",
        "continuations",
        ("text", "output", "position", *DRAWS, "drawn", "num", "new_tokens"),
        fits=writes,
        is_in_parts=True,
        renamed=(("new_tokens", "max_new_tokens"),),
    ),
    "beams": View(
        "Beam tree",
        "The texts that a beam search keeps at each step, and those that end.",
        "beam_tree",
        ("text", "output", "position", "drawn", "beams", "new_tokens"),
        fits=writes,
        is_in_parts=True,
        renamed=(("new_tokens", "max_new_tokens"),),
    ),
    "interventions": View(
        "Intervention desk",
        "Heads and networks switched off, scaled or patched, beside the untouched model.",
        "with_edits",
        (*TEXT, *CHOSEN, "edits", "donor", *DRAWS, "new_tokens"),
        is_in_parts=True,
        renamed=(("new_tokens", "max_new_tokens"),),
    ),
    "training": View(
        "Training",
        "The run's loss by step, live while it trains, and its events.",
        "metrics",
        (),
        fits=is_kept,
        is_of_run=True,
        subtracts=True,
    ),
    "events": View(
        "Events",
        "When induction heads formed, and when the loss reached that of a bigram model.",
        "events",
        (),
        fits=is_kept,
        is_of_run=True,
        is_long=True,
        beside=True,
    ),
    "loss_changes": View(
        "Loss-drop ledger",
        "Which parts of the model changed the loss of this text between the two marked steps.",
        "loss_changes_since",
        (*TEXT, "target", "before", "after"),
        fits=is_kept,
        renamed=(("before", "since"), ("after", "until")),
        only=(("target", tells_classes),),
        needs=(("before", "the mark before"), ("after", "the mark after")),
        is_of_run=True,
        is_long=True,
        takes_opened=True,
    ),
    "corpus": View(
        "Corpus",
        "The loss of every token of the run's own data, and the hardest and easiest passages.",
        "corpus",
        ("split", "first_row", "n_rows"),
        fits=was_trained_here,
        renamed=(("first_row", "first"), ("n_rows", "rows")),
        is_long=True,
    ),
    "learned": View(
        "Learned from",
        "The windows of the training data that raise the selected prediction, and those that lower it.",
        "tracin",
        (*TEXT, "position", "target", "sample"),
        fits=was_trained_here,
        is_long=True,
    ),
}


def find_view(name: str, run: Run) -> View:
    """Return a view of a run by its name.

    Raises:
        UserError: there is none.
    """
    if not isinstance(name, str) or name not in VIEWS:
        raise UserError(f"there is no view {shown(name)}{did_you_mean(str(name), VIEWS)}")
    if not VIEWS[name].fits(run):
        raise UserError(f"{VIEWS[name].title}: this run has no such view")
    return VIEWS[name]


def views_of(run: Run) -> dict[str, View]:
    """Return the views that a run has by itself."""
    return {name: view for name, view in VIEWS.items() if view.fits(run) and not view.is_of_two}


def views_of_two(run: Run) -> dict[str, View]:
    """Return the further views that a run has when it is compared with another."""
    return {name: view for name, view in VIEWS.items() if view.fits(run) and view.is_of_two}
