"""What is read of a foreign folder, and the one line that tells what is wrong with it."""

import json
import math
import os
import re
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

from clearformer.errors import CheckpointError, ClearformerError, ConfigError, RunError, TokenizerError
from clearformer.interop.architectures import ARCHITECTURES, Architecture
from clearformer.interop.architectures.bert import Bert
from clearformer.interop.architectures.llama import Llama, Mistral
from clearformer.interop.architectures.t5 import T5
from clearformer.interop.exporting import held_out_of
from clearformer.interop.mapping.fields import Fields
from clearformer.interop.mapping.matching import match_architecture
from clearformer.interop.reading import read_fields, read_model
from clearformer.interop.tokenizers.folder import read_tokenizer
from clearformer.interop.writing import SpecialIds, write_model
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.feedforward import GEGLU, ReLU
from clearformer.model.positions import RoPE, Sinusoidal
from clearformer.run import Run
from clearformer.runs.folders import run_config
from clearformer.text import CharTokenizerSpec
from clearformer.training.store.checkpoint import MODEL, step_folder
from clearformer.training.store.folder import RunFolder, read_metrics
from clearformer.training.store.state import weights_of

from .conftest import TINY

WithFields = Callable[..., Path]


def refusal(folder: Path) -> ClearformerError:
    """The error for a folder, which is one line."""
    with pytest.raises(ClearformerError) as caught:
        read_model(folder)
    assert "\n" not in str(caught.value)
    return caught.value


# --- the folder -------------------------------------------------------------------------------------------


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    error = refusal(tmp_path / "nowhere")
    assert isinstance(error, RunError)
    assert "no such folder" in str(error)


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing of the kind")
    error = refusal(tmp_path)
    assert isinstance(error, RunError)
    assert "no config.json" in str(error)


def test_a_file_that_could_hold_code_is_not_opened(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    error = refusal(folder)
    assert error.exit_status == 2
    assert "pytorch_model.bin" in str(error)
    assert "only safetensors" in str(error)


def test_no_tensors_at_all(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "has no model.safetensors" in str(refusal(folder))


# --- config.json ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000, "\x00"])
def test_config_json_is_none(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    assert isinstance(refusal(folder), ConfigError)


@pytest.mark.parametrize(
    "field", [{"auto_map": {"AutoModel": "modeling_own.Own"}}, {"trust_remote_code": True}]
)
def test_code_is_asked_for(with_fields: WithFields, field: dict[str, Any]) -> None:
    folder = with_fields(**field)
    (folder / "modeling_own.py").write_text("raise SystemExit('this was executed')")
    error = refusal(folder)
    assert error.exit_status == 2
    assert next(iter(field)) in str(error)
    assert "which is not run" in str(error)


def test_the_nearest_architecture_is_named(with_fields: WithFields) -> None:
    error = refusal(with_fields(model_type="qwen33"))
    assert "'qwen33' is none of gpt2, llama" in str(error)
    assert "did you mean 'qwen3'?" in str(error)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n_embd", "wide"),
        ("n_embd", 0),
        ("n_layer", True),
        ("n_layer", 1.5),
        ("n_head", 4),  # does not divide 6
        ("layer_norm_epsilon", 0),
        ("layer_norm_epsilon", -1),
        ("resid_pdrop", 1),
        ("tie_word_embeddings", "yes"),
        ("activation_function", "quick_gelu"),
        ("activation_function", 3),
        ("scale_attn_by_inverse_layer_idx", True),
        ("quantization_config", {"bits": 4}),
    ],
)
def test_a_field_that_does_not_fit_is_named(with_fields: WithFields, field: str, value: Any) -> None:
    error = refusal(with_fields(**{field: value}))
    assert isinstance(error, ConfigError)
    assert error.exit_status == 2
    ours = {"resid_pdrop": "dropout"}  # its bound is that of our own setting
    assert ours.get(field, field) in str(error)
    assert "config.json" in str(error)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.title)
