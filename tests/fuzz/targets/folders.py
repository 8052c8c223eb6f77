"""Folders of Hugging Face: config.json, the tokenizer's files, and the header of the tensors."""

import random
import shutil
from pathlib import Path
from typing import Any

from clearformer.interop.mapping.matching import match_architecture
from clearformer.interop.tokenizers.folder import tokenizer_documents
from clearformer.interop.writing import SpecialIds, write_json, write_model
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.feedforward import GELU, ReLU, SwiGLU
from clearformer.model.norms import RMSNorm
from clearformer.model.positions import ALiBi, Learned, RoPE, Sinusoidal
from clearformer.model.relative_positions import Relative
from clearformer.text import ByteTokenizerSpec, specials_of
from clearformer.training.store.state import weights_of

from ..cases import Case, Violation
from ..mutations import draw_file_step, spoil_file
from ..oracle import call, contents, unchanged

SIZES: dict[str, Any] = {"d_model": 12, "n_layers": 1, "max_seq_len": 8, "attention": MultiHead(n_heads=2)}
POST: dict[str, Any] = {"placement": "post", "final_norm": False}
BERT: dict[str, Any] = {
    "family": "encoder",
    **POST,
    "embedding_norm": True,
    "head_bias": True,
    "n_token_types": 2,
}
PAIRS: dict[str, Any] = {"family": "encoder-decoder"}
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"position": Learned(), "ffn": GELU(approximate="tanh")},
    "llama": {"position": RoPE(), "norm": RMSNorm(), "ffn": SwiGLU(d_ff=7), "tie_embeddings": False},
    "mistral": {
        **{"position": RoPE(), "norm": RMSNorm(), "ffn": SwiGLU(d_ff=7)},
        "attention": MultiHead(n_heads=2, n_kv_heads=1, d_head=4, window=3),
    },
    "neox": {"position": RoPE(fraction=0.4, theta=77.0), "parallel": True, "ffn": GELU(d_ff=5)},
    "bloom": {"position": ALiBi(), "embedding_norm": True, "ffn": GELU(approximate="tanh")},
    "bert": BERT | {"masked_head": "transform"},
    "bert of classes": BERT | {"n_classes": 3, "head_bias": False, "ffn": ReLU()},
    "marian": PAIRS | POST | {"position": Sinusoidal(interleaved=False), "scale_embeddings": True},
    "bart": PAIRS | POST | {"embedding_norm": True},
    "t5": PAIRS
    | {
        "position": Relative(n_buckets=8, max_distance=11),
        "attention": MultiHead(n_heads=3, d_head=5, scale=False),
        "norm": RMSNorm(),
        "ffn": ReLU(bias=False),
        "scale_logits": True,
    },
}


class Folders:
    """Imported, and if imported used once. A step is a file's name and what is done to it."""

    name = "folders"

    def prepare(self, originals: Path) -> None:
        """Write a tiny model of each architecture as transformers does."""
        for name, settings in MODELS.items():
            write_folder(originals / name, ModelConfig(**(SIZES | settings)))

    def draw(self, rng: random.Random, originals: Path) -> Case:
        """One to three changes of the files of a model, of config.json most often."""
        base = rng.choice(list(MODELS))
        steps = []
        for _ in range(rng.choice([1, 1, 2, 3])):
            files = sorted(path.name for path in (originals / base).iterdir())
            file = "config.json" if rng.random() < 0.5 else rng.choice(files)
            steps.append([file, *draw_file_step(rng, originals / base / file)])
        return Case(self.name, base, tuple(steps))

    def run(self, case: Case, originals: Path, place: Path) -> None:
        """Import the folder."""
        folder = place / "model"
        shutil.copytree(originals / case.base, folder)
        for file, *step in case.steps:
            spoil_file(folder / file, step)
        before = contents(folder)
        answer = call("import", str(folder), "--run", "made")
        unchanged(before, folder)
        if answer.status != 0:
            if left := list((place / "runs").glob("*")):
                raise Violation(f"it was refused, and left {left[0].name}")
            return
        call(*self.used(case.base))

    def used(self, base: str) -> list[str]:
        """A command that uses a model of this architecture."""
        if "family" not in MODELS[base]:
            return ["generate", "made", "--prompt", "the", "--max-new-tokens", "2"]
        if MODELS[base]["family"] == "encoder-decoder":
            return ["translate", "made", "--max-new-tokens", "2"]
        return ["classify", "made"] if "n_classes" in MODELS[base] else ["runs", "--json"]


def write_folder(folder: Path, config: ModelConfig) -> None:
    """A model with random weights and a tokenizer of bytes."""
    folder.mkdir()
    tokenizer = ByteTokenizerSpec().train((), specials_of(config.family))
    config = config.replace(vocab_size=tokenizer.vocab_size)
    ids = SpecialIds(tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.bos_id)
    labels = None if config.n_classes is None else [f"class {number}" for number in range(config.n_classes)]
    write_model(folder, match_architecture(config), weights_of(build(config)), ids, labels)
    for name, document in tokenizer_documents(tokenizer, config).items():
        write_json(folder / name, document)
