"""One text as a model reads it: its tokens, what each position predicts, and one clear line for what cannot be read."""

from typing import Any

import numpy as np
import pytest
import torch

from clearformer import lens
from clearformer.errors import TokenizerError, UserError
from clearformer.lens.learning.prediction import prediction_of

from .test_embeddings import Run, run_of


@pytest.fixture(scope="module")
def decoder() -> Run:
    return run_of("decoder", "char")


@pytest.fixture(scope="module")
def encoder() -> Run:
    return run_of("encoder", "wordpiece")


@pytest.fixture(scope="module")
def translator() -> Run:
    return run_of("encoder-decoder", "char")


def test_a_decoders_positions_predict_the_next_token(decoder: Run) -> None:
    inputs = lens.read(decoder, "bank")
    assert inputs.labels == list("bank")
    assert inputs.predicted_labels == ["a", "n", "k", ""]
    assert inputs.predicted[-1] is None
    assert len(inputs.arguments) == 1
    assert inputs.source_labels == []


def test_an_encoders_predict_the_token_that_stands_there_masked_or_not(encoder: Run) -> None:
    plain, masked = (lens.read(encoder, "the bank", masked=places) for places in ((), (1, -2)))
    assert plain.labels[0] == "[CLS]"
    assert plain.labels[-1] == "[SEP]"
    assert plain.predicted_labels == plain.labels
    assert masked.predicted == plain.predicted
    assert [i for i, label in enumerate(masked.labels) if label == "[MASK]"] == [1, len(plain) - 2]


def test_an_encoder_decoders_predict_its_output_and_at_last_its_end(translator: Run) -> None:
    inputs = lens.read(translator, "bank", "vu")
    assert inputs.source_labels == [*"bank", "<eos>"]
    assert inputs.labels == ["<bos>", "v", "u"]
    assert inputs.predicted_labels == ["v", "u", "<eos>"]
    assert [each.shape[1] for each in inputs.arguments] == [5, 3]


def test_without_an_output_it_is_the_models_own_translation(translator: Run) -> None:
    inputs = lens.read(translator, "bank")
    with lens.quiet(inputs.model):
        likeliest = inputs.model(*inputs.arguments)[0].argmax(-1).tolist()
    assert inputs.predicted == likeliest
    assert inputs.labels[0] == "<bos>"


def test_ids_are_read_as_they_are(decoder: Run, translator: Run) -> None:
    for ids in ([3, 1, 4], np.array([3, 1, 4]), torch.tensor([3, 1, 4]), torch.tensor([[3, 1, 4]])):
        assert lens.read(decoder, ids).tokens.tolist() == [[3, 1, 4]]
    inputs = lens.read(translator.model, [3, 1], [5, 6])
    assert inputs.source is not None
    assert (inputs.source.tolist(), inputs.tokens.tolist(), inputs.predicted) == (
        [[3, 1]],
        [[5, 6]],
        [6, None],
    )
    assert inputs.labels == ["#5", "#6"]
    assert lens.read(translator.model, "ba", "vu", tokenizer=translator.tokenizer).labels == [
        "<bos>",
        "v",
        "u",
    ]


def test_quiet_is_undone(decoder: Run) -> None:
    decoder.model.train()
    with lens.quiet(decoder.model):
        assert not decoder.model.training
        assert not torch.is_grad_enabled()
        with lens.quiet(decoder.model, grad=True):
            assert torch.is_grad_enabled()
        assert not torch.is_grad_enabled()
    assert decoder.model.training
    with pytest.raises(ZeroDivisionError), lens.quiet(decoder.model):
        raise ZeroDivisionError
    assert decoder.model.training
    assert torch.is_grad_enabled()


def test_a_token_is_named_by_its_text_its_label_or_its_id(decoder: Run) -> None:
    inputs, tokenizer = lens.read(decoder, "bank"), decoder.tokenizer
    known = tokenizer.id_of("k")
    assert known is not None
    assert inputs.output("target", "k") == known == inputs.output("target", known)
    spaced = lens.read(run_of("decoder", "byte"), "a\nb")
    assert spaced.output("target", "\\n") == spaced.output("target", "\n") == 10