def test_another_direction_of_reading_is_refused(with_fields: WithFields, architecture: Architecture) -> None:
    """transformers follows this field, whatever the architecture's own direction."""
    causal = architecture.family != "encoder"
    own = refusal(with_fields(model_type=architecture.model_type, is_causal=causal, vocab_size="?"))
    assert "is_causal" not in str(own)
    error = refusal(with_fields(model_type=architecture.model_type, is_causal=not causal))
    assert f"is_causal: clearformer's model supports only {causal}; got {not causal}" in str(error)


GPT2_ALIASES = {
    "hidden_size": ("n_embd", 6),
    "max_position_embeddings": ("n_positions", 5),
    "num_attention_heads": ("n_head", 2),
    "num_hidden_layers": ("n_layer", 2),
}


@pytest.mark.parametrize("alias", GPT2_ALIASES)
def test_a_field_may_have_the_other_name_that_transformers_knows(with_fields: WithFields, alias: str) -> None:
    name, value = GPT2_ALIASES[alias]
    before = read_model(with_fields()).config
    assert read_model(with_fields(**{alias: value})).config == before
    assert read_model(with_fields(**{name: None, alias: value})).config == before


def test_two_names_of_a_field_with_different_values_are_refused(with_fields: WithFields) -> None:
    error = refusal(with_fields(num_attention_heads=3))
    assert isinstance(error, ConfigError)
    assert "num_attention_heads: another name of n_head, which is 2; got 3: delete one" in str(error)


def test_the_name_in_the_file_is_the_one_that_is_told(with_fields: WithFields) -> None:
    error = refusal(with_fields(n_head=None, num_attention_heads=4))
    assert "num_attention_heads: 4 heads do not divide the width of 6" in str(error)


@pytest.mark.parametrize("model_type", ["bart", "marian", "pegasus"])
def test_a_decoder_with_the_heads_of_an_absent_field_is_refused(
    model_type: str, with_fields: WithFields
) -> None:
    """They are 16 there, not as many as the encoder's."""
    error = refusal(with_fields(model_type=model_type, d_model=32, num_attention_heads=4))
    assert "decoder_attention_heads: clearformer's model has one setting" in str(error)
    assert "this and num_attention_heads; got 16 and 4" in str(error)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"dense_act_fn": "silu"},
            "dense_act_fn: by feed_forward_proj=gated-gelu it is 'gelu_new'; got 'silu'",
        ),
        ({"is_gated_act": False}, "is_gated_act: by feed_forward_proj=gated-gelu it is True; got False"),
        ({"dense_act_fn": "gelu_new", "is_gated_act": True}, ""),
    ],
)
def test_another_activation_than_that_of_a_t5s_feed_forward_is_refused(
    fields: dict[str, Any], message: str
) -> None:
    read = partial(T5().read, Fields({"feed_forward_proj": "gated-gelu", **fields}))
    if message:
        with pytest.raises(ConfigError, match=message):
            read()
    else:
        assert read().ffn == GEGLU(approximate="tanh", d_ff=2048, bias=False)


