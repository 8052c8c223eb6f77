"""The tree of a beam search: the hypotheses that each step keeps, and those that end.

tree = lens.beam_tree(run, "First Citizen:", beams=3, max_new_tokens=8)
tree.found[0].text                                  the best: that of `search`, or `translate` for an encoder-decoder
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_function
from clearformer.decoding.beam import (
    BeamSearch,
    BeamStep,
    Candidate,
    Hypothesis,
    beam_search,
    search_settings,
)
from clearformer.decoding.loop import check_prompts
from clearformer.decoding.text.translations import length_limit
from clearformer.lens.inputs import Readable, Subject
from clearformer.lens.sampling.beginnings import Beginning, beginning
from clearformer.lens.showing import Shown, Table, letters, quoted, visible
from clearformer.model import EncoderDecoder
from clearformer.text import Tokenizer

OnPart = Callable[["BeamTree"], None]
"""Receives the tree after every step, with nothing in `found` yet."""


@dataclass(frozen=True)
class BeamNode:
    """A hypothesis of the search: its parent's tokens and one more.

    Attributes:
        step: The number of its tokens, from 1.
        parent: The number of the node that it extends; None at the beginning.
        token: Its newest token, in readable form.
        id: That token's id.
        logprob: The log-probability of all its tokens, in nats.
        score: The ranking score: logprob over the length penalty.
        ended: Whether it has ended, by <eos> or by its length.
        found: Its rank among the hypotheses that the search returns, from 0; None if it is not returned.
        on_best_path: Whether the best hypothesis passes through it.
    """

    step: int
    parent: int | None
    token: str
    id: int
    logprob: float
    score: float
    ended: bool
    found: int | None = None
    on_best_path: bool = False


@dataclass(frozen=True)
class Found:
    """A hypothesis that the search returns.

    Attributes:
        text: The added text, without <eos>.
        tokens: The ids, including <eos>.
        logprob: Their log-probability, in nats.
        score: The ranking score.
    """

    text: str
    tokens: list[int]
    logprob: float
    score: float


@dataclass(frozen=True, repr=False, eq=False)
class BeamTree(Shown):
    """A beam search, step by step.

    Attributes:
        token: The last token of the text that is continued.
        beams: The number of hypotheses kept at each step.
        nodes: Every hypothesis that was kept or ended, step by step; within a step the kept ones first, best first.
        found: The hypotheses that the search returns, best first.
    """

    token: str
    beams: int
    nodes: list[BeamNode]
    found: list[Found]

    def caption(self) -> str:
        return f"beam search after {quoted(self.token)}, {self.beams} beams"

    def table(self) -> Table:
        rows = [
            [
                str(number),
                str(each.step),
                "" if each.parent is None else str(each.parent),
                visible(each.token),
                f"{each.logprob:.4f}",
                f"{each.score:.4f}",
                "ended" if each.ended else "",
                "" if each.found is None else str(each.found + 1),
            ]
            for number, each in enumerate(self.nodes)
        ]
        return Table(["node", "step", "parent", "token", "log P", "score", "end", "place"], rows, 4)

    def inches(self) -> tuple[float, float]:
        n_steps = max((each.step for each in self.nodes), default=1)
        return 1.5 + 1.0 * n_steps, 1.0 + 0.4 * self.beams

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        places: list[tuple[int, int]] = []
        rows: dict[int, int] = {}
        for each in self.nodes:
            places.append((each.step, rows.setdefault(each.step, 0)))
            rows[each.step] += 1
        for each, (x, y) in zip(self.nodes, places, strict=True):
            from_x, from_y = (0, 0) if each.parent is None else places[each.parent]
            colour = "#6b4fc1" if each.on_best_path else "#9aa4b0"
            axes.plot([from_x, x], [from_y, y], color=colour, linewidth=1, zorder=0)
            box = {"facecolor": "white", "edgecolor": colour, "boxstyle": "round,pad=0.2"}
            axes.text(
                x,
                y,
                f"{letters(visible(each.token))} {each.score:.2f}",
                fontsize=7,
                va="center",
                ha="center",
                bbox=box,
            )
        axes.text(0, 0, letters(visible(self.token)), fontsize=7, va="center", ha="center")
        axes.set_xlim(-0.5, max(rows, default=1) + 0.7)
        axes.set_ylim(max(rows.values(), default=1) - 0.5, -0.8)
        axes.set_axis_off()


def beam_tree(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    position: int = -1,
    drawn: Sequence[int] = (),
    beams: int = 4,
    max_new_tokens: int | None = None,
    length_penalty: float = 1.0,
    length_penalty_kind: Literal["hf", "gnmt"] = "hf",
    early_stopping: bool | Literal["never"] = False,
    tokenizer: Tokenizer | None = None,
    on_part: OnPart | None = None,
) -> BeamTree:
    """Search for the likeliest continuations, and record every step.

    Args:
        subject: A run of a decoder or encoder-decoder, or such a bare model.
        text: What is continued, or an encoder-decoder's source.
        output: What an encoder-decoder has written so far; nothing, if neither it nor a position is given.
        position: The token of the text to search after.
        drawn: Ids after it that the search continues.
        beams: See `BeamSearch`, also for the last three.
        max_new_tokens: The most tokens to add; by default 8, or the limit of `translate` for an encoder-decoder.
        length_penalty: The exponent of the penalty.
        length_penalty_kind: `hf` or `gnmt`.
        early_stopping: When the search ends.
        tokenizer: The tokenizer of a bare model.
        on_part: Called with the tree so far.

    Raises:
        ConfigError: a setting is out of its range.
        UserError: the model writes no text, the text cannot be read, or `max_new_tokens` is out of range.
    """
    if on_part is not None:
        check_function("on_part", on_part)
    settings = search_settings(beams, length_penalty, length_penalty_kind, early_stopping)
    begun = beginning(subject, text, output, position=position, drawn=drawn, tokenizer=tokenizer)
    return _tree(begun, settings, _limit(begun, max_new_tokens), on_part)


def _limit(begun: Beginning, max_new_tokens: int | None) -> int:
    if max_new_tokens is not None:
        check_prompts([begun.tokens], max_new_tokens)
    if not isinstance(begun.model, EncoderDecoder) or begun.sources is None:
        return 8 if max_new_tokens is None else max_new_tokens
    return min(length_limit(len(begun.sources[0]), max_new_tokens), begun.model.config.max_seq_len)


def _tree(begun: Beginning, settings: BeamSearch, max_new_tokens: int, on_part: OnPart | None) -> BeamTree:
    growing = _Growing(begun)

    def look(row: int, step: BeamStep) -> None:
        growing.add(row, step)
        if on_part is not None:
            on_part(BeamTree(begun.last_label, settings.beams, list(growing.nodes), []))

    [hypotheses] = beam_search(
        begun.model,
        [begun.tokens],
        max_new_tokens,
        settings,
        begun.eos_id,
        settings.beams,
        begun.sources,
        look,
        begun.prefill(room=max_new_tokens),
        begun.pad_id,
    )
    for place, each in enumerate(hypotheses):
        growing.mark(place, each)
    found = [
        Found(begun.continuation(each.tokens), each.tokens, each.logprob, each.score) for each in hypotheses
    ]
    return BeamTree(begun.last_label, settings.beams, growing.nodes, found)


class _Growing:
    """The nodes of a growing tree.

    Attributes:
        nodes: All nodes so far.
        kept: The numbers of those that the latest step kept; initially None alone, for the beginning.
    """

    def __init__(self, begun: Beginning) -> None:
        self.begun = begun
        self.nodes: list[BeamNode] = []
        self.kept: list[int | None] = [None]
        self.n_steps = 0

    def add(self, _row: int, step: BeamStep) -> None:
        """Add the nodes of a step."""
        self.n_steps += 1
        first = len(self.nodes)
        self.nodes += [self._node(each, ended=False) for each in step.kept]
        self.nodes += [self._node(each, ended=True) for each in step.ended]
        self.kept = list(range(first, first + len(step.kept)))

    def _node(self, candidate: Candidate, ended: bool) -> BeamNode:
        label = self.begun.inputs.label(candidate.token)
        parent = self.kept[candidate.beam]
        return BeamNode(
            self.n_steps, parent, label, candidate.token, candidate.logprob, candidate.score, ended
        )

    def mark(self, place: int, hypothesis: Hypothesis) -> None:
        """Mark the end of a hypothesis that the search returns, and for the best one also its path."""
        for number, node in enumerate(self.nodes):
            if node.ended and self.tokens(number) == hypothesis.tokens:
                self.nodes[number] = replace(node, found=place)
                for each in self.path(number) if place == 0 else []:
                    self.nodes[each] = replace(self.nodes[each], on_best_path=True)

    def path(self, number: int | None) -> list[int]:
        """Return the numbers of the nodes from the beginning to a node."""
        path: list[int] = []
        while number is not None:
            path.insert(0, number)
            number = self.nodes[number].parent
        return path

    def tokens(self, number: int) -> list[int]:
        """Return the ids of a node's hypothesis."""
        return [self.nodes[each].id for each in self.path(number)]
