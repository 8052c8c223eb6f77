"""Export of a decoder as one GGUF file, the format of llama.cpp: GPT-2, Llama and Qwen3, with byte-level BPE."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearformer.errors import ConfigError, RunError, TokenizerError, needs_extra
from clearformer.files import file_made_whole, user_path
from clearformer.interop.architectures.base import d_ff, norm_eps
from clearformer.interop.mapping.matching import ArchitectureMatch, match_architecture
from clearformer.interop.mapping.tensors import Rule, Same, in_float32, tensor_maps, to_theirs
from clearformer.model import ModelConfig
from clearformer.model.attention import MultiHead
from clearformer.model.feedforward import GELU, SwiGLU
from clearformer.model.positions import RoPE
from clearformer.runs.folders import RunLike, opened, shown_name
from clearformer.text import BPETokenizer, Tokenizer
from clearformer.training.store.state import weights_of

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # values of tokenizer.ggml.token_type
FILE_TYPES = {"float32": "ALL_F32", "float16": "MOSTLY_F16"}
# These, and all tensors that are not matrices, stay in float32, because llama.cpp computes with them in float32.
IN_FLOAT32 = {"position_embd.weight"}


# --- layouts of tensors in GGUF ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Stacked:
    """`n` matrices, one below the other."""

    n: int

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(parts))

    def unpack(self, tensor: Tensor) -> Sequence[Tensor]:
        return tensor.chunk(self.n)


@dataclass(frozen=True)
class Neighbours:
    """Rows of each head with rotated pairs side by side: 0, n/2, 1, n/2 + 1, ... (ours rotates i with i + n/2)."""

    n_heads: int

    def pack(self, parts: Sequence[Tensor]) -> Tensor:
        [rows] = parts
        return rows.unflatten(0, (self.n_heads, 2, -1)).transpose(1, 2).flatten(0, 2)

    def unpack(self, tensor: Tensor) -> Sequence[Tensor]:
        return [tensor.unflatten(0, (self.n_heads, -1, 2)).transpose(1, 2).flatten(0, 2)]


BLOCK_RULES = [
    Rule("embed", "token_embd"),
    Rule("blocks.*.ln1", "blk.*.attn_norm"),
    Rule("blocks.*.attn.W_O", "blk.*.attn_output"),
    Rule("blocks.*.ln2", "blk.*.ffn_norm"),
    Rule("blocks.*.mlp.W_in", "blk.*.ffn_up"),
    Rule("blocks.*.mlp.W_gate", "blk.*.ffn_gate"),
    Rule("blocks.*.mlp.W_out", "blk.*.ffn_down"),
    Rule("ln_final", "output_norm"),
    Rule("head", "output"),
]


def _gpt2_rules(_: ModelConfig) -> list[Rule]:
    qkv = [f"blocks.*.attn.W_{m}" for m in "QKV"]
    return [
        *BLOCK_RULES,
        Rule("position", "position_embd"),
        Rule(qkv, "blk.*.attn_qkv", Stacked(3)),
    ]


def _llama_rules(config: ModelConfig) -> list[Rule]:
    assert isinstance(config.attention, MultiHead)
    heads = {"Q": config.attention.n_heads, "K": config.attention.n_key_value_heads}
    turned = [
        Rule(f"blocks.*.attn.W_{m}", f"blk.*.attn_{m.lower()}", Neighbours(n)) for m, n in heads.items()
    ]
    return [*BLOCK_RULES, *turned, Rule("blocks.*.attn.W_V", "blk.*.attn_v")]


def _qwen3_rules(_: ModelConfig) -> list[Rule]:
    names = {
        "W_Q": "attn_q",
        "W_K": "attn_k",
        "W_V": "attn_v",
        "q_norm": "attn_q_norm",
        "k_norm": "attn_k_norm",
    }
    own = [Rule(f"blocks.*.attn.{ours}", f"blk.*.{theirs}", Same()) for ours, theirs in names.items()]
    return [*BLOCK_RULES, *own]


@dataclass(frozen=True)
class Kind:
    """A kind of model in GGUF: its name, the rules for its tensors, and the feed-forward network that it requires."""

    name: str
    rules: Callable[[ModelConfig], list[Rule]]
    ffn: GELU | SwiGLU


KINDS = {
    "GPT-2": Kind("gpt2", _gpt2_rules, GELU(approximate="tanh")),
    "Llama": Kind("llama", _llama_rules, SwiGLU()),
    "Qwen3": Kind("qwen3", _qwen3_rules, SwiGLU()),
    "Mistral": Kind("llama", _llama_rules, SwiGLU()),  # without a window, it computes as a Llama
}


# --- the file ---------------------------------------------------------------------------------------------


def to_gguf(
    run: RunLike | str | Path, file: str | Path, checkpoint: str | int = "latest", dtype: str = "float32"
) -> ArchitectureMatch:
    """Write a run as one GGUF file with its model and its tokenizer.

    Args:
        run: A loaded run, or a run's name or folder.
        file: A new file.
        checkpoint: For a run that is not loaded yet: `latest`, `best` or a step's number.
        dtype: The type of the matrices: float32 or float16.

    Raises:
        ConfigError: the model is none of the kinds that can be written (the message names the first setting that does
            not fit), there is no such type, or a weight is too large for it.
        TokenizerError: the tokenizer is not a byte-level BPE with GPT-2's pre-tokens.
        RunError: there is no such run, or the file exists.
        MissingPackageError: the gguf package is not installed.
        DiskError: the file cannot be written.
    """
    target = user_path(file)
    gguf_package()  # fail early if it is missing
    if dtype not in FILE_TYPES:
        raise ConfigError(f"dtype {dtype}: a .gguf file is written in {' or '.join(FILE_TYPES)}")
    if target.exists():
        raise RunError(f"{target} exists; choose another name, or delete it")
    run = opened(run, checkpoint)
    fitted = match_architecture(run.config.model)
    vocabulary = vocabulary_of(run.tokenizer, fitted.config.vocab_size or 0)
    kind_of(fitted)
    with file_made_whole(target) as unfinished:
        write_gguf(unfinished, fitted, weights_of(run.model), dtype, shown_name(run), vocabulary)
    return fitted


OTHER_BPE = ("ignore_merges", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
"""Settings of a BPE in tokenizer.json that GGUF's has not."""
NO_TEXT = "ÿ"
"""The spelling of byte 255, which no UTF-8 has."""


