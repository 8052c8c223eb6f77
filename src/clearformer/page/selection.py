"""The selection: the one text, place and pair of tokens that every view of the page looks at."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from clearformer.config import Spec, resolve
from clearformer.errors import UserError, shown

MOST_CHARACTERS = 200_000  # of a text


class Selection(Spec):
    """One selection; all of it lives in the page's address.

    Attributes:
        run: The run's name, as the page was opened with it.
        checkpoint: `latest`, `best` or a step.
        versus: A run beside it, from which it is taken away; it may be the same one, and none where empty.
        versus_checkpoint: Of that run; its latest, where empty.
        text: What the model reads.
        output: What an encoder-decoder writes; its own translation, where not given.
        masked: Positions at which an encoder reads [MASK].
        position: Whose prediction is looked at; negative ones count from the end.
        layer: A block, from 0.
        head: A head, from 0.
        part: Which attention: a block's own, or an encoder-decoder's `cross_attn`.
        key: The position that is read.
        target: The token whose logit or rank is told; the likeliest, where not given.
        foil: Another, whose logit is taken away.
        temperature: What logits are divided by before tokens are drawn.
        top_k: Draw from this many of the likeliest tokens; 0 is from all.
        top_p: Draw from the likeliest tokens that together hold this probability; 1 is from all.
        min_p: Draw from tokens at least this many times as likely as the likeliest; 0 is from all.
        repetition_penalty: Makes tokens of the text so far less likely; 1 leaves them.
        seed: Of the draws.
        method: By which the contribution of each token to a class is found.
        word: Whose vectors across texts are looked at; the most frequent, where empty.
        contexts: The texts that it stands in, one on a line; the text itself, where empty.
        matrix: The matrix whose number is inspected, as `lens.block` names it; none, where empty.
        row: Of that number, in its matrix.
        column: Likewise.
        drawn: The ids that were drawn behind the text.
        new_tokens: The length of continuations and searches.
        num: Continuations.
        beams: Of a search.
        edits: What is switched off or changed in the model; see `lens.with_edits`.
        donor: The text that patches are taken from.
        before: A step that is marked, the earlier of two between which the loss fell; -1 where none is.
        after: The later one.
        split: Of the run's data, whose losses are looked at.
        first_row: The first of them that is read.
        n_rows: How many are read.
        sample: How many training windows are scored.
    """

    run: str = ""
    checkpoint: str = "latest"
    versus: str = ""
    versus_checkpoint: str = ""
    text: str = Field("", max_length=MOST_CHARACTERS)
    output: str | None = Field(None, max_length=MOST_CHARACTERS)
    masked: tuple[int, ...] = Field((), max_length=512)
    position: int = -1
    layer: int = 0
    head: int = 0
    part: str = "attn"
    key: int = 0
    target: str | None = Field(None, max_length=200)
    foil: str | None = Field(None, max_length=200)
    temperature: float = Field(1.0, gt=0, le=100)
    top_k: int = Field(0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    seed: int = Field(1, ge=0)
    method: str = Field("integrated gradients", max_length=40)
    word: str = Field("", max_length=200)
    contexts: str = Field("", max_length=20_000)
    matrix: str = Field("", max_length=200)
    row: int = 0
    column: int = 0
    drawn: tuple[int, ...] = Field((), max_length=4096)
    new_tokens: int = Field(12, ge=1, le=256)
    num: int = Field(3, ge=1, le=16)
    beams: int = Field(3, ge=1, le=12)
    edits: tuple[Annotated[str, Field(max_length=200)], ...] = Field((), max_length=512)
    donor: str | None = Field(None, max_length=MOST_CHARACTERS)
    before: int = Field(-1, ge=-1)
    after: int = Field(-1, ge=-1)
    split: str = Field("val", max_length=20)
    first_row: int = Field(0, ge=0)
    n_rows: int = Field(48, ge=1, le=512)
    sample: int = Field(64, ge=1, le=4096)


def read_selection(values: Any) -> Selection:
    """The selection that the page sent.

    Raises:
        UserError: it is no object, or a field is unknown or out of range.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"selection: an object of {', '.join(Selection.model_fields)}; got {shown(values)}")
    return resolve(Selection, values)
