"""One text as a model reads it: its tokens, what each position predicts, and one clear line for what cannot be read."""

import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from clearformer import lens
from clearformer.errors import TokenizerError, UserError
from clearformer.lens.learning.prediction import prediction_of
from clearformer.model import build
from clearformer.text import ByteTokenizerSpec, ImportedTokenizer
from clearformer.text.tokenizer import added_token

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


def test_what_is_read_in_inference_mode_is_usable_outside_it(decoder: Run, translator: Run) -> None:
    with torch.inference_mode():
        read = [lens.read(decoder, "bank"), lens.read(translator, "bank")]
    assert not any(tensor.is_inference() for inputs in read for tensor in inputs.arguments)


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


def test_a_label_names_the_token_that_has_it() -> None:
    """A line end's label is two characters, which other vocabularies have as a token of a source text."""
    document = json.loads(ByteTokenizerSpec().train().to_json())
    document["model"]["vocab"]["\\n"] = 256
    document["added_tokens"] = [added_token("\\n", 256) | {"special": False}]
    tokenizer = ImportedTokenizer(document)
    inputs = lens.read(Run(run_of("decoder", "byte", vocab_size=257).model, tokenizer), "a\n")
    assert inputs.output("target", "\\n") == 10
    for token in (256, 10, ord("\\")):
        assert inputs.output("target", inputs.output_label(token)) == token


def test_a_text_read_for_another_task_is_refused(encoder: Run) -> None:
    classifier = Run(run_of("encoder", "wordpiece", n_classes=3).model, encoder.tokenizer)
    for one, other in ((encoder, classifier), (classifier, encoder)):
        with pytest.raises(
            UserError, match="was read for a model of another task; read it again for this one"
        ):
            lens.ledger(one, lens.read(other, "the bank"))


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


VIEWS: dict[str, Any] = {
    "tokens": lens.tokens,
    "ledger": lens.ledger,
    "score": partial(lens.score, layer=0),
    "sources": lens.sources,
    "logit_lens": lens.logit_lens,
    "next_tokens": lens.next_tokens,
    "next_draw": lens.next_draw,
    "attention": lens.attention,
    "attention_overview": lens.attention_overview,
    "head_pattern": lens.head_pattern,
    "block": lens.block,
    "pieces": lens.pieces,
    "matrix": partial(lens.matrix, name="blocks.0.attn.hook_q"),
    "with_edits": partial(lens.with_edits, held_out=0, max_new_tokens=3),
    "continuations": partial(lens.continuations, max_new_tokens=3),
    "beam_tree": partial(lens.beam_tree, max_new_tokens=3),
    "alignment": lens.alignment,
}
OF_DECODERS = {name: VIEWS[name] for name in VIEWS if name not in ("alignment", "sources")}
OF_TRANSLATORS = {name: VIEWS[name] for name in VIEWS if name not in ("sources", "matrix")}


@pytest.mark.parametrize(
    ("family", "view"),
    [("decoder", name) for name in OF_DECODERS] + [("encoder-decoder", name) for name in OF_TRANSLATORS],
)
def test_a_view_takes_a_text_that_was_read_before(
    family: str, view: str, decoder: Run, translator: Run
) -> None:
    run, output = (decoder, None) if family == "decoder" else (translator, "vu")
    given = VIEWS[view](run, "bank", output=output)
    read = VIEWS[view](run, lens.read(run, "bank", output))
    assert json.dumps(given.to_dict()) == json.dumps(read.to_dict())


def test_a_number_of_a_text_that_was_read_before_has_code_that_reads_its_ids(decoder: Run) -> None:
    given, read = (lens.cell(decoder, text) for text in ("bank", lens.read(decoder, "bank")))
    assert read.value == given.value
    assert f"cf.lens.run_with_cache(run, {lens.read(decoder, 'bank').tokens[0].tolist()})" in read.snippet


def test_two_runs_read_a_pair_that_was_read_before(translator: Run) -> None:
    pair, other = lens.read(translator, "bank", "vu"), run_of("encoder-decoder", "char")
    given = lens.beside(lens.ledger, translator, other, "bank", output="vu", target="v")
    assert lens.beside(lens.ledger, translator, other, pair, target="v").to_dict() == given.to_dict()