def gguf_package() -> Any:
    """Return the package that writes the format.

    Raises:
        MissingPackageError: it is not installed.
    """
    with needs_extra("gguf", "a .gguf file needs the gguf package"):
        import gguf
    return gguf


def kind_of(fitted: ArchitectureMatch) -> Kind:
    """Return the kind of a model in GGUF.

    Raises:
        ConfigError: it is none of the kinds, or a setting does not fit.
    """
    title, config = fitted.architecture.title, fitted.config
    if title not in KINDS:
        raise ConfigError(
            f"model: a {title} is not written as GGUF, only {', '.join(KINDS)}; export it to a folder instead"
        )
    kind, ffn = KINDS[title], config.ffn
    free = ("d_ff", "bias", "dropout")
    there = kind.ffn.replace(**{name: getattr(ffn, name) for name in free if hasattr(ffn, name)})
    if ffn.kind != kind.ffn.kind:
        raise _does_not_fit("ffn.kind", ffn.kind, title, kind.ffn.kind)
    if ffn != there:
        raise _does_not_fit("ffn.approximate", getattr(ffn, "approximate", None), title, "tanh")
    if title == "Mistral" and isinstance(config.attention, MultiHead) and config.attention.window:
        raise _does_not_fit("attention.window", config.attention.window, title, "none")
    if title == "Qwen3" and isinstance(config.attention, MultiHead) and config.attention.qkv_bias:
        raise _does_not_fit("attention.qkv_bias", "true", title, "false")
    return kind


def _does_not_fit(setting: str, ours: Any, title: str, theirs: Any) -> ConfigError:
    return ConfigError(f"model.{setting}={ours} does not fit: in GGUF a {title} has {theirs} there")


def vocabulary_of(tokenizer: Tokenizer, n_rows: int) -> dict[str, Any]:
    """Return the tokens, their types, the merges and the ids of special tokens, as GGUF stores them.

    A model of `n_rows` rows may have more than its tokenizer has tokens. llama.cpp expects a token for each row, so the
    rest are unused ones. Where no token ends a text, that of a byte that no UTF-8 has does: without one, llama.cpp
    would end texts at GPT-2's token 11, the comma.

    Raises:
        TokenizerError: it is not a byte-level BPE with GPT-2's pre-tokens.
    """
    document = json.loads(tokenizer.to_json())
    cut, model = document.get("pre_tokenizer") or {}, document.get("model", {})
    plain = cut.get("type") == "ByteLevel" and cut.get("use_regex", True) and not cut.get("add_prefix_space")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model.get("merges", [])]
    other = any(model.get(setting) for setting in OTHER_BPE)
    if model.get("type") != "BPE" or other or not plain or not merges or document.get("normalizer"):
        raise _unwritten(tokenizer)
    special = set(tokenizer.specials)
    added = {each["content"] for each in document.get("added_tokens", [])}
    kinds = [
        CONTROL if spelling in special else USER_DEFINED if spelling in added else NORMAL
        for spelling in tokenizer.spellings
    ]
    unused = [f"[unused-row-{token}]" for token in range(tokenizer.vocab_size, n_rows)]
    ids = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "pad": tokenizer.pad_id, "unk": tokenizer.unk_id}
    if ids["eos"] is None:
        ids["eos"] = _token_of_no_text(tokenizer)
    return {
        "tokens": [*tokenizer.spellings, *unused],
        "types": [*kinds, *(UNUSED for _ in unused)],
        "merges": merges,
        "ids": {role: token for role, token in ids.items() if token is not None},
    }


