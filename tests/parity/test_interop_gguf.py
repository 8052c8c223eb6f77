"""GGUF files against the `gguf` package's reader and transformers' loader."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers

from clearformer.errors import ClearformerError
from clearformer.interop.gguf import (
    CONTROL,
    KINDS,
    NORMAL,
    USER_DEFINED,
    Neighbours,
    to_gguf,
    vocabulary_of,
)
from clearformer.interop.importing import run_config
from clearformer.interop.mapping.matching import match_architecture
from clearformer.interop.mapping.tensors import tensor_maps, to_ours
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.feedforward import GELU, SwiGLU
from clearformer.model.norms import RMSNorm
from clearformer.model.positions import ALiBi, RoPE, rotary_tables
from clearformer.run import Run
from clearformer.text import BPETokenizerSpec, CharTokenizerSpec, ImportedTokenizer
from clearformer.training.store.folder import RunFolder

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TEXT = "the cat sat on the mat, and then the other cat sat on the other mat\n" * 3
TOKENIZER = BPETokenizerSpec(vocab_size=283, bos=True, eos=True).train([TEXT])
SIZES: dict[str, Any] = {"vocab_size": TOKENIZER.vocab_size, "d_model": 24, "n_layers": 3, "max_seq_len": 19}
LLAMA_LIKE: dict[str, Any] = {
    **SIZES,
    "position": RoPE(theta=500.0),
    "norm": RMSNorm(eps=1e-5),
    "ffn": SwiGLU(d_ff=37),
}
MODELS = {
    "GPT-2": ModelConfig(**SIZES, attention=MultiHead(n_heads=3), ffn=GELU(d_ff=37, approximate="tanh")),
    "Llama": ModelConfig(**LLAMA_LIKE, attention=MultiHead(n_heads=4, n_kv_heads=2, d_head=6)),
    "Llama, a head of its own": ModelConfig(
        **LLAMA_LIKE, attention=MultiHead(n_heads=2), tie_embeddings=False
    ),
    "Mistral": ModelConfig(**LLAMA_LIKE, attention=MultiHead(n_heads=5, d_head=6)),
    "Qwen3": ModelConfig(**LLAMA_LIKE, attention=MultiHead(n_heads=2, qk_norm=RMSNorm(eps=1e-5))),
}


@torch.no_grad()
def run_of(config: ModelConfig, tokenizer: Any = TOKENIZER) -> Run:
    """A run in memory, with weights so large that every one of them shows."""
    model = build(config.replace(vocab_size=tokenizer.vocab_size)).eval()
    for parameter in model.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    return Run(model, tokenizer, run_config(model.config), folder=RunFolder(Path("tiny")))


@pytest.mark.parametrize("name", MODELS)
def test_tensors_come_back_to_the_bit(name: str, tmp_path: Path) -> None:
    run = run_of(MODELS[name])
    fitted = to_gguf(run, tmp_path / "tiny.gguf")
    kind = KINDS[fitted.architecture.title]

    found = {
        tensor.name: torch.from_numpy(tensor.data.copy())
        for tensor in gguf.GGUFReader(tmp_path / "tiny.gguf").tensors
    }

    weights = build(fitted.config).state_dict()
    back = to_ours(tensor_maps(kind.rules(fitted.config), weights, fitted.config.n_layers), found)
    assert back.keys() == weights.keys()
    for ours, tensor in run.model.state_dict().items():
        assert torch.equal(back[ours], tensor), ours
    assert all(not tensor.any() for ours, tensor in back.items() if ours not in run.model.state_dict())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.gguf"]


def test_matrices_in_half_precision_and_the_rest_as_it_is(tmp_path: Path) -> None:
    run = run_of(MODELS["GPT-2"])
    to_gguf(run, tmp_path / "whole.gguf")
    to_gguf(run, tmp_path / "half.gguf", dtype="float16")

    whole, half = (
        {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in gguf.GGUFReader(file).tensors}
        for file in (tmp_path / "whole.gguf", tmp_path / "half.gguf")
    )

    assert whole.keys() == half.keys()
    for name, tensor in whole.items():
        is_half = tensor.dim() == 2 and name != "position_embd.weight"
        assert torch.equal(half[name], tensor.half() if is_half else tensor), name


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_a_model_trained_with_dropout_is_written(name: str, tmp_path: Path) -> None:
    config = MODELS[name]
    ffn = config.ffn.replace(dropout=0.1)
    to_gguf(run_of(config.replace(ffn=ffn, dropout=0.2)), tmp_path / "tiny.gguf")
    assert gguf.GGUFReader(tmp_path / "tiny.gguf").tensors


def test_a_model_in_bfloat16_is_written_in_float32(tmp_path: Path) -> None:
    run = run_of(MODELS["Llama"])
    run.model.bfloat16()
    to_gguf(run, tmp_path / "tiny.gguf")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "tiny.gguf").tensors}
    assert {tensor.tensor_type.name for tensor in tensors.values()} == {"F32"}
    norm = torch.from_numpy(tensors["output_norm.weight"].data.copy())
    assert torch.equal(norm, run.model.get_parameter("ln_final.weight").float())


@torch.no_grad()
def test_what_half_precision_cannot_hold_is_refused(tmp_path: Path) -> None:
    run = run_of(MODELS["Llama"])
    run.model.blocks[1].mlp.W_gate.weight[0, 0] = 1e5  # type: ignore[union-attr, index]
    with pytest.raises(ClearformerError, match=r"float16: blk\.1\.ffn_gate\.weight has a weight of 100000"):
        to_gguf(run, tmp_path / "large.gguf", dtype="float16")
    with pytest.raises(ClearformerError, match=r"dtype int4: a \.gguf file is written in float32 or float16"):
        to_gguf(run, tmp_path / "small.gguf", dtype="int4")
    assert not list(tmp_path.iterdir())


# transformers' own reader knows these sizes alone: it leaves the fields for others unread.
READ_BY_TRANSFORMERS = {
    "GPT-2": MODELS["GPT-2"].replace(ffn=GELU(approximate="tanh"), max_seq_len=1024),
    "Llama": MODELS["Llama"],
    "Llama, a head of its own": MODELS["Llama, a head of its own"],
    "Qwen3": MODELS["Qwen3"].replace(
        attention=MultiHead(n_heads=2, d_head=128, qk_norm=RMSNorm(eps=1e-5)), tie_embeddings=False
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("name", READ_BY_TRANSFORMERS)
def test_transformers_reads_the_same_model(name: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers reads GGUF with accelerate alone: install it")
    run = run_of(READ_BY_TRANSFORMERS[name])
    to_gguf(run, tmp_path / "tiny.gguf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf").eval()
    tokens = torch.randint(run.config.model.vocab_size or 0, (3, 17))
    torch.testing.assert_close(run.model(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_reads_the_same_model_and_text(name: str, tmp_path: Path) -> None:
    """To three digits for GPT-2: llama.cpp looks its GELU up in a table of half precision."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    run, text = run_of(MODELS[name]), "the cat sat on"
    to_gguf(run, tmp_path / "tiny.gguf")
    in_float32 = {"type_k": 0, "type_v": 0, "flash_attn": False}  # keys and values, else in half precision
    theirs = llama_cpp.Llama(
        str(tmp_path / "tiny.gguf"), n_ctx=19, logits_all=True, verbose=False, **in_float32
    )

    ids = theirs.tokenize(text.encode())
    theirs.eval(ids)

    assert ids == [run.tokenizer.bos_id, *run.tokenizer.encode(text).tolist()]
    logits = torch.tensor(theirs.scores[: len(ids)].tolist())
    tolerance = 5e-3 if name == "GPT-2" else 1e-4
    torch.testing.assert_close(logits, run.model(torch.tensor([ids]))[0], rtol=0, atol=tolerance)


