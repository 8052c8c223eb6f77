"""How the tokenizer made one token of a text: its bytes, and the merges or pieces it came from.

found = lens.pieces(run, "the banker", position=1)
found.hex                   "20 62 61 6e 6b"
found.steps                 for BPE: the pieces after each merge, from single bytes to the token
found.neighbours            for WordPiece and Unigram: the pieces that its word was cut into
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clearformer.decoding import Text
from clearformer.errors import UserError
from clearformer.lens.inputs import Inputs, Readable, Subject, read
from clearformer.lens.showing import Shown, Table, letters, number, quoted, visible
from clearformer.text import BPETokenizer, Tokenizer, UnigramTokenizer
from clearformer.text.kinds.bpe import merges_to

BY_KIND = {
    "char": "a token is one character of the text",
    "byte": "a token is one byte of the text in UTF-8",
    "bpe": "a token is merged from bytes, one pair of neighbours at a time; the merge learned earliest comes first",
    "wordpiece": "each piece is the longest token that the rest of the word begins with",
    "unigram": "of all ways to split a word, the most probable: its pieces' log-probabilities have the largest sum",
    "imported": "an imported tokenizer has its own rule; see its tokenizer.json",
}


@dataclass(frozen=True)
class MergeStep:
    """One merge on the way to a token.

    Attributes:
        rank: The merge's number in the order of learning, from 0; None for the bytes at the start.
        pieces: The token's bytes, as joined after this merge.
    """

    rank: int | None
    pieces: list[str]


@dataclass(frozen=True)
class WordPart:
    """A token of the word that contains the chosen one.

    Attributes:
        token: The token in readable form.
        id: Its id.
        score: The logarithm of its probability for Unigram; otherwise None.
        chosen: Whether it is the token in question.
    """

    token: str
    id: int
    score: float | None
    chosen: bool


@dataclass(frozen=True, repr=False, eq=False)
class Pieces(Shown):
    """How the tokenizer made one token.

    Attributes:
        token: The token in readable form.
        position: Its position in the text.
        id: Its id.
        kind: The kind of tokenizer.
        hex: The UTF-8 bytes that it stands for; empty for a special token.
        code_points: The code points of its characters; empty if its bytes are not whole characters.
        steps: For BPE, the merges from its bytes to the token.
        neighbours: The tokens of its word.
        rule: How this kind of tokenizer cuts, in one sentence.
    """

    token: str
    position: int
    id: int
    kind: str
    hex: str
    code_points: list[str]
    steps: list[MergeStep]
    neighbours: list[WordPart]
    rule: str

    def caption(self) -> str:
        return f"{quoted(self.token)} (position {self.position}, id {self.id}): bytes {self.hex or 'none'}"

    def table(self) -> Table:
        if self.steps:
            rows = [
                ["bytes" if step.rank is None else str(step.rank), " | ".join(map(visible, step.pieces))]
                for step in self.steps
            ]
            return Table(["merge", "pieces"], rows, n_left=2)
        rows = [
            [visible(part.token), str(part.id), "" if part.score is None else number(part.score)]
            for part in self.neighbours
        ]
        return Table(["token of the word", "id", "log-probability"], rows)

    def notes(self) -> list[str]:
        return [self.rule]

    def inches(self) -> tuple[float, float]:
        return 5.5, 0.9 + 0.22 * len(self.table().rows)

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        axes.set_axis_off()
        heads, rows, _ = self.table()
        axes.set_title(letters(self.caption()), fontsize=10)
        cells = [[letters(cell) for cell in row] for row in rows]
        if cells:  # none of a special token
            axes.table(cells, colLabels=heads, loc="upper center", cellLoc="left", edges="horizontal")


def pieces(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    position: int = -1,
    tokenizer: Tokenizer | None = None,
    masked: Sequence[int] = (),
) -> Pieces:
    """Return how the tokenizer made one token of a text.

    Args:
        subject: A run, or a bare model.
        text: What to read; see `read` for this and for `output`, `tokenizer` and `masked`.
        output: What an encoder-decoder writes; the token is then taken from it.
        position: The token's position; negative ones count from the end.
        tokenizer: The tokenizer of a bare model.
        masked: Positions at which an encoder reads [MASK].

    Raises:
        UserError: there is no such position, or no tokenizer.
    """
    inputs = read(subject, text, output, tokenizer=tokenizer, masked=masked)
    at = inputs.position(position)
    made_by = inputs.tokenizer
    if made_by is None:
        raise UserError("tokenizer: ids alone have no pieces; give the tokenizer or a run")
    token = int(inputs.tokens[0, at])
    raw = b"" if token >= made_by.vocab_size else made_by.token_bytes(token)
    return Pieces(
        inputs.label(token),
        at,
        token,
        made_by.kind,
        raw.hex(" "),
        code_points(raw),
        steps_to(made_by, token) if raw else [],
        word_around(inputs, made_by, at) if raw else [],
        BY_KIND.get(made_by.kind, ""),
    )


def steps_to(tokenizer: Tokenizer, token: int) -> list[MergeStep]:
    """Return the merges that make a BPE token from its bytes; empty for other kinds."""
    if not isinstance(tokenizer, BPETokenizer):
        return []
    return [
        MergeStep(rank, [tokenizer.token_label(part) for part in parts])
        for rank, parts in merges_to(tokenizer, token)
    ]


def word_around(inputs: Inputs, tokenizer: Tokenizer, position: int) -> list[WordPart]:
    """Return the tokens of the word that contains a token."""
    everything: list[int] = inputs.tokens[0].tolist()
    # A token that only the model has, of a padded vocabulary, is part of no word.
    unknown = [at for at, token in enumerate(everything) if token >= tokenizer.vocab_size]
    after = max((at + 1 for at in unknown if at < position), default=0)
    until = min((at for at in unknown if at > position), default=len(everything))
    ids, place = everything[after:until], position - after
    starts = tokenizer.starts_word(ids).tolist()
    first = next(at for at in range(place, -1, -1) if starts[at])
    behind = next((at for at in range(place + 1, len(ids)) if starts[at]), len(ids))
    scores: list[float] = list(tokenizer.scores) if isinstance(tokenizer, UnigramTokenizer) else []
    return [
        WordPart(
            inputs.label(ids[at]), ids[at], scores[ids[at]] if ids[at] < len(scores) else None, at == place
        )
        for at in range(first, behind)
    ]


def code_points(raw: bytes) -> list[str]:
    """Return the characters' code points, such as U+0041; empty if the bytes are not whole characters."""
    try:
        return [f"U+{ord(character):04X}" for character in raw.decode()]
    except UnicodeDecodeError:
        return []
