"""What becomes of each preset's model in transformers: which architecture it is, or which settings stand between.

Small models of the presets' kinds, with random weights, as runs with the presets' tokenizers. What is compared is what
a user has: the exported folder, loaded by transformers.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from clearformer.config import explicit, parse_override, resolve
from clearformer.data import LabelledData
from clearformer.decoding import generate
from clearformer.decoding.text.translations import translate
from clearformer.errors import ConfigError
from clearformer.interop import to_hf
from clearformer.interop.mapping.matching import match_architecture
from clearformer.model import build
from clearformer.presets import PRESETS, preset
from clearformer.run import Run, from_hf, load
from clearformer.runs.folders import new_run
from clearformer.text import specials_of
from clearformer.training.config import RunConfig
from clearformer.training.store.checkpoint import Checkpoint, Progress, save_checkpoint
from clearformer.training.store.state import weights_of

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

CORPUS = "the cat sat on the mat, and the other cat slept beside it\n" * 9
TEXTS = ["the cat sat", "a other mat", "then it slept the"]

FIT = {
    "quick": "NanoChat",
    "quick tokenizer.kind=byte": "NanoChat",
    "quick tokenizer=bpe tokenizer.vocab_size=280": "NanoChat",
    "quick model.attention.n_kv_heads=1 model.logit_soft_cap=none model.tie_embeddings=true": "NanoChat",
    "auto": "NanoChat",
    "minigpt": "GPT-2",
    "nanogpt-cpu": "GPT-2",
    "shakespeare-gpu": "GPT-2",
    "gpt2 tokenizer=byte": "GPT-2",  # its own vocabulary is not on every machine
    "translate": "Pegasus",
    "transformer-base": "Marian",
    "masked": "BERT",
    "classify": "BERT",
    # What makes a T5 of the two: no rotation, whose place learned numbers for distances take, and no biases.
    "multi30k model.attention.qk_norm=none model.position=relative": "T5",
    "multi30k model.attention.qk_norm=none model.position=relative model.scale_embeddings=false": "T5",
    "translate model.norm=rmsnorm model.position=relative model.ffn.bias=false"
    " model.attention.qkv_bias=false model.attention.output_bias=false": "T5",
}
FIT_NOTHING = {
    "lecture": "model.attention.output=false does not fit: the nearest architecture in transformers, GPT-2, "
    "has true there, and model.position.kind=learned instead of none, and model.norm.kind=layernorm instead of "
    "none",
    "multi30k": "model.attention.qk_norm.kind=rmsnorm does not fit: the nearest architecture in transformers, "
    "T5, has none there, and model.position.kind=relative instead of rope",
}
STD = {
    "T5": 0.2,
    "Marian": 0.6,
}  # of what is added to the weights, so that different texts are written of texts
SMALL = (
    "model.d_model=24",
    "model.n_layers=2",
    "model.max_seq_len=64",
    "model.attention.n_heads=2",
    "model.ffn.d_ff=17",
)


def settings_of(case: str, *more: str) -> RunConfig:
    name, *overrides = case.split()
    layers = [parse_override(each) for each in (*overrides, *more)]
    return resolve(RunConfig, explicit(preset(name)), *layers)


def test_every_preset_s_outcome_is_stated() -> None:
    assert {case.split()[0] for case in (*FIT, *FIT_NOTHING)} == set(PRESETS)


@pytest.mark.parametrize("case", FIT)
def test_at_its_full_size_it_is_that_architecture(case: str) -> None:
    model = settings_of(case).model
    classes = 3 if case == "classify" else None
    assert (
        match_architecture(model.replace(vocab_size=300, n_classes=classes)).architecture.title == FIT[case]
    )


@pytest.mark.parametrize("case", FIT_NOTHING)
def test_what_stands_between_is_told(case: str) -> None:
    with pytest.raises(ConfigError) as caught:
        match_architecture(settings_of(case).model.replace(vocab_size=300))
    assert str(caught.value) == FIT_NOTHING[case]


# --- the folder -------------------------------------------------------------------------------------------


@pytest.fixture
def run(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that was not trained, its weights so large that each of them shows."""
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    config = settings_of(case, *SMALL)
    spec = config.tokenizer
    if hasattr(spec, "vocab_size"):
        spec = spec.replace(vocab_size=280)
    tokenizer = spec.train([CORPUS], specials=specials_of(config.model.family))
    classes = 3 if isinstance(config.data, LabelledData) else None
    model = config.model.replace(vocab_size=tokenizer.vocab_size, n_classes=classes)
    if classes:
        config = config.replace(data=config.data.replace(labels=("a", "b", "c")))
    torch.manual_seed(3)  # with some weights the same is written of every text
    network = build(model)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(STD.get(FIT[case], 0.3) * torch.randn_like(parameter))
        if model.scale_embeddings:
            network.embed.weight.mul_(0.3)  # or every token would be followed by itself
    folder = new_run("small")
    folder.create(config.replace(model=model, tokenizer=spec), tokenizer, text_sha256="")
    save_checkpoint(folder.checkpoints, Checkpoint(Progress(step=1, val_loss=2.5), weights_of(network), {}))
    return load("small", device="cpu")


@torch.no_grad()
@pytest.mark.parametrize("case", FIT)
def test_transformers_computes_and_writes_the_same(run: Run, case: str, tmp_path: Path) -> None:
    fitted = to_hf(run, tmp_path / "out")
    theirs = getattr(transformers, fitted.class_name).from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    back = from_hf(tmp_path / "out", "back")

    V, family = run.tokenizer.vocab_size, run.config.model.family
    texts = [torch.randint(V, (3, n)) for n in ((13, 11) if family == "encoder-decoder" else (13,))]
    expected = theirs(texts[0], **({"decoder_input_ids": texts[1]} if len(texts) > 1 else {})).logits
    torch.testing.assert_close(run.model(*texts), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(back.model(*texts), expected, rtol=1e-5, atol=1e-5)
    assert expected.std() > 0.1, "logits so small would agree whatever the models do"

    wanted = fitted.weights(weights_of(run.model))
    found = weights_of(back.model)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)

    for text in TEXTS:
        plain = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert run.tokenizer.encode(text).tolist() == plain == back.tokenizer.encode(text).tolist()
    if family != "encoder":
        expected_texts = their_texts(tokenizer, theirs)
        assert our_texts(run) == expected_texts == our_texts(back)
        assert len({tuple(text) for text in expected_texts}) > 1


def our_texts(run: Run) -> list[list[int]]:
    """What is written of each text, greedily."""
    if run.config.model.family == "encoder-decoder":
        return [best.tokens for [best] in translate(run, TEXTS, beams=1, max_new_tokens=12)]
    return [sample.tokens for sample in generate(run, TEXTS, max_new_tokens=12, temperature=0.0)]


def their_texts(tokenizer: Any, model: Any) -> list[list[int]]:
    found = []
    for text in TEXTS:
        inputs = tokenizer(text, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        written = model.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=12)[0].tolist()
        found.append(written[1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1] :])
    return found