def test_the_vocabulary_is_ours(tmp_path: Path) -> None:
    to_gguf(run_of(MODELS["GPT-2"]), tmp_path / "tiny.gguf")
    fields = gguf.GGUFReader(tmp_path / "tiny.gguf").fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    assert tokens == list(TOKENIZER.spellings)
    assert fields["tokenizer.ggml.merges"].contents() == [" ".join(merge) for merge in TOKENIZER.merges]
    assert [i for i, kind in enumerate(fields["tokenizer.ggml.token_type"].contents()) if kind == 3] == [
        TOKENIZER.bos_id,
        TOKENIZER.eos_id,
    ]
    assert fields["tokenizer.ggml.bos_token_id"].contents() == TOKENIZER.bos_id
    assert fields["tokenizer.ggml.add_bos_token"].contents() is True


@pytest.mark.parametrize(("eos", "ending"), [(True, "<eos>"), (False, "ÿ")])
def test_texts_end_at_no_token_that_a_text_has(eos: bool, ending: str) -> None:
    """llama.cpp ends them at GPT-2's token 11, the comma, where a file names none."""
    tokenizer = BPETokenizerSpec(vocab_size=270, eos=eos).train([TEXT])
    vocabulary = vocabulary_of(tokenizer, tokenizer.vocab_size)
    assert vocabulary["tokens"][vocabulary["ids"]["eos"]] == ending
    assert vocabulary["ids"]["eos"] not in tokenizer.encode("ÿ, and <eos>")