def _token_of_no_text(tokenizer: Tokenizer) -> int:
    if NO_TEXT not in tokenizer.spellings:
        raise TokenizerError(
            "no token ends a text and none is the byte 255, at which llama.cpp would never end one; train with "
            "tokenizer.eos=true, or export to a folder instead"
        )
    return tokenizer.spellings.index(NO_TEXT)


def _unwritten(tokenizer: Tokenizer) -> TokenizerError:
    """Return the error for a tokenizer that GGUF cannot hold; it names the setting at fault."""
    folder = "export to a folder instead"
    if not isinstance(tokenizer, BPETokenizer):
        return TokenizerError(
            f"tokenizer.kind={tokenizer.kind} does not fit: GGUF needs byte-level BPE (kind bpe or gpt2); "
            f"{folder}"
        )
    if not tokenizer.merges:
        return TokenizerError(f"tokenizer.vocab_size leaves no merge, but GGUF needs at least one; {folder}")
    setting, fits = ("lowercase=true", "false") if tokenizer.normalizer else ("digits=single", "joined")
    return TokenizerError(
        f"tokenizer.{setting} does not fit: GGUF needs GPT-2's pre-tokens of the unchanged text; {folder}, "
        f"or train with tokenizer.{setting.partition('=')[0]}={fits}"
    )


def write_gguf(
    path: Path,
    fitted: ArchitectureMatch,
    weights: Mapping[str, Tensor],
    dtype: str,
    name: str,
    vocabulary: Mapping[str, Any] | None = None,
) -> None:
    """Write a model to a file; without a vocabulary (see `vocabulary_of`), it reads and writes only token ids.

    Raises:
        ConfigError: see `to_gguf`.
    """
    gguf = gguf_package()
    kind = kind_of(fitted)
    writer = gguf.GGUFWriter(path, kind.name)
    writer.add_name(name)
    writer.add_file_type(getattr(gguf.LlamaFileType, FILE_TYPES[dtype]))
    _add_sizes(writer, fitted.config)
    _add_vocabulary(writer, vocabulary)
    for key, tensor in gguf_tensors(kind, fitted, weights).items():
        writer.add_tensor(key, _stored(key, tensor, dtype).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _stored(key: str, tensor: Tensor, dtype: str) -> Tensor:
    if tensor.dim() < 2 or key in IN_FLOAT32:
        return tensor
    stored = tensor.to(getattr(torch, dtype))
    if not stored.isfinite().all():
        largest = tensor.abs().max().item()
        raise ConfigError(f"dtype {dtype}: {key} has a weight of {largest:g}, beyond its range; use float32")
    return stored


def _add_vocabulary(writer: Any, vocabulary: Mapping[str, Any] | None) -> None:
    if vocabulary is None:
        writer.add_tokenizer_model("no_vocab")
        return
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(vocabulary["types"])
    writer.add_token_merges(vocabulary["merges"])
    writer.add_add_bos_token("bos" in vocabulary["ids"])
    for role, token in vocabulary["ids"].items():
        getattr(writer, f"add_{role}_token_id")(token)


def gguf_tensors(kind: Kind, fitted: ArchitectureMatch, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a model's tensors, in float32, by their names in GGUF."""
    whole, config = fitted.weights(in_float32(weights)), fitted.config
    return to_theirs(tensor_maps(kind.rules(config), whole, config.n_layers), whole)


def _add_sizes(writer: Any, config: ModelConfig) -> None:
    assert isinstance(config.attention, MultiHead)
    n_heads, d_head = config.attention.heads(config.d_model)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_seq_len)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.n_layers)
    writer.add_feed_forward_length(d_ff(config))
    writer.add_head_count(n_heads)
    writer.add_head_count_kv(config.attention.n_key_value_heads)
    writer.add_key_length(d_head)
    writer.add_value_length(d_head)
    if isinstance(config.position, RoPE):
        writer.add_rope_dimension_count(d_head)
        writer.add_rope_freq_base(config.position.theta)
        writer.add_layer_norm_rms_eps(norm_eps(config.norm, 1e-6))
    else:
        writer.add_layer_norm_eps(norm_eps(config.norm, 1e-5))
