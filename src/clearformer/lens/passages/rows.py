"""A run's data by rows, each as the model is measured on it: a stretch of text, a pair or a labelled text.

    decoder            rows of C / 2 tokens, each predicted from the C / 2 or more before it, as `evaluate` reads them
    encoder            stretches between [CLS] and [SEP]; in seven passes, each masks every seventh token
    encoder-decoder    pairs: each token of the target from those before it and the source
    classes            texts: the class of each

Shapes: T positions, S source positions, W predictions of a row, V vocabulary or classes; C is the length of the model's
context.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from clearformer.data import Dataset, LabelledData, PairDataset, Prepared, TextData
from clearformer.data.labelled.batches import fitted_lengths
from clearformer.data.labelled.preparing import LabelledDataset, LabelledSplit
from clearformer.data.locating.places import Example
from clearformer.data.locating.windows import find_windows
from clearformer.errors import TokenizerError, UserError, shown
from clearformer.evaluation.language_model import default_stride
from clearformer.lens.inputs import read
from clearformer.model import Encoder, Transformer
from clearformer.runs.folders import RunLike
from clearformer.text import Tokenizer

MASKED_EVERY = 7  # close to BERT's 15 % masked at once


@dataclass(frozen=True, eq=False)
class Row:
    """The model's input for one row of predictions.

    Attributes:
        ids: [T] the text whose positions predict.
        source: [S] the source of an encoder-decoder; None in the other families.
        targets: [W] the tokens or the class to predict.
        position: The position in `ids` of the first prediction; the others follow one by one.
        text: `ids` as text, or the source of a pair.
        output: The target of a pair.
    """

    ids: Int[np.ndarray, " T"]
    source: Int[np.ndarray, " S"] | None
    targets: Int[np.ndarray, " W"]
    position: int
    text: str
    output: str | None = None


class Rows(ABC):
    """The rows of one split, in order; `len()` is their number.

    Attributes:
        unit: The name of a row for people.
        are_whole: Whether a row is a passage by itself, not a stretch of a running text.
    """

    unit: str
    are_whole: bool = True

    def __init__(self, run: RunLike, prepared: Prepared, split: str) -> None:
        self.run, self.prepared, self.name = run, prepared, split
        self.tokenizer: Tokenizer = prepared.tokenizer

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def row(self, index: int) -> Row:
        """Return one row."""

    @abstractmethod
    def find(self, stretches: Sequence[tuple[int, int, int]]) -> list[Example]:
        """Return the text of some stretches, and where it is in the source files.

        A stretch is a row, its first column, and the column after its last.

        Raises:
            DataError: the source has changed.
        """

    def logits(self, row: Row) -> Float[Tensor, "W V"]:
        """Return the logits of a row's predictions."""
        model = self.run.model
        output = model(*(_batch(model, ids) for ids in (row.source, row.ids) if ids is not None))
        return output if output.dim() == 2 else output[0, row.position : row.position + len(row.targets)]

    def masked_with(self, row: Row, column: int) -> list[int]:
        """Return the positions that are masked when a column is predicted."""
        return []

    def is_read_alike(self, row: Row) -> bool:
        """Whether the lens, given the row's text, reads exactly these ids."""
        try:
            inputs = read(self.run, row.text, row.output)
        except (TokenizerError, UserError):
            return False
        return inputs.tokens[0].tolist() == row.ids.tolist()


class TextRows(Rows):
    """Rows of a running text, as `evaluate_split` measures a decoder with its default stride."""

    unit = "row"
    are_whole = False

    def __init__(self, run: RunLike, prepared: Dataset, split: str) -> None:
        super().__init__(run, prepared, split)
        self.tokens, self.context = prepared.splits[split], run.model.config.max_seq_len
        self.width = default_stride(self.context)
        # Added to the first row, so that the others are those of `evaluate`.
        self.more = max(0, self.context - 2 * self.width)

    def __len__(self) -> int:
        n_later = max(0, len(self.tokens) - 1 - self.width - self.more)
        return 1 + ceil(n_later / self.width)

    def row(self, index: int) -> Row:
        first, last = self._predicted(index)
        start = max(0, last - 1 - self.context)
        last = min(last, len(self.tokens))
        ids = self.tokens.read(start, last)
        return Row(ids[:-1], None, ids[first - start :], first - 1 - start, self.tokenizer.decode(ids[:-1]))

    def _predicted(self, index: int) -> tuple[int, int]:
        """Return the first token that a row predicts, and the one after its last, which may be beyond the text."""
        last = 1 + (index + 1) * self.width + self.more
        return (last - self.width if index else 1), last

    def find(self, stretches: Sequence[tuple[int, int, int]]) -> list[Example]:
        firsts = [self._predicted(row)[0] for row, _, _ in stretches]
        windows = [
            (first + start, first + stop) for first, (_, start, stop) in zip(firsts, stretches, strict=True)
        ]
        return _windows(self.run, self.prepared, windows, self.name)