def test_a_text_that_was_read_for_another_model_is_checked(decoder: Run, encoder: Run) -> None:
    with pytest.raises(UserError, match="read for a model of another family; read it again"):
        lens.ledger(encoder, lens.read(decoder, "bank"))
    small = build(decoder.model.config.replace(max_seq_len=3))
    with pytest.raises(UserError, match="the text is 4 tokens long, but the model reads at most 3"):
        lens.ledger(small, lens.read(decoder, "bank"))


MANY = 10**29
WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    (
        "integrated_gradients",
        ("bank",),
        {"steps": MANY},
        "steps: from 1 to 1,000 points on the path; got 1000",
    ),
    ("loss_changes_since", ("bank",), {"since": [0]}, "since: a whole number; got [0]"),
    ("loss_changes_since", ("bank",), {"until": [0]}, "until: a whole number; got [0]"),
    ("loss_changes_since", ("bank",), {"opened": 5}, "opened: must be of type Mapping; got 5"),
    ("loss_changes_since", ("bank",), {"on_step": 5}, "on_step: a function; got 5"),
    ("loss_changes", (), {"on_step": 5}, "on_step: a function; got 5"),
    ("continuations", ("bank",), {"on_part": 5}, "on_part: a function; got 5"),
    ("beam_tree", ("bank",), {"on_part": 5}, "on_part: a function; got 5"),
    ("with_edits", ("bank", []), {"on_part": 5}, "on_part: a function; got 5"),
    ("tracin", ("bank",), {"on_step": 5}, "on_step: a function; got 5"),
    ("corpus", (), {"on_step": 5}, "on_step: a function; got 5"),
    ("events", (), {"on_step": 5}, "on_step: a function; got 5"),
    ("events", (), {"threshold": [0]}, "threshold: above 0 and up to 1; got [0]"),
    ("events", (), {"seed": MANY}, "seed: a whole number of at most 64 bits; got 1000"),
    ("head_scores", (), {"seed": MANY}, "seed: a whole number of at most 64 bits; got 1000"),
    ("tune", ("bank",), {"seed": MANY}, "seed: a whole number of at most 64 bits; got 1000"),
    ("logit_lens", ("bank",), {"tuned": 5}, "tuned: a lens made by lens.tune; got 5"),
    ("word_similarity", ("bank", (1, 2)), {}, "contexts: each is a string; got 1"),
    ("weight_gradients", ("bank",), {"names": []}, "names: give at least one matrix or pattern"),
    ("patch_paths", ("bank", "bank", "blocks.0.hook_mlp_out", 5), {}, "a Site(name, head, position); got 5"),
    ("match_heads", (), {"texts": "bank", "by": [0]}, "by: pattern or output; got [0]"),
]


@pytest.mark.parametrize(("name", "arguments", "given", "message"), WRONG)
def test_an_argument_of_a_wrong_kind_is_named(
    name: str, arguments: tuple[Any, ...], given: dict[str, Any], message: str, decoder: Run
) -> None:
    run = SimpleNamespace(model=decoder.model, tokenizer=decoder.tokenizer, folder=None, step=1)
    if name in ("loss_changes", "match_heads"):
        arguments = (run, *arguments)
    if name == "loss_changes":
        arguments = (*arguments, "bank")
    with pytest.raises(UserError) as caught:
        getattr(lens, name)(run, *arguments, **given)
    assert message in str(caught.value)


def test_a_part_of_another_kind_is_named_before_a_model_is_copied(decoder: Run) -> None:
    model = decoder.model
    cases: list[tuple[str, tuple[Any, ...], str]] = [
        ("edited_copy", (model, 5), "changes: must be of type Mapping; got 5"),
        ("edited_copy", (model, {"embed.weight": 5}), "embed.weight: must be of type Tensor; got 5"),
        ("copy_without_heads", (model, 5), "5 is not a head of this model"),
        ("hooks_of", (5,), "edits: must be of type Edit; got 5"),
        ("hooks_of", ([5],), "edits: must be of type Edit; got 5"),
        ("next_token_loss", (5,), "tokens: must be a tensor [B T] of ids"),
        ("beside", (5, decoder, decoder, "bank"), "function: a function; got 5"),
        (
            "gradients_at",
            (model, (), lens.next_token_loss(torch.zeros(1, 2).long()), []),
            "names: give at least",
        ),
    ]
    for name, arguments, message in cases:
        with pytest.raises(UserError) as caught:
            getattr(lens, name)(*arguments)
        assert message in str(caught.value)
