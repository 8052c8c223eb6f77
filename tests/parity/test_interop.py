"""Our models against transformers': tiny, with random weights, made here, saved by them and read back as ours.

What is compared is what a user has: a folder that transformers wrote, imported, and a folder that was exported,
loaded by transformers.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers.models.bart import modeling_bart
from transformers.models.bert import modeling_bert
from transformers.models.bloom import modeling_bloom
from transformers.models.gpt2 import modeling_gpt2
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama
from transformers.models.marian import modeling_marian
from transformers.models.mistral import modeling_mistral
from transformers.models.nanochat import modeling_nanochat
from transformers.models.pegasus import modeling_pegasus
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.t5 import modeling_t5

from clearformer.decoding.beam import BeamSearch, HuggingFaceLength, beam_search
from clearformer.interop.mapping.matching import match_architecture
from clearformer.interop.reading import ForeignModel, read_model
from clearformer.interop.writing import SpecialIds, write_model
from clearformer.model import build

from ..pairwise import crossed

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

B, S, T, V, N, M, D_FF, MAX_T = 3, 19, 13, 53, 2, 3, 37, 23
PAD, EOS, START = 5, 7, 11
IDS: dict[str, Any] = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": None}


# --- each architecture, tiny ------------------------------------------------------------------------------


def gpt2(**settings: Any) -> Any:
    sizes = {"n_embd": 21, "n_layer": N, "n_head": 3, "n_positions": MAX_T, "n_inner": D_FF}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=V, **IDS, **sizes, **settings))


def llama_like(model: Any, **settings: Any) -> Any:
    sizes = {
        "vocab_size": V,
        "hidden_size": 30,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "intermediate_size": D_FF,
        "num_hidden_layers": N,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "max_position_embeddings": MAX_T,
    }
    return model(model.config_class(**IDS, **(sizes | settings)))


def nanochat(**settings: Any) -> Any:
    own = {"hidden_act": "relu2", "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}
    return llama_like(transformers.NanoChatForCausalLM, **(own | settings))


def neox(**settings: Any) -> Any:
    config = transformers.GPTNeoXConfig(
        vocab_size=V,
        hidden_size=42,
        num_attention_heads=3,
        intermediate_size=D_FF,
        num_hidden_layers=N,
        max_position_embeddings=MAX_T,
        rope_parameters={"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.43},
        **IDS,
        **settings,
    )
    return transformers.GPTNeoXForCausalLM(config)


def bloom(n_heads: int) -> Any:
    sizes: dict[str, Any] = {"hidden_size": n_heads * 7, "n_layer": N, "n_head": n_heads, "seq_length": MAX_T}
    return transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=V, **IDS, **sizes))


def bert(model: Any, **settings: Any) -> Any:
    config = transformers.BertConfig(
        vocab_size=V,
        hidden_size=21,
        num_hidden_layers=N,
        num_attention_heads=3,
        intermediate_size=D_FF,
        max_position_embeddings=MAX_T,
        type_vocab_size=3,
        pad_token_id=PAD,
        **settings,
    )
    return model(config)


def fairseq_like(model: Any, **settings: Any) -> Any:
    config = model.config_class(
        vocab_size=V,
        d_model=22,
        encoder_layers=N,
        decoder_layers=M,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=D_FF,
        decoder_ffn_dim=D_FF,
        max_position_embeddings=MAX_T,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
        **IDS,
        **settings,
    )
    return model(config)


def t5(**settings: Any) -> Any:
    trained: dict[str, Any] = {"n_positions": MAX_T, "decoder_start_token_id": START}
    config = transformers.T5Config(
        vocab_size=V,
        d_model=22,
        d_kv=5,
        d_ff=D_FF,
        num_layers=N,
        num_decoder_layers=M,
        num_heads=3,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=11,
        **trained,
        **IDS,
        **settings,
    )
    return transformers.T5ForConditionalGeneration(config)


def t5_with_a_head_of_its_own() -> Any:
    model = t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    model.lm_head.weight = torch.nn.Parameter(
        torch.empty(V, 22)
    )  # tied while a model has no weights of its own
    return model


Source = tuple[Callable[[], Any], Any]  # what makes a model, and the module that its formulas are in

DECODERS: dict[str, Source] = {
    "gpt2": (gpt2, modeling_gpt2),
    "gpt2, exact gelu, a head of its own": (
        partial(gpt2, activation_function="gelu", tie_word_embeddings=False),
        modeling_gpt2,
    ),
    "llama": (partial(llama_like, transformers.LlamaForCausalLM), modeling_llama),
    "llama, biases, tied": (
        partial(
            llama_like,
            transformers.LlamaForCausalLM,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
        ),
        modeling_llama,
    ),
    "mistral": (
        partial(llama_like, transformers.MistralForCausalLM, num_key_value_heads=3, sliding_window=5),
        modeling_mistral,
    ),
    "mistral, no window, heads that do not divide the width": (
        partial(llama_like, transformers.MistralForCausalLM, hidden_size=29, sliding_window=None),
        modeling_mistral,
    ),
    "qwen3": (
        partial(llama_like, transformers.Qwen3ForCausalLM, hidden_size=29, head_dim=14),
        modeling_qwen3,
    ),
    "nanochat": (nanochat, modeling_nanochat),
    "nanochat, biases, tied, no cap": (
        partial(
            nanochat,
            attention_bias=True,
            tie_word_embeddings=True,
            final_logit_softcapping=None,
            num_key_value_heads=3,
            rms_norm_eps=0.1,
        ),
        modeling_nanochat,
    ),
    "nanochat, gelu, narrow heads": (
        partial(
            nanochat, hidden_act="gelu", num_key_value_heads=None, head_dim=4, final_logit_softcapping=3.0
        ),
        modeling_nanochat,
    ),
    "neox": (neox, modeling_gpt_neox),
    "neox, one after the other": (partial(neox, use_parallel_residual=False), modeling_gpt_neox),
    "bloom, 4 heads": (partial(bloom, 4), modeling_bloom),
    "bloom, 6 heads": (partial(bloom, 6), modeling_bloom),
}
ENCODERS: dict[str, Source] = {
    "bert": (partial(bert, transformers.BertForMaskedLM), modeling_bert),
    "bert with classes": (
        partial(bert, transformers.BertForSequenceClassification, num_labels=5, hidden_act="gelu_new"),
        modeling_bert,
    ),
}
ENCODER_DECODERS: dict[str, Source] = {
    "marian": (
        partial(fairseq_like, transformers.MarianMTModel, scale_embedding=True, activation_function="swish"),
        modeling_marian,
    ),
    "pegasus": (
        partial(fairseq_like, transformers.PegasusForConditionalGeneration, activation_function="relu"),
        modeling_pegasus,
    ),
    "bart": (partial(fairseq_like, transformers.BartForConditionalGeneration), modeling_bart),
    "t5": (t5, modeling_t5),
    "t5, squared relu": (partial(t5, feed_forward_proj="relu2"), modeling_t5),
    "t5, gated, a head of its own": (t5_with_a_head_of_its_own, modeling_t5),
}
SOURCES = DECODERS | ENCODERS | ENCODER_DECODERS


STD = {
    "t5, squared relu": 0.2,
    "t5, gated, a head of its own": 0.2,
    "pegasus": 0.6,
}  # in T5 nothing keeps scores small


@torch.no_grad()
def randomised(model: torch.nn.Module, std: float = 0.3) -> None:
    """Weights so large that every one of them shows; norms, biases and buffers away from 1 and 0."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.3 * torch.randn_like(parameter))
        elif parameter.requires_grad:  # Marian's table of positions is a constant
            parameter.normal_(0, std)
    for name, buffer in model.named_buffers():
        if name == "final_logits_bias":
            buffer.normal_()