def bad_inputs(decoder: Run, encoder: Run, translator: Run) -> list[tuple[Any, str]]:
    inputs = lens.read(decoder, "bank")
    return [
        (
            lambda: inputs.position(4),
            "position 4 is beyond the text of 4 tokens: give 0 to 3, or -1 for the last",
        ),
        (lambda: inputs.position(-5), "position -5 is beyond the text of 4 tokens"),
        (lambda: inputs.position(1.5), "position: a whole number; got 1.5"),  # type: ignore[arg-type]
        (
            lambda: inputs.output("foil", "bank"),
            "foil: 'bank' is not a token of this tokenizer, which splits it into: b | a | n",
        ),
        (lambda: inputs.output("target", "€"), "target: '€' is not a token"),
        (lambda: inputs.output("target", 999), "target: the id 999 is outside the vocabulary of"),
        (lambda: lens.read(decoder.model, "bank"), "a model alone reads ids: give ids, or a run"),
        (lambda: lens.read(decoder, ""), "the text is empty"),
        (
            lambda: lens.read(decoder, "bank", "vu"),
            "output: only an encoder-decoder writes a second text; model.family is decoder",
        ),
        (lambda: lens.read(decoder, [1, 999]), "the id 999 is outside the model's vocabulary"),
        (
            lambda: lens.read(decoder, torch.zeros(2, 3, dtype=torch.long)),
            "one text at a time; got ids of 2 rows",
        ),
        (lambda: lens.read(decoder, "bank" * 30), "120 tokens long, but the model reads at most 101"),
        (
            lambda: lens.read(decoder, "bank", masked=[0]),
            "masked: only an encoder whose tokenizer has [MASK]",
        ),
        (lambda: lens.read(translator, "bank", masked=[0]), "masked: only an encoder reads [MASK]"),
        (
            lambda: lens.read(encoder, "bank", masked=1),  # type: ignore[arg-type]
            "masked: a list of positions, such as [1]; got 1",
        ),
        (lambda: lens.read(encoder, "the bank", masked=[99]), "masked 99 is beyond the text"),
        (lambda: lens.read(translator, "bank", []), "the output is empty"),
        (
            lambda: lens.read(translator, "bank", [1] * 200),
            "the output is 200 tokens long, but the model reads",
        ),
        (lambda: lens.read(translator.model, [1, 2]), "output: a model alone needs the ids"),
        (
            lambda: lens.read(decoder, "bank", tokenizer="x"),  # type: ignore[arg-type]
            "tokenizer: one of clearformer's, such as run.tokenizer; got 'x'",
        ),
        (lambda: lens.read("NAME", "bank"), "give a run, such as cf.load('NAME')"),  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize("case", range(21))
def test_what_cannot_be_read_is_one_clear_line(
    case: int, decoder: Run, encoder: Run, translator: Run
) -> None:
    call, message = bad_inputs(decoder, encoder, translator)[case]
    with pytest.raises((UserError, TokenizerError)) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_output_of_a_text_that_was_read_before_is_not_ignored(encoder: Run, translator: Run) -> None:
    pair, text, change = (
        lens.read(translator, "bank", "vu"),
        lens.read(encoder, "the bank"),
        lens.zero("*embed"),
    )
    asked: list[Any] = [
        lambda: lens.intervene(translator, pair, change, output="uv"),
        lambda: lens.gradient_x_input(translator, pair, output="uv"),
        lambda: lens.weight_gradients(translator, pair, output="uv"),
        lambda: lens.patch_every(translator, pair, "knab", output="uv"),
        lambda: lens.loss_changes(translator, translator, pair, output="uv"),
        lambda: lens.differences(translator, translator, pair, "uv"),
        lambda: prediction_of(translator, pair, "uv"),
    ]
    for ask in asked:
        with pytest.raises(UserError, match=r"output: the text was read before; give it to lens\.read"):
            ask()
    with pytest.raises(UserError, match=r"masked: the text was read before; give it to lens\.read"):
        prediction_of(encoder, text, masked=[1])