def test_an_empty_rope_scaling_hides_no_rope_parameters() -> None:
    fields = {"rope_scaling": {}, "rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}
    assert Llama().read(Fields(fields)).position == RoPE(theta=77.0)


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_positions_that_are_scaled_are_refused(with_fields: WithFields, name: str) -> None:
    sizes = {"hidden_size": 6, "num_attention_heads": 1, "num_hidden_layers": 1, "intermediate_size": 7}
    folder = with_fields(model_type="llama", **sizes, **{name: {"rope_type": "llama3", "factor": 8.0}})
    error = refusal(folder)
    assert name in str(error)
    assert "'llama3'" in str(error)


# --- the tensors ------------------------------------------------------------------------------------------


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_a_file_that_was_cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    error = refusal(folder)
    assert isinstance(error, CheckpointError)
    assert error.exit_status == 1
    assert str(path) in str(error)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", struct.pack("<Q", 2**60) + b"{}"])
def test_a_file_that_is_no_safetensors(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    assert isinstance(refusal(folder), CheckpointError)


def test_a_tensor_is_missing(folder: Path) -> None:
    error = refusal(change_tensors(folder, lambda tensors: tensors.pop("transformer.h.1.ln_2.bias")))
    assert isinstance(error, CheckpointError)
    assert "transformer.h.1.ln_2.bias of a GPT-2 is missing" in str(error)


def test_a_tensor_too_many(folder: Path) -> None:
    error = refusal(change_tensors(folder, lambda tensors: tensors.update(extra=torch.ones(3))))
    assert "no tensor extra" in str(error)


def test_a_tensor_of_another_shape(with_fields: WithFields) -> None:
    error = refusal(with_fields(n_positions=11))
    assert "transformer.wpe.weight is [5, 6], but by config.json it must be [11, 6]" in str(error)


def test_a_depth_that_the_file_does_not_have_is_not_built(with_fields: WithFields) -> None:
    """It would take all the memory there is."""
    assert "10000000 layers" in str(refusal(with_fields(n_layer=10**7)))


def test_numbers_that_are_quantised(folder: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["transformer.wte.weight"] = tensors["transformer.wte.weight"].to(torch.int8)

    assert "I8" in str(refusal(change_tensors(folder, spoil)))


def test_a_tied_head_that_is_another_matrix(folder: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"] + 1

    assert "lm_head.weight differs from transformer.wte.weight" in str(refusal(change_tensors(folder, spoil)))


# --- what is read all the same ----------------------------------------------------------------------------


def test_a_tied_head_may_stand_there_twice(folder: Path) -> None:
    def repeat(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"].clone()

    before = read_model(folder).weights
    after = read_model(change_tensors(folder, repeat)).weights
    assert before.keys() == after.keys()


@pytest.mark.parametrize("there", ["lm_head.weight", "transformer.wte.weight"])
def test_of_a_tied_tensor_any_name_is_enough(folder: Path, there: str) -> None:
    """Some programs keep that of the head, and transformers reads it."""

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        tensors[there] = tensors.pop("transformer.wte.weight")

    before = read_model(folder).weights
    after = read_model(change_tensors(folder, rename)).weights
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())


def test_names_without_their_prefix_and_old_masks(folder: Path) -> None:
    """As the first GPT-2 was saved."""

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 5, 5)
        tensors["h.1.attn.masked_bias"] = torch.tensor(-1e4)

    before = read_model(folder).weights
    after = read_model(change_tensors(folder, rename)).weights
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())
    assert before.keys() == after.keys()


def test_several_files(folder: Path) -> None:
    before = read_model(folder).weights
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    where = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in tensors if where[name] == file}, folder / file)
    index = folder / "model.safetensors.index.json"

    index.write_text(json.dumps({"weight_map": where}))
    after = read_model(folder).weights
    index.write_text(json.dumps({"weight_map": where | {"extra": "../model-0.safetensors"}}))
    outside = refusal(folder)

    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())
    assert "no file '../model-0.safetensors' beside it" in str(outside)