# --- both sides -------------------------------------------------------------------------------------------


@dataclass
class Pair:
    """Their model, the folder they saved it in, and what we read from there."""

    name: str
    theirs: Any
    folder: Path
    read: ForeignModel
    source: Any

    @property
    def family(self) -> str:
        return self.read.config.family

    def ours(self) -> Any:
        model = build(self.read.config)
        model.load_state_dict(self.read.weights)
        return model.eval()


@pytest.fixture
def pair(name: str, tmp_path: Path) -> Pair:
    make, source = SOURCES[name]
    theirs = make().eval()
    theirs.set_attn_implementation("eager")  # the formula in the open
    randomised(theirs, std=STD.get(name, 0.3))
    if name == "pegasus":
        theirs.model.shared.weight.data.mul_(0.4)  # or every token would be followed by itself
    theirs.save_pretrained(tmp_path / "theirs")
    return Pair(name, theirs, tmp_path / "theirs", read_model(tmp_path / "theirs"), source)


class _TorchOfFloat64:
    """`torch`, but its `float32` is `float64`."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def in_float64(pair: Pair, ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cast both, and lift what transformers computes in float32 whatever a model's type is.

    Norms and softmaxes are, and Bloom's tanh has eight digits of sqrt(2/pi): enough for training, too little to
    compare by.
    """
    ours.double()
    pair.theirs.double()
    monkeypatch.setattr(pair.source, "torch", _TorchOfFloat64())
    if pair.source is modeling_bloom:
        monkeypatch.setattr(modeling_bloom, "bloom_gelu_forward", partial(F.gelu, approximate="tanh"))
    if pair.source is modeling_nanochat:
        norm = modeling_nanochat.NanoChatRMSNorm
        monkeypatch.setattr(norm, "forward", norm._norm)
        rotate_in_float64(pair, ours, monkeypatch)
    if pair.source is modeling_t5:
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def rotate_in_float64(pair: Pair, ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sines and cosines in float64 on both sides.

    Rounded to float32 they change a vector's length, which a norm behind the rotation takes back, and one before does
    not.
    """
    rotary = pair.theirs.model.rotary_emb
    angles = torch.outer(torch.arange(MAX_T).double(), rotary.inv_freq.double())
    ours.position.cos, ours.position.sin = angles.cos(), angles.sin()

    def tables(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        twice = torch.cat([angles, angles], dim=-1)[position_ids]
        return twice.cos(), twice.sin()

    monkeypatch.setattr(rotary, "forward", tables)


def logits_of(model: Any, pair: Pair, texts: Tensor, targets: Tensor, real: Tensor | None = None) -> Tensor:
    """One side's scores: `texts` are a decoder's, an encoder's, or the source of an encoder-decoder's."""
    if model is not pair.theirs:
        if pair.family == "encoder-decoder":
            return model(texts, targets, real)
        return model(texts, real, targets) if pair.family == "encoder" else model(texts, real)
    inputs = {} if real is None else {"attention_mask": real.long()}
    if pair.family == "encoder-decoder":
        return model(texts, decoder_input_ids=targets, **inputs).logits
    if real is not None and not isinstance(model, transformers.BloomForCausalLM):
        inputs["position_ids"] = (real.long().cumsum(1) - 1).clamp_min(0)
    if pair.family == "encoder":
        inputs["token_type_ids"] = targets
    return model(texts, **inputs).logits


def batch(family: str) -> tuple[Tensor, Tensor]:
    """Texts, and what goes with them: targets, or the types of an encoder's tokens."""
    if family == "encoder":
        return torch.randint(V, (B, S)), torch.randint(3, (B, S))
    return torch.randint(V, (B, S)), torch.randint(V, (B, T))


def padded(side: str) -> Tensor:
    """Where tokens are real: a full row, one that lacks a token, and a short one."""
    lengths, places = torch.tensor([S, S - 1, 7])[:, None], torch.arange(S)
    return places >= S - lengths if side == "left" else places < lengths


# --- the tests --------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", SOURCES)
def test_logits_are_theirs(pair: Pair, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, tolerance = pair.ours(), 1e-5
    if precision == "float64":
        in_float64(pair, ours, monkeypatch)
        tolerance = 1e-10
    texts, targets = batch(pair.family)

    expected = logits_of(pair.theirs, pair, texts, targets)

    torch.testing.assert_close(
        logits_of(ours, pair, texts, targets), expected, rtol=tolerance, atol=tolerance
    )
    assert expected.std() > 0.1, "logits so small would agree whatever the models do"


@torch.no_grad()
@crossed(name=list(SOURCES), precision=["float32", "float64"], side=["left", "right"])
def test_logits_of_padded_texts_are_theirs(
    pair: Pair, side: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, tolerance = (
        pair.ours(),
        2e-5,
    )  # float32 is rounded otherwise by each processor: up to 1.3e-5 was seen
    if precision == "float64":
        in_float64(pair, ours, monkeypatch)
        tolerance = 1e-10
    (texts, targets), real = batch(pair.family), padded(side)
    by_row = (side == "left" and pair.source in (modeling_bart, modeling_marian, modeling_pegasus)) or (
        side == "left" and "classes" in pair.name
    )  # they count padding as positions, and pool what stands first even if it is padding

    found = logits_of(ours, pair, texts, targets, real)
    if by_row:
        rows = [
            logits_of(pair.theirs, pair, texts[i : i + 1, row], only(targets, i, row, pair.family))
            for i, row in enumerate(real)
        ]
        expected = rows if pair.family == "encoder" else [torch.cat(rows)]
        found_parts = [found[i : i + 1] for i in range(B)] if pair.family == "encoder" else [found]
    else:
        expected, found_parts = [logits_of(pair.theirs, pair, texts, targets, real)], [found]

    for ours_part, theirs_part in zip(found_parts, expected, strict=True):
        if theirs_part.shape[1] == S:
            ours_part, theirs_part = ours_part[real], theirs_part[real]
        torch.testing.assert_close(ours_part, theirs_part, rtol=tolerance, atol=tolerance)


def only(targets: Tensor, i: int, row: Tensor, family: str) -> Tensor:
    """What goes with one row: of an encoder, the types of its real tokens."""
    return targets[i : i + 1, row] if family == "encoder" else targets[i : i + 1]


@torch.no_grad()
@pytest.mark.parametrize("name", SOURCES)
def test_an_exported_model_is_the_one_that_was_imported(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    fitted = match_architecture(pair.read.config)
    write_model(tmp_path / "ours", fitted, pair.read.weights, SpecialIds(eos=EOS, pad=PAD, start=START))
    again = read_model(tmp_path / "ours")
    loaded = type(pair.theirs).from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    texts, targets = batch(pair.family)

    assert fitted.class_name == type(pair.theirs).__name__
    assert repr(fitted) == f"ArchitectureMatch({fitted.class_name})"
    assert again.config == pair.read.config
    assert again.weights.keys() == pair.read.weights.keys()
    assert all(torch.equal(again.weights[name], tensor) for name, tensor in pair.read.weights.items())
    assert type(loaded) is type(pair.theirs)
    theirs = pair.theirs.state_dict()
    assert loaded.state_dict().keys() == theirs.keys()
    for name, tensor in loaded.state_dict().items():
        if not name.endswith("embed_positions.weight") or "bart" not in pair.name:
            assert torch.equal(tensor, theirs[name]), name
    pair.theirs, before = loaded, logits_of(pair.theirs, pair, texts, targets)
    torch.testing.assert_close(logits_of(loaded, pair, texts, targets), before, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "beams"), [*product(DECODERS | ENCODER_DECODERS, [3]), ("gpt2", 1), ("marian", 1), ("t5", 1)]
)
def test_texts_are_theirs(pair: Pair, beams: int) -> None:
    """Greedy and by beams, of prompts and sources of different lengths."""
    torch.manual_seed(3)
    ours, texts, real = (
        pair.ours(),
        torch.randint(V, (B, 11)),
        torch.arange(11) >= torch.tensor([[0], [1], [6]]),
    )
    search = BeamSearch(beams=beams, length_penalty=HuggingFaceLength(alpha=1.0))
    rows = [text[row].tolist() for text, row in zip(texts, real, strict=True)]
    settings: dict[str, Any] = {"num_beams": beams, "do_sample": False, "max_new_tokens": 9}
    settings["use_cache"] = pair.source is not modeling_t5  # theirs has as many layers as the encoder

    if pair.family == "decoder":
        found = beam_search(ours, rows, 9, search, eos_id=EOS)
        expected = pair.theirs.generate(texts, attention_mask=real.long(), **settings)[:, 11:]
    else:
        flipped = torch.where(real, texts, PAD).flip(1), real.flip(1).long()  # they count padding on the left
        ours_flipped = [row[::-1] for row in rows]
        found = beam_search(ours, [[START]] * B, 9, search, eos_id=EOS, sources=ours_flipped)
        expected = pair.theirs.generate(flipped[0], attention_mask=flipped[1], **settings)[:, 1:]

    for [best], row in zip(found, expected.tolist(), strict=True):
        assert best.tokens == up_to_the_end(row)
    assert len({tuple(best.tokens) for [best] in found}) > 1, "the same text for all would agree too easily"


def up_to_the_end(tokens: list[int]) -> list[int]:
    """Without what fills the row behind <eos>."""
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "bloom, 4 heads", "marian", "pegasus", "bart", "t5"])
def test_fields_by_their_other_names_make_the_same_model(pair: Pair) -> None:
    path = pair.folder / "config.json"
    fields, own = json.loads(path.read_text()), pair.theirs.config.attribute_map
    assert own
    assert own.items() <= pair.read.architecture.aliases.items()
    aliases = {alias: fields.pop(name) for alias, name in own.items()}
    path.write_text(json.dumps(fields | aliases))
    pair.theirs = type(pair.theirs).from_pretrained(pair.folder, attn_implementation="eager").eval()
    pair.read = read_model(pair.folder)
    texts, targets = batch(pair.family)

    expected = logits_of(pair.theirs, pair, texts, targets)

    torch.testing.assert_close(logits_of(pair.ours(), pair, texts, targets), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", ["mistral"])
def test_a_shorter_window_shows(pair: Pair) -> None:
    """Mistral's text is longer than its window, so a window that did nothing would fail above."""
    attention = pair.read.config.attention.replace(window=None)
    unlimited = build(pair.read.config.replace(attention=attention)).eval()
    unlimited.load_state_dict(pair.read.weights)
    texts, _ = batch("decoder")

    difference = (unlimited(texts) - pair.theirs(texts).logits).abs().amax((0, 2))

    assert difference[:5].max() < 1e-4 < difference[5:].min()
