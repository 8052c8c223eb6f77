"""A text as the lens reads it: its tokens, the model's arguments, and the token that each position predicts.

    inputs = read(run, "First Citizen:")
    with quiet(inputs.model):
        logits = inputs.model(*inputs.arguments)          # [1 T V]
    inputs.labels[3], inputs.predicted_labels[3]          # a token, and the one its position predicts

Shapes: T tokens, S tokens of an encoder-decoder's source, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int
from torch import Tensor

from clearformer.decoding import Text, evaluating, translate
from clearformer.decoding.arguments import check_list, check_run, check_whole
from clearformer.decoding.text.inputs import ids_of, text_of
from clearformer.decoding.text.samples import Run
from clearformer.decoding.text.translations import translator
from clearformer.errors import TokenizerError, UserError, count, did_you_mean, shown
from clearformer.hooks.readings import once
from clearformer.lens.embeddings import tokens_read
from clearformer.model import Encoder, EncoderDecoder, Transformer
from clearformer.model.arguments import check_length
from clearformer.text import Tokenizer
from clearformer.training.tasks.task import TrainedModel

Subject = Run | Transformer
"""A run, or a bare model, which takes token ids in place of strings."""


_labels: WeakKeyDictionary[Tokenizer, dict[int, str]] = WeakKeyDictionary()
"""A cache of token labels: the same few tokens, or a whole vocabulary, are labelled again and again."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """One text, or the source and output of an encoder-decoder, as a model reads it.

    Attributes:
        model: The model.
        tokenizer: The tokenizer; None if ids were given to a bare model.
        tokens: The tokens whose positions predict: an encoder-decoder's output, otherwise the only text.
        source: The source of an encoder-decoder; None in the other families.
        predicted: For each position the id of the token that it predicts: the next token for a decoder or
            encoder-decoder, the position's own token for an encoder. None where the text does not contain it or the
            model predicts classes.
        class_names: The names of a classifier's classes, or their numbers if the names are unknown.
    """

    model: Transformer = field(repr=False)
    tokenizer: Tokenizer | None = field(repr=False)
    tokens: Int[Tensor, "1 T"]
    source: Int[Tensor, "1 S"] | None
    predicted: list[int | None]
    class_names: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """The arguments of `model(...)`."""
        return (self.tokens,) if self.source is None else (self.source, self.tokens)

    @property
    def key(self) -> tuple[tuple[int, ...], ...]:
        """The ids that the model reads, as a cache key."""
        return tuple(tuple(each[0].tolist()) for each in self.arguments)

    @property
    def labels(self) -> list[str]:
        """The tokens in readable form."""
        return [self.label(token) for token in self.tokens[0].tolist()]

    @property
    def source_labels(self) -> list[str]:
        """The source tokens in readable form; empty if there is no source."""
        return [] if self.source is None else [self.label(token) for token in self.source[0].tolist()]

    @property
    def predicted_labels(self) -> list[str]:
        """The token that each position predicts, in readable form; empty where it is unknown."""
        return ["" if token is None else self.label(token) for token in self.predicted]

    def __len__(self) -> int:
        return self.tokens.shape[1]

    def label(self, token: int) -> str:
        """Return a token in readable form, or `#id` without a tokenizer."""
        if self.tokenizer is None or token >= self.tokenizer.vocab_size:  # a vocabulary may be padded
            return f"#{token}"
        known = _labels.setdefault(self.tokenizer, {})
        if token not in known:
            known[token] = self.tokenizer.token_label(token)
        return known[token]

    def position(self, position: int, of_source: bool = False, name: str = "position") -> int:
        """Return a position of the text (or of the source) counted from 0; negative ones count from the end.

        Raises:
            UserError: the position is not a whole number or is out of range; the message calls the argument `name`.
        """
        check_whole(name, position)
        n = len(self.source_labels) if of_source else len(self)
        if not -n <= position < n:
            raise UserError(
                f"{name} {position} is beyond the {'source' if of_source else 'text'} of {count(n, 'token')}: give "
                f"0 to {n - 1}, or -1 for the last"
            )
        return int(position) % n

    def predicting(self, position: int) -> int:
        """Return the position whose prediction is examined, counted from 0; always 0 for a classifier.

        Raises:
            UserError: there is no such position, or one is given for a classifier.
        """
        if not self.class_names:
            return self.position(position)
        if position != -1:
            raise UserError("position: this model predicts a class of the whole text; omit the position")
        return 0

    def output(self, name: str, given: str | int) -> int:
        """Return the number of an output: a token given by its text or id, or a class given by its name or number.

        Raises:
            UserError: there is no such token or class; the message calls the argument `name`.
        """
        return self._class(name, given) if self.class_names else self._token(name, given)

    def predicting_label(self, position: int) -> str:
        """Return the token of a position that predicts; "" for a class that all positions predict together."""
        is_of_all = bool(self.class_names) and self.model.config.pooling == "mean"
        return "" if is_of_all else self.labels[position]

    def output_label(self, number: int) -> str:
        """Return a predicted token or class in readable form."""
        return self.class_names[number] if self.class_names else self.label(number)

    def output_labels(self, numbers: Sequence[int]) -> list[str]:
        """Return many tokens or classes in readable form."""
        if self.class_names or self.tokenizer is None:
            return [self.output_label(number) for number in numbers]
        known = _labels.setdefault(self.tokenizer, {})
        return [known[number] if number in known else self.label(number) for number in numbers]

    def _token(self, name: str, given: Any) -> int:
        if isinstance(given, str):
            return self._token_of_text(name, given)
        check_whole(name, given)
        n_tokens = self.model.embed.num_embeddings
        if not 0 <= given < n_tokens:
            raise UserError(f"{name}: the id {given} is outside the vocabulary of {n_tokens:,}")
        return int(given)

    def _token_of_text(self, name: str, given: str) -> int:
        tokenizer = self.tokenizer
        if tokenizer is None:
            raise UserError(f"{name}: without a tokenizer give a token id; got {shown(given)}")
        spelled = tokenizer.id_of(given)
        if spelled is not None and "\\" not in given:
            return spelled
        labels = (tokenizer.token_label(token) for token in range(tokenizer.vocab_size))
        if (token := next((i for i, label in enumerate(labels) if label == given), None)) is not None:
            return token  # the label as the lens shows it: "\\n" for a newline
        if spelled is not None:
            return spelled
        try:
            parts = tokenizer.encode(given).tolist()
        except TokenizerError as error:
            raise UserError(f"{name}: {shown(given)} is not a token: {error}") from None
        if len(parts) == 1:
            return parts[0]
        cut = " | ".join(map(tokenizer.token_label, parts[:8])) + (" | ..." if len(parts) > 8 else "")
        raise UserError(
            f"{name}: {shown(given)} is not a token of this tokenizer, which splits it into: {cut or 'nothing'}"
        )

    def _class(self, name: str, given: Any) -> int:
        names = self.class_names
        if isinstance(given, str):
            if given not in names:
                hint = did_you_mean(given, names) or f"; there are {', '.join(names[:12])}"
                raise UserError(f"{name}: there is no class {shown(given)}{hint}")
            return names.index(given)
        check_whole(name, given)
        if not 0 <= given < len(names):
            raise UserError(f"{name}: the classes are numbered 0 to {len(names) - 1}; got {given}")
        return int(given)


Readable = Text | Inputs
"""A text as every view takes it: a string, ids, or the result of `read`."""


@torch.inference_mode(False)  # else gradients could not be computed from what was read
def read(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    masked: Sequence[int] = (),
) -> Inputs:
    """Read a text as a run's model does. A text that was read before is assigned to this model.

    Strings get the special tokens that the model saw in training: <bos> before a decoder's text, [CLS] and [SEP]
    around an encoder's, <eos> after a source, and <bos> before an output. Ids are read exactly as given.

    Args:
        subject: A run, or a bare model.
        text: A string, ids as a list, an array or a tensor [T] or [1 T], or the result of `read`; the source of an
            encoder-decoder.
        output: What an encoder-decoder has written so far; by default its own greedy translation.
        tokenizer: The tokenizer of a bare model.
        masked: Positions at which an encoder reads [MASK] in place of the token.

    Raises:
        TokenizerError: a text holds a character or an id that the tokenizer lacks.
        UserError: a string is given without a tokenizer, a text is empty or longer than the model reads, an output is
            given to a model that writes none or missing for a bare encoder-decoder without a tokenizer, a masked
            position is out of range, an output or masked positions are given for a text that was read before, or that
            was read for a model of another family.
    """
    model, tokenizer = parts_of(subject, tokenizer)
    check_list("masked", masked, "positions")
    if isinstance(text, Inputs):
        return _read_before(text, model, tokenizer, output, masked)
    if not isinstance(model, EncoderDecoder):
        if output is not None:
            raise UserError(
                f"output: only an encoder-decoder writes a second text; model.family is {model.config.family}"
            )
        ids = _checked(model, _ids(model, tokenizer, text))
        return _masked(_with_one_text(subject, model, tokenizer, ids), masked)
    if len(masked):
        raise UserError("masked: only an encoder reads [MASK]; omit it")
    source = _checked(model, _ids(model, tokenizer, text))
    ids, following = _output(model, tokenizer, source, output)
    ids = _checked(model, ids, "output")
    return Inputs(model, tokenizer, row_of(model, ids), row_of(model, source), [*ids[1:], following])


@contextmanager
def quiet(model: Transformer, grad: bool = False) -> Iterator[None]:
    """Put the model in evaluation mode, without gradients unless `grad`; restore both afterwards."""
    with evaluating(model), torch.set_grad_enabled(grad):
        yield


def model_of(subject: Subject) -> Transformer:
    """Return the model of a run, or a bare model itself.

    Raises:
        UserError: the subject is neither.
    """
    return parts_of(subject, None)[0]


def check_model(model: Any) -> None:
    """Raise UserError unless this is a bare model."""
    if not isinstance(model, Transformer):
        raise UserError(f"give a model, such as run.model; got an object of type {type(model).__name__}")


def parts_of(subject: Any, tokenizer: Tokenizer | None) -> tuple[Transformer, Tokenizer | None]:
    """Return a run's model and tokenizer, or a bare model and the given tokenizer.

    Raises:
        UserError: the subject is neither a run nor a model, or the tokenizer is none.
    """
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        raise UserError(f"tokenizer: one of clearformer's, such as run.tokenizer; got {shown(tokenizer)}")
    if isinstance(subject, Transformer):
        return subject, tokenizer
    check_run(subject)
    return subject.model, subject.tokenizer if tokenizer is None else tokenizer


def _read_before(
    text: Inputs, model: Transformer, tokenizer: Tokenizer | None, output: Text | None, masked: Sequence[int]
) -> Inputs:
    for name, given in (("output", output is not None), ("masked", bool(len(masked)))):
        if given:
            raise UserError(f"{name}: the text was read before; give it to lens.read")
    one, other = text.model.config, model.config
    if (one.family, one.n_classes) != (other.family, other.n_classes):
        what = "family" if one.family != other.family else "task"
        raise UserError(f"the text was read for a model of another {what}; read it again for this one")
    for name, row in zip(
        ("text",) if text.source is None else ("text", "output"), text.arguments, strict=True
    ):
        _checked(model, row[0].tolist(), name)
    return replace(text, model=model, tokenizer=tokenizer if text.tokenizer is None else text.tokenizer)


def _ids(model: Transformer, tokenizer: Tokenizer | None, text: Text) -> list[int]:
    plain = plain_text(text)
    if not isinstance(plain, str):
        return plain
    if tokenizer is None:
        raise UserError(
            "a model alone reads ids: give ids, or a run (cf.Run(model, tokenizer)) to read a text"
        )
    return tokens_read(model, tokenizer, plain)


def plain_text(text: Text) -> str | list[int]:
    """Return a text as a string or a list of ids; a batch of one row counts as that row."""
    shape = getattr(text, "shape", ())
    if len(shape) == 2:
        if shape[0] != 1:
            raise UserError(f"a lens reads one text at a time; got ids of {shape[0]} rows")
        text = text[0]  # type: ignore[index, assignment]
    return text_of(text)


def _output(
    model: EncoderDecoder, tokenizer: Tokenizer | None, source: list[int], output: Text | None
) -> tuple[list[int], int | None]:
    """Return the ids that the decoder reads, and the id that its last position predicts, if known."""
    plain = None if output is None else plain_text(output)
    if isinstance(plain, list):
        return plain, None
    if tokenizer is None:
        raise UserError("output: a model alone needs the ids that the encoder-decoder writes")
    _, bos, eos = translator(model, tokenizer)
    if plain is not None:
        return [bos, *tokenizer.before_pair, *ids_of(tokenizer.for_targets, plain)], eos
    key = ("translation", tuple(source), bos, eos)
    [[best]] = once(model, key, lambda: translate(TrainedModel(model, tokenizer), [source], beams=1))
    written = [bos, *best.tokens]
    return written[:-1] or [bos], written[-1]


def _checked(model: Transformer, ids: list[int], name: str = "text") -> list[int]:
    """Return the ids of a text of that name after checking that the model can read them."""
    if not ids:
        raise UserError(f"the {name} is empty: it has no tokens")
    n_tokens = model.embed.num_embeddings
    for token in ids:
        if not 0 <= token < n_tokens:
            raise UserError(f"the id {token} is outside the model's vocabulary of {n_tokens:,}")
    check_length(len(ids), None, model.config.max_seq_len, name)
    return ids


def _with_one_text(subject: Any, model: Transformer, tokenizer: Tokenizer | None, ids: list[int]) -> Inputs:
    n_classes = model.config.n_classes
    if n_classes is not None:
        predicted: list[int | None] = [None] * len(ids)
    else:
        predicted = list(ids) if isinstance(model, Encoder) else [*ids[1:], None]
    names = () if n_classes is None else _class_names(subject, n_classes)
    return Inputs(model, tokenizer, row_of(model, ids), None, predicted, names)


def _class_names(subject: Any, n_classes: int) -> tuple[str, ...]:
    data = getattr(getattr(subject, "config", None), "data", None)
    names = getattr(data, "labels", None)
    return tuple(names) if names and len(names) == n_classes else tuple(map(str, range(n_classes)))


def _masked(inputs: Inputs, masked: Sequence[int]) -> Inputs:
    """Return the inputs with [MASK] at some positions."""
    if not len(masked):
        return inputs
    mask_id = None if inputs.tokenizer is None else inputs.tokenizer.mask_id
    if not isinstance(inputs.model, Encoder) or mask_id is None:
        raise UserError("masked: only an encoder whose tokenizer has [MASK] reads one; omit it")
    tokens = inputs.tokens.clone()
    tokens[0, [inputs.position(each, name="masked") for each in masked]] = mask_id
    return Inputs(inputs.model, inputs.tokenizer, tokens, None, inputs.predicted, inputs.class_names)


def row_of(model: Transformer, ids: list[int]) -> Int[Tensor, "1 T"]:
    """Return ids as a tensor that the model can be called with."""
    return torch.tensor([ids], device=model.embed.weight.device)