class MaskedRows(Rows):
    """Rows that an encoder predicts: every plain token, with every seventh masked in each pass."""

    def __init__(self, run: RunLike, prepared: Dataset | LabelledDataset, split: str) -> None:
        super().__init__(run, prepared, split)
        special = [self.tokenizer.id_of(name) for name in self.tokenizer.specials]
        self.special = [token for token in special if token is not None]
        assert self.tokenizer.mask_id is not None
        self.mask_id = self.tokenizer.mask_id

    def logits(self, row: Row) -> Float[Tensor, "W V"]:
        n, width, model = min(MASKED_EVERY, len(row.targets)), len(row.targets), self.run.model
        tokens = _batch(model, row.ids).repeat(n, 1)  # [B T]
        for turn in range(n):
            tokens[turn, self.masked_with(row, turn)] = self.mask_id
        output = model(tokens)[:, row.position : row.position + width]
        columns = torch.arange(width, device=output.device)
        return output[columns % MASKED_EVERY, columns]

    def masked_with(self, row: Row, column: int) -> list[int]:
        columns = range(column % MASKED_EVERY, len(row.targets), MASKED_EVERY)
        return [row.position + each for each in columns if row.targets[each] not in self.special]


class MaskedTextRows(MaskedRows):
    """Stretches of a running text, each between [CLS] and [SEP]."""

    unit = "row"
    are_whole = False

    def __init__(self, run: RunLike, prepared: Dataset, split: str) -> None:
        super().__init__(run, prepared, split)
        self.tokens, self.width = prepared.splits[split], run.model.config.max_seq_len - 2

    def __len__(self) -> int:
        return ceil(len(self.tokens) / self.width)

    def row(self, index: int) -> Row:
        start = index * self.width
        ids = self.tokens.read(start, min(start + self.width, len(self.tokens)))
        return Row(self.tokenizer.wrap(ids).astype(np.int64), None, ids, 1, self.tokenizer.decode(ids))

    def find(self, stretches: Sequence[tuple[int, int, int]]) -> list[Example]:
        windows = [(row * self.width + start, row * self.width + stop) for row, start, stop in stretches]
        return _windows(self.run, self.prepared, windows, self.name)


class MaskedLabelledRows(MaskedRows):
    """Labelled texts, whose labels are ignored."""

    unit = "text"

    def __init__(self, run: RunLike, prepared: LabelledDataset, split: str) -> None:
        super().__init__(run, prepared, split)
        self.texts = prepared.splits[split]

    def __len__(self) -> int:
        return len(self.texts)

    def row(self, index: int) -> Row:
        ids = fitted(self.run, self.texts, index)
        return Row(ids, None, ids[1:-1], 1, text_of(self.run, self.texts, index, ids))

    def find(self, stretches: Sequence[tuple[int, int, int]]) -> list[Example]:
        return self.texts.find([row for row, _, _ in stretches])


class LabelledRows(Rows):
    """Labelled texts, whose class a model predicts."""

    unit = "text"

    def __init__(self, run: RunLike, prepared: LabelledDataset, split: str) -> None:
        super().__init__(run, prepared, split)
        self.texts = prepared.splits[split]

    def __len__(self) -> int:
        return len(self.texts)

    def row(self, index: int) -> Row:
        ids = fitted(self.run, self.texts, index)
        text = text_of(self.run, self.texts, index, ids)
        return Row(ids, None, self.texts.label_ids[[index]], -1, text)

    def find(self, stretches: Sequence[tuple[int, int, int]]) -> list[Example]:
        assert isinstance(self.prepared, LabelledDataset)
        labels, numbers = self.prepared.labels, [row for row, _, _ in stretches]
        return [
            found._replace(text=f"{labels[self.texts.label_ids[number]]}: {found.text}")
            for number, found in zip(numbers, self.texts.find(numbers), strict=True)
        ]