def test_a_vocabulary_without_such_a_token_is_refused() -> None:
    document = json.loads(BPETokenizerSpec(vocab_size=270).train([TEXT]).to_json())
    document["model"]["vocab"]["no byte"] = document["model"]["vocab"].pop("ÿ")
    imported = ImportedTokenizer(document, {})
    with pytest.raises(ClearformerError, match=r"no token ends a text .* train with tokenizer\.eos=true"):
        vocabulary_of(imported, imported.vocab_size)


def test_an_added_token_of_an_imported_vocabulary_is_one_that_a_text_is_searched_for() -> None:
    document = json.loads(TOKENIZER.to_json())
    document["added_tokens"].append(
        {
            **document["added_tokens"][0],
            "id": TOKENIZER.vocab_size,
            "content": "    ",
            "special": False,
        }
    )
    document["model"]["vocab"].pop("    ", None)
    imported = ImportedTokenizer(document)
    assert imported.encode("a    b").tolist()[1] == TOKENIZER.vocab_size
    vocabulary = vocabulary_of(imported, imported.vocab_size)
    kinds = dict(zip(vocabulary["tokens"], vocabulary["types"], strict=True))
    assert (kinds["<bos>"], kinds["    "], kinds["t"]) == (CONTROL, USER_DEFINED, NORMAL)


@pytest.mark.parametrize(("setting", "value"), [("ignore_merges", True), ("end_of_word_suffix", "</w>")])
def test_a_bpe_that_joins_otherwise_is_not_written(setting: str, value: Any) -> None:
    document = json.loads(TOKENIZER.to_json())
    document["model"][setting] = value
    imported = ImportedTokenizer(document)
    with pytest.raises(ClearformerError, match="GGUF needs byte-level BPE"):
        vocabulary_of(imported, imported.vocab_size)


IN_A_BLOCK = {
    "self_attn.q_proj": "attn.W_Q",
    "self_attn.v_proj": "attn.W_V",
    "self_attn.o_proj": "attn.W_O",
    "mlp.up_proj": "mlp.W_in",
    "mlp.gate_proj": "mlp.W_gate",
    "mlp.down_proj": "mlp.W_out",
    "input_layernorm": "ln1",
    "post_attention_layernorm": "ln2",
}


@pytest.mark.parametrize("name", [name for name in MODELS if name != "GPT-2"])
def test_names_and_sizes_are_those_of_the_gguf_package(name: str, tmp_path: Path) -> None:
    """By transformers' names, which the package's own table knows; a Llama's queries and keys are turned besides."""
    run = run_of(MODELS[name])
    to_gguf(run, tmp_path / "tiny.gguf")
    reader = gguf.GGUFReader(tmp_path / "tiny.gguf")
    found = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in reader.tensors}
    said = {key: field.contents() for key, field in reader.fields.items()}
    config: Any = run.model.config
    kind = said["general.architecture"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.upper()], config.n_layers)
    for theirs, ours in IN_A_BLOCK.items():
        if ours == "attn.W_Q" and kind == "llama":
            continue
        at = names.get_name(f"model.layers.1.{theirs}.weight", (".weight",))
        assert at is not None
        assert torch.equal(found[at], run.model.get_parameter(f"blocks.1.{ours}.weight")), at
    assert said[f"{kind}.rope.freq_base"] == config.position.theta
    assert said[f"{kind}.attention.layer_norm_rms_epsilon"] == pytest.approx(config.norm.eps)
    heads = config.attention.n_heads, config.attention.n_key_value_heads
    assert (said[f"{kind}.attention.head_count"], said[f"{kind}.attention.head_count_kv"]) == heads