def test_a_tensor_in_two_files_is_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "model-0.safetensors")
    save_file(
        {"transformer.wte.weight": tensors["transformer.wte.weight"] + 1}, folder / "model-1.safetensors"
    )
    where = dict.fromkeys(tensors, "model-0.safetensors") | {"of": "model-1.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    error = refusal(folder)
    assert "model-1.safetensors: the tensor transformer.wte.weight is in another file" in str(error)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(folder: Path, number: float) -> None:
    error = refusal(
        change_tensors(folder, lambda tensors: tensors["transformer.wte.weight"][3].fill_(number))
    )
    assert isinstance(error, CheckpointError)
    assert "the tensor transformer.wte.weight has numbers that are not finite" in str(error)


def test_the_index_of_an_earlier_save_is_passed_over(folder: Path) -> None:
    """transformers takes away the files that it names, but not the index itself."""
    index = {"weight_map": {"transformer.wte.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_model(folder).weights


def test_half_precision_becomes_float32(folder: Path) -> None:
    def halve(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            tensors[name] = tensors[name].to(torch.bfloat16)

    weights = read_model(change_tensors(folder, halve)).weights
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


def test_a_tensor_that_a_file_may_lack(tmp_path: Path) -> None:
    """BART's bias of the logits, which is zeros where it was not saved."""
    config = ModelConfig(
        family="encoder-decoder",
        vocab_size=13,
        d_model=6,
        n_layers=1,
        max_seq_len=5,
        attention=MultiHead(n_heads=2, qkv_bias=True, output_bias=True),
        placement="post",
        final_norm=False,
        embedding_norm=True,
        head_bias=True,
    )
    write_model(tmp_path, match_architecture(config), weights_of(build(config)), SpecialIds(start=2))
    read = read_model(change_tensors(tmp_path, lambda tensors: tensors.pop("final_logits_bias")))
    assert torch.equal(read.weights["head_bias"], torch.zeros(13))


def test_files_are_read_by_whom_the_umask_says(tmp_path: Path) -> None:
    folder = tmp_path / "written"
    before = os.umask(0o027)
    try:
        folder.mkdir()
        write_model(folder, match_architecture(TINY), weights_of(build(TINY)), SpecialIds())
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o640}


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_a_table_of_sines_that_was_trained_is_refused(placement: str, tmp_path: Path) -> None:
    """Marian and Pegasus: clearformer computes the table, so other values would be passed over."""
    config = ModelConfig(
        family="encoder-decoder",
        vocab_size=13,
        d_model=6,
        max_seq_len=5,
        n_layers=1,
        attention=MultiHead(n_heads=2),
        position=Sinusoidal(interleaved=False),
        placement=placement,
        final_norm=placement == "pre",
        ffn=ReLU(d_ff=7),
    )
    fitted = match_architecture(config)
    write_model(tmp_path, fitted, weights_of(build(config)), SpecialIds(eos=3, start=2))
    file = tmp_path / "model.safetensors"
    tensors = load_file(file) | fitted.architecture.tables(fitted.config)
    name = "model.decoder.embed_positions.weight"

    save_file(tensors | {name: tensors[name].bfloat16()}, file)
    read_model(tmp_path)
    save_file(tensors | {name: tensors[name] + 0.01}, file)
    assert re.search(rf"{name} does not hold the sines and cosines", str(refusal(tmp_path)))


@pytest.mark.parametrize("other", ["BertForTokenClassification", "BertForMultipleChoice"])
def test_a_bert_with_another_head_is_refused(other: str) -> None:
    """Its tensors may have the names of a classifier of texts."""
    for known in (None, ["BertForSequenceClassification"], ["BertModel"]):
        assert Bert().read(Fields({"architectures": known})).family == "encoder"
    with pytest.raises(ConfigError, match=f"architectures: clearformer reads .*; got .*{other}"):
        Bert().read(Fields({"architectures": [other]}), frozenset({"classifier.weight"}))


def test_names_of_the_first_berts(tmp_path: Path) -> None:
    config = ModelConfig(
        family="encoder",
        vocab_size=13,
        d_model=6,
        n_layers=1,
        max_seq_len=5,
        attention=MultiHead(n_heads=2, qkv_bias=True, output_bias=True),
        placement="post",
        final_norm=False,
        embedding_norm=True,
        n_token_types=2,
        masked_head="transform",
        head_bias=True,
    )
    write_model(tmp_path, match_architecture(config), weights_of(build(config)), SpecialIds())

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "LayerNorm" in name]:
            older = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            )
            tensors[older] = tensors.pop(name)
        tensors["cls.seq_relationship.weight"] = torch.ones(2, 6)
        tensors["bert.pooler.dense.bias"] = torch.ones(6)

    before = read_model(tmp_path).weights
    after = read_model(change_tensors(tmp_path, rename)).weights
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())


def test_sizes_beyond_all_measure_are_refused(with_fields: WithFields) -> None:
    assert "n_positions: expected a whole number from 1 to" in str(refusal(with_fields(n_positions=10**15)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_embd": 2**25}, "33,554,432 for model.d_model"),
        ({"vocab_size": 2**25}, "33,554,432 for model.vocab_size"),
        ({"n_inner": 2**25}, "33,554,432 for model.ffn.d_ff"),
        ({"n_embd": 2**25, "n_head": 2**25}, "for model.d_model"),
    ],
)
def test_sizes_that_no_tensor_has_are_not_built(
    with_fields: WithFields, fields: dict[str, int], message: str
) -> None:
    error = refusal(with_fields(**fields))
    assert isinstance(error, CheckpointError)
    assert message in str(error)