class PairRows(Rows):
    """Pairs: each token of the target, including <eos>, from those before it and the source."""

    unit = "pair"

    def __init__(self, run: RunLike, prepared: PairDataset, split: str) -> None:
        super().__init__(run, prepared, split)
        self.pairs = prepared.splits[split]

    def __len__(self) -> int:
        return len(self.pairs)

    def row(self, index: int) -> Row:
        before, behind = self.tokenizer.before_pair, [self.tokenizer.eos_id]
        source = np.array([*before, *self.pairs.source(index).tolist(), *behind])
        target = self.pairs.target(index)
        text, output = self.pairs.source_texts[index], self.pairs.target_texts[index]
        target = [*before, *target]
        ids, targets = np.array([self.tokenizer.bos_id, *target]), np.array([*target, *behind])
        return Row(ids, source, targets, 0, text, output)

    def find(self, stretches: Sequence[tuple[int, int, int]]) -> list[Example]:
        assert isinstance(self.prepared, PairDataset)
        return self.prepared.find([row for row, _, _ in stretches], self.name)


def rows_of(run: RunLike, prepared: Prepared, split: str) -> Rows:
    """Return the rows of a split of a run's data.

    Raises:
        UserError: there is no such split.
    """
    if not isinstance(split, str) or split not in prepared.splits:
        raise UserError(f"split: the data have no {shown(split)}; choose {', '.join(prepared.splits)}")
    encodes, tells_class = isinstance(run.model, Encoder), run.model.config.n_classes is not None
    match prepared:
        case PairDataset():
            return PairRows(run, prepared, split)
        case LabelledDataset() if tells_class:
            return LabelledRows(run, prepared, split)
        case LabelledDataset():
            return MaskedLabelledRows(run, prepared, split)
        case Dataset() if encodes:
            return MaskedTextRows(run, prepared, split)
    return TextRows(run, prepared, split)


def fitted(run: RunLike, texts: LabelledSplit, index: int) -> Int[np.ndarray, " T"]:
    """Return a labelled text's tokens as training reads them; one that is too long is cut and ends with [SEP].

    Raises:
        DataError: it is too long, and may not be cut.
    """
    data, limit = run.config.data, run.model.config.max_seq_len
    assert isinstance(data, LabelledData)
    ids = texts.row(index)
    if len(ids) <= limit:
        return ids
    fitted_lengths(texts, limit, data.too_long)
    return np.append(ids[: limit - 1], ids[-1])


def text_of(run: RunLike, texts: LabelledSplit, index: int, ids: Int[np.ndarray, " T"]) -> str:
    """Return a labelled text, as much of it as its fitted tokens are of."""
    is_whole = len(ids) == texts.lengths[index]
    return texts.texts[index] if is_whole else run.tokenizer.decode(ids)


def losses_of(rows: Rows, row: Row) -> tuple[Float[np.ndarray, " W"], Int[np.ndarray, " W"]]:
    """Return -log p of each target in nats, and the likeliest output in its place.

    NaN where the target is a special token, which an encoder does not predict.
    """
    logits = rows.logits(row).float()
    targets = torch.from_numpy(row.targets.astype(np.int64)).to(logits.device)
    losses = F.cross_entropy(logits, targets, reduction="none").cpu().numpy()
    if isinstance(rows, MaskedRows):
        losses[np.isin(row.targets, rows.special)] = np.nan
    return losses, logits.argmax(-1).cpu().numpy()


def _windows(
    run: RunLike, prepared: Prepared, windows: Sequence[tuple[int, int]], split: str
) -> list[Example]:
    assert isinstance(prepared, Dataset)
    assert isinstance(run.config.data, TextData)
    return find_windows(run.config.data, prepared, windows, split)


def _batch(model: Transformer, ids: Int[np.ndarray, " T"]) -> Int[Tensor, "1 T"]:
    return torch.from_numpy(ids.astype(np.int64)).unsqueeze(0).to(model.embed.weight.device)