@torch.no_grad()
def test_rows_beyond_the_vocabulary_have_unused_tokens(tmp_path: Path) -> None:
    """llama.cpp takes the number of tokens for the number of rows."""
    n_rows = TOKENIZER.vocab_size + 3
    model = build(MODELS["GPT-2"].replace(vocab_size=n_rows)).eval()
    run = Run(model, TOKENIZER, run_config(model.config), folder=RunFolder(Path("tiny")))
    to_gguf(run, tmp_path / "tiny.gguf")
    reader = gguf.GGUFReader(tmp_path / "tiny.gguf")
    tokens, kinds = (reader.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type"))
    assert tokens[:-3] == list(TOKENIZER.spellings)
    assert len(set(tokens)) == len(kinds) == n_rows
    assert [i for i, kind in enumerate(kinds) if kind == 5] == list(range(n_rows - 3, n_rows))


def test_neighbours_turned_there_are_halves_turned_here() -> None:
    """llama.cpp pairs dimension 2i with 2i + 1, and we pair i with i + n/2: the same scores."""
    n_heads, d_head, time = 2, 6, 5
    tables = rotary_tables(d_head, 500.0, time)
    ours = torch.randn(time, n_heads * d_head)
    theirs = Neighbours(n_heads).pack([ours.t()]).t()  # rows are what is ordered anew
    cos, sin = tables["cos"][:, None], tables["sin"][:, None]
    a, b = ours.unflatten(1, (n_heads, 2, -1)).unbind(2)
    turned_here = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    c, d = theirs.unflatten(1, (n_heads, -1, 2)).unbind(3)
    turned_there = torch.stack([c * cos - d * sin, d * cos + c * sin], -1).flatten(2)
    scores = [torch.einsum("thd,shd->hts", x, x) for x in (turned_here, turned_there)]
    torch.testing.assert_close(scores[0], scores[1])
    assert torch.equal(Neighbours(n_heads).unpack(Neighbours(n_heads).pack([ours.t()]))[0], ours.t())


@pytest.mark.parametrize(
    ("config", "tokenizer", "said"),
    [
        (
            MODELS["GPT-2"].replace(ffn=GELU()),
            TOKENIZER,
            "model.ffn.approximate=none does not fit: in GGUF a GPT-2 has tanh there",
        ),
        (
            ModelConfig(
                **SIZES, attention=MultiHead(n_heads=3), position=ALiBi(), embedding_norm=True,
                ffn=GELU(approximate="tanh"),
            ),
            TOKENIZER,
            "a Bloom is not written as GGUF, only GPT-2, Llama, Qwen3",
        ),
        (
            MODELS["Qwen3"].replace(
                attention=MultiHead(n_heads=2, qkv_bias=True, qk_norm=RMSNorm(eps=1e-5))
            ),
            TOKENIZER,
            "model.attention.qkv_bias=true does not fit",
        ),
        (
            MODELS["Llama"].replace(attention=MultiHead(n_heads=2, window=5)),
            TOKENIZER,
            "model.attention.window=5 does not fit: in GGUF a Mistral has none there",
        ),
        (MODELS["GPT-2"], CharTokenizerSpec().train([TEXT]), "tokenizer.kind=char does not fit"),
        (
            MODELS["GPT-2"],
            BPETokenizerSpec(vocab_size=280, digits="single").train([TEXT]),
            "tokenizer.digits=single does not fit.*or train with tokenizer.digits=joined",
        ),
        (
            MODELS["GPT-2"],
            BPETokenizerSpec(vocab_size=280, lowercase=True).train([TEXT]),
            "tokenizer.lowercase=true does not fit.*or train with tokenizer.lowercase=false",
        ),
        (
            MODELS["GPT-2"],
            BPETokenizerSpec(vocab_size=256).train([TEXT]),
            "tokenizer.vocab_size leaves no merge",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(config: ModelConfig, tokenizer: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ClearformerError, match=said):
        to_gguf(run_of(config, tokenizer), tmp_path / "tiny.gguf")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_text("mine")
    with pytest.raises(ClearformerError, match="exists"):
        to_gguf(run_of(MODELS["GPT-2"]), tmp_path / "tiny.gguf")
    assert (tmp_path / "tiny.gguf").read_text() == "mine"


def test_the_models_are_the_kinds_they_are_called() -> None:
    assert {match_architecture(config).architecture.title for config in MODELS.values()} == KINDS.keys()


def test_without_the_package_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ClearformerError, match=r"pip install 'clearformer\[gguf\]'"):
        to_gguf(run_of(MODELS["GPT-2"]), tmp_path / "tiny.gguf")
