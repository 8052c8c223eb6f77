"""The selection: the text, place and tokens that all views of the page share."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from clearformer.config import Spec, resolve
from clearformer.errors import UserError, shown

MOST_CHARACTERS = 200_000  # of a text


class Selection(Spec):
    """One selection; the page's address contains all of it.

    Attributes:
        run: The name of a run that the page was opened with.
        checkpoint: `latest`, `best` or a step.
        versus: A second run, from whose numbers those of `run` are subtracted; may be the same run; empty for none.
        versus_checkpoint: The second run's checkpoint; if empty, its latest.
        text: The text that the model reads.
        output: The output of an encoder-decoder; by default its own translation.
        masked: Positions at which an encoder reads [MASK].
        position: The position whose prediction is shown; negative ones count from the end.
        layer: A block, from 0.
        head: A head, from 0.
        part: Which attention: a block's own, or an encoder-decoder's `cross_attn`.
        key: The key position, in views of an attention score.
        target: The token whose logit or rank is shown; by default the likeliest.
        foil: A token whose logit is subtracted from the target's.
        temperature: The number that logits are divided by before sampling.
        top_k: Sample from this many of the likeliest tokens; 0 is from all.
        top_p: Sample from the likeliest tokens that together have this probability; 1 is from all.
        min_p: Sample from tokens at least this many times as likely as the likeliest; 0 is from all.
        repetition_penalty: Makes tokens of the text so far less likely; 1 changes nothing.
        seed: The seed of sampling.
        method: The method that attributes a class's logit to tokens.
        word: The word whose vectors are compared across texts; if empty, the most frequent.
        contexts: Texts that contain the word, one per line; if empty, the text itself.
        matrix: The matrix of the inspected number, as `lens.block` names it; empty for none.
        row: The row of that number.
        column: Its column.
        drawn: The ids of tokens drawn after the text.
        new_tokens: The length of continuations and searches.
        num: The number of continuations.
        beams: The number of beams of a search.
        edits: Parts of the model that are switched off or changed; see `lens.with_edits`.
        donor: The text that patches are taken from.
        before: The earlier of two marked steps between which loss changes are explained; -1 for none.
        after: The later one.
        split: The split of the run's data whose losses are shown.
        first_row: The first row to read.
        n_rows: The number of rows to read.
        sample: The number of training windows to score.
    """

    run: str = ""
    checkpoint: str = Field("latest", max_length=200)
    versus: str = ""
    versus_checkpoint: str = Field("", max_length=200)
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
    """Return the selection that the page sent.

    Raises:
        UserError: it is no object, or a field is unknown or out of range.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"selection: an object of {', '.join(Selection.model_fields)}; got {shown(values)}")
    return resolve(Selection, values)