def test_a_table_of_positions_that_would_fill_the_memory_is_not_made(with_fields: WithFields) -> None:
    """No tensor tells how long it is: it would be made when the run is opened."""
    sizes = {"hidden_size": 6, "num_attention_heads": 1, "num_hidden_layers": 1, "intermediate_size": 7}
    folder = with_fields(model_type="llama", **sizes, max_position_embeddings=2**26)
    assert "67,108,864 positions, which need a table of 6 numbers each" in str(refusal(folder))


def test_sizes_that_do_not_fit_each_other_are_told_with_their_file(with_fields: WithFields) -> None:
    sizes = {"hidden_size": 6, "num_attention_heads": 3, "num_hidden_layers": 1, "intermediate_size": 7}
    folder = with_fields(model_type="llama", **sizes, num_key_value_heads=2)
    assert str(refusal(folder)).startswith(f"{folder / 'config.json'}: model.attention.n_kv_heads: 2 key")


@pytest.mark.parametrize("value", [5, 2.5, True, "full_attention", {"full_attention": 1}])
def test_layer_types_that_are_no_list(with_fields: WithFields, value: Any) -> None:
    assert "layer_types" in str(refusal(with_fields(model_type="qwen3", layer_types=value)))


@pytest.mark.parametrize("value", ["x" * 5000, ["x"] * 5000, {"x": "y" * 5000}])
@pytest.mark.parametrize("field", ["n_embd", "model_type", "activation_function", "scale_attn_weights"])
def test_a_value_without_end_is_cut_in_the_message(with_fields: WithFields, field: str, value: Any) -> None:
    error = refusal(with_fields(**{field: value}))
    assert field in str(error)
    assert len(str(error)) < 600


def test_half_a_character_is_no_json(with_fields: WithFields) -> None:
    assert "half of a surrogate pair" in str(refusal(with_fields(activation_function="\ud800")))


@pytest.mark.parametrize("name", ["x" * 300, "..", "", "model-1.safetensors/", "\0"])
def test_a_file_s_name_that_is_none(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"transformer.wte.weight": name}}))
    assert "there is no file" in str(refusal(folder))


VALUES = (None, 0, -1, 1, 5, 2**25, 10**9, 10**30, -0.5, 1e308, math.inf, math.nan, True, False)
VALUES = (*VALUES, "", "x", "\0", "x" * 3000, [], {}, [5], ["x"], {"0": 5}, [[[]]])


@pytest.mark.parametrize(
    "architecture", ["gpt2", "llama", "mistral", "qwen3", "gpt_neox", "bloom", "bert", "bart", "t5"]
)
def test_whatever_a_field_says_it_is_read_or_refused_in_one_line(folder: Path, architecture: str) -> None:
    """Of each architecture all fields that it writes, each with every third value; the tensors are a GPT-2's."""
    kinds = {each.model_type: each for each in ARCHITECTURES}
    fields = kinds[architecture].write(TINY) | {"rope_scaling": None, "layer_types": None, "id2label": None}
    path = folder / "config.json"
    for number, name in enumerate(fields):
        for value in VALUES[number % 3 :: 3]:
            path.write_text(json.dumps(fields | {"model_type": architecture, name: value}))
            message = outcome(folder)
            assert "\n" not in message, (name, value)
            assert len(message) < 1000, (name, value)


def outcome(folder: Path) -> str:
    """What a folder is refused for, or nothing."""
    try:
        read_model(folder)
    except ClearformerError as error:
        return str(error)
    return ""


