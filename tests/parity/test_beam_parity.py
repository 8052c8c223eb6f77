"""Beam search against transformers' `generate`: tiny models with random weights, made here and never downloaded."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from clearformer.decoding.beam import BeamSearch, HuggingFaceLength, beam_search
from clearformer.decoding.loop import collect, generate_tokens
from clearformer.decoding.samplers import Sampling, random_stream
from clearformer.interop.reading import read_model
from clearformer.model import Decoder, build

V, D, EOS, START, PAD = 31, 22, 3, 1, 0
LENGTHS = (5, 2, 7)  # of the texts that are continued or translated: never all equal
SEQ2SEQ: dict[str, Any] = {
    "vocab_size": V,
    "d_model": D,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "max_position_embeddings": 41,
    "forced_eos_token_id": None,
    "bos_token_id": START,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
    "decoder_start_token_id": START,
}


def gpt2() -> Any:
    sizes: dict[str, Any] = {"vocab_size": V, "n_positions": 41, "n_embd": D, "n_layer": 2, "n_head": 2}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=START, eos_token_id=EOS, pad_token_id=PAD)
    )


def marian() -> Any:
    return transformers.MarianMTModel(transformers.MarianConfig(**SEQ2SEQ))


def bart() -> Any:
    return transformers.BartForConditionalGeneration(transformers.BartConfig(**SEQ2SEQ))


@pytest.fixture(params=[gpt2, marian, bart], ids=lambda make: make.__name__)
def models(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any]:
    """Their model and ours, with the same weights: large ones, so that every text differs from the next.

    <eos> is made likely enough to end some texts early and others late.
    """
    make: Callable[[], Any] = request.param
    torch.manual_seed(4)  # with which texts of many lengths are found
    theirs = make()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif parameter.requires_grad:  # Marian's sines are not for change
                parameter.normal_(0, 0.3)
        if make is gpt2:
            theirs.transformer.wte.weight[EOS] += theirs.transformer.ln_f.bias
        else:
            theirs.final_logits_bias[0, EOS] = 2
    theirs.save_pretrained(tmp_path)
    read = read_model(tmp_path)
    ours = build(read.config)
    ours.load_state_dict(read.weights)
    return theirs.eval(), ours.eval()


def found_by_both(
    models: tuple[Any, Any], n_new: int, **settings: Any
) -> tuple[list[list[tuple[list[int], float]]], list[list[tuple[list[int], float]]]]:
    """For every text, all that was found: tokens and scores, by transformers and by us."""
    theirs, ours = models
    texts = [torch.randint(4, V, (length,)).tolist() for length in LENGTHS]
    left, longest = isinstance(ours, Decoder), max(LENGTHS)
    tokens, real = torch.full((len(texts), longest), PAD), torch.zeros(len(texts), longest, dtype=torch.long)
    for i, text in enumerate(texts):
        places = slice(longest - len(text), None) if left else slice(len(text))
        tokens[i, places], real[i, places] = torch.tensor(text), 1
    beams = settings["num_beams"]
    config = transformers.GenerationConfig(
        max_new_tokens=n_new,
        num_return_sequences=beams,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        bos_token_id=START,
        eos_token_id=EOS,
        pad_token_id=PAD,
        decoder_start_token_id=START,
        **settings,
    )
    out = theirs.generate(tokens, attention_mask=real, generation_config=config)
    new = out.sequences[:, longest if left else 1 :].tolist()
    expected = [
        (up_to_eos(text), score) for text, score in zip(new, out.sequences_scores.tolist(), strict=True)
    ]
    search = BeamSearch(
        beams=beams,
        length_penalty=HuggingFaceLength(alpha=settings["length_penalty"]),
        early_stopping=settings["early_stopping"],
    )
    prompts, sources = (texts, None) if left else ([[START]] * len(texts), texts)
    found = beam_search(ours, prompts, n_new, search, EOS, beams, sources)
    return (
        [expected[i : i + beams] for i in range(0, len(expected), beams)],
        [[(hypothesis.tokens, hypothesis.score) for hypothesis in row] for row in found],
    )


def up_to_eos(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_all_that_is_found_is_theirs(early_stopping: bool | str, models: tuple[Any, Any]) -> None:
    lengths = set()
    for length_penalty, (n_new, beams) in product((-1.0, 0.0, 1.0, 2.0), ((1, 3), (13, 5))):
        theirs, ours = found_by_both(
            models, n_new, num_beams=beams, length_penalty=length_penalty, early_stopping=early_stopping
        )

        for expected, found in zip(theirs, ours, strict=True):
            assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
            assert [score for _, score in found] == pytest.approx([score for _, score in expected], rel=1e-5)
            lengths |= {len(tokens) for tokens, _ in found}
    assert len(lengths) > 3, "texts that all end at the limit would agree whatever ends the others"


def test_one_beam_is_their_greedy_search_and_ours(models: tuple[Any, Any]) -> None:
    theirs, ours = models
    text, n_new = torch.randint(4, V, (1, 7)), 13
    left = isinstance(ours, Decoder)
    prompts, sources = (text.tolist(), None) if left else ([[START]], text.tolist())
    config = transformers.GenerationConfig(
        max_new_tokens=n_new,
        do_sample=False,
        eos_token_id=EOS,
        pad_token_id=PAD,
        decoder_start_token_id=START,
    )

    expected = up_to_eos(theirs.generate(text, generation_config=config)[0, 7 if left else 1 :].tolist())

    greedy = generate_tokens(
        ours, prompts, n_new, Sampling(temperature=0), [random_stream(0, 0)], EOS, sources=sources
    )
    [[found]] = beam_search(ours, prompts, n_new, BeamSearch(beams=1), EOS, sources=sources)
    assert found.tokens == expected
    assert collect(greedy, 1)[0].tokens == expected