def with_tokenizer(folder: Path, **generation: Any) -> Path:
    """A folder that has words for the model's ids, and settings of what transformers writes."""
    (folder / "generation_config.json").write_text(json.dumps(generation))
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"t{i}": i for i in range(13)}, unk_token="t0")
    )
    backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(
    ("of_config", "of_generation", "eos", "told"),
    [
        ([3, 5], None, 3, "eos_token_id names the tokens 3, 5; a text ends at 3 alone"),
        (3, [5, 3], 3, "eos_token_id names the tokens 3, 5; a text ends at 3 alone"),
        (None, 5, 5, ""),
        (3, 3, 3, ""),
    ],
)
def test_a_text_ends_at_the_first_token_that_the_files_name(
    with_fields: WithFields,
    caplog: pytest.LogCaptureFixture,
    of_config: Any,
    of_generation: Any,
    eos: int,
    told: str,
) -> None:
    folder = with_tokenizer(with_fields(eos_token_id=of_config), eos_token_id=of_generation)
    assert read_tokenizer(folder, read_fields(folder), TINY).eos_id == eos
    assert (told in caplog.text) if told else not caplog.text


@pytest.mark.parametrize(
    ("of_config", "of_generation", "told"),
    [
        ({"forced_bos_token_id": 9}, {}, "transformers follows forced_bos_token_id=9 when it writes a text"),
        ({}, {"forced_bos_token_id": 0, "min_length": 5}, "follows forced_bos_token_id=0, min_length=5 when"),
        ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 3}, "follows no_repeat_ngram_size=3 when"),
        ({"no_repeat_ngram_size": 0, "min_length": 0}, {"forced_bos_token_id": None}, ""),
        (
            {},
            {"suppress_tokens": [5], "min_new_tokens": 3},
            "follows min_new_tokens=3, suppress_tokens=[5] when",
        ),
        ({}, {"suppress_tokens": [], "begin_suppress_tokens": None}, ""),
    ],
)
def test_what_steers_the_texts_of_transformers_alone_is_told(
    with_fields: WithFields,
    caplog: pytest.LogCaptureFixture,
    of_config: dict[str, Any],
    of_generation: dict[str, Any],
    told: str,
) -> None:
    folder = with_tokenizer(with_fields(**of_config), **of_generation)
    read_tokenizer(folder, read_fields(folder), TINY)
    assert (told in caplog.text) if told else not caplog.text


@pytest.mark.parametrize(("family", "told"), [("encoder-decoder", False), ("decoder", True)])
def test_a_translation_has_no_padding_here_either(
    with_fields: WithFields, caplog: pytest.LogCaptureFixture, family: Any, told: bool
) -> None:
    folder = with_tokenizer(with_fields(pad_token_id=2, eos_token_id=1), suppress_tokens=[2])
    read_tokenizer(folder, read_fields(folder), TINY.replace(family=family))
    assert ("suppress_tokens=[2]" in caplog.text) == told


@pytest.mark.parametrize("document", [{}, {"model": None}, {"model": 5}])
def test_a_tokenizer_without_a_model_is_refused(folder: Path, document: dict[str, Any]) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: JSON, but not a tokenizer"):
        read_tokenizer(folder, read_fields(folder), TINY)


@pytest.mark.parametrize(("field", "n_kv_heads"), [({}, 8), ({"num_key_value_heads": None}, 16)])
def test_heads_of_keys_that_are_null_are_as_many_as_those_of_queries(
    field: dict[str, Any], n_kv_heads: int
) -> None:
    """As in transformers, where only an absent field has the class's number."""
    config = Mistral().read(Fields({"hidden_size": 64, "num_attention_heads": 16, **field}))
    assert isinstance(config.attention, MultiHead)
    assert config.attention.n_key_value_heads == n_kv_heads


def test_a_damaged_record_costs_no_export(tmp_path: Path) -> None:
    folder, model = RunFolder(tmp_path / "run"), build(TINY)
    checkpoint = step_folder(folder.checkpoints, 0)
    checkpoint.mkdir(parents=True)
    save_file(dict(model.state_dict()), checkpoint / MODEL)
    run = Run(model, CharTokenizerSpec().train(["ab"]), run_config(TINY), folder=folder)
    folder.metrics_file.write_text("{]\n")
    with pytest.raises(RunError, match="line 1"):
        read_metrics(folder.metrics_file)
    assert held_out_of(run) is None
