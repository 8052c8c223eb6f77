"""Who is compared with, and one of our models as one of transformers'."""

from pathlib import Path
from typing import Any

import pytest
import torch

from clearformer.bench import peers
from clearformer.bench.peers import absence, asked_for, in_transformers
from clearformer.errors import UserError
from clearformer.model import Decoder, ModelConfig, build
from clearformer.presets import preset

KNOWN = ("nanogpt", "transformers", "litgpt")


def checkout(tmp_path: Path) -> Path:
    (tmp_path / "train.py").touch()
    return tmp_path


def test_all_are_asked_where_none_is_named() -> None:
    assert asked_for([], KNOWN) == dict.fromkeys(KNOWN)
    assert asked_for(None, KNOWN) == {}


def test_those_named_are_asked_each_in_its_folder(tmp_path: Path) -> None:
    folder = checkout(tmp_path)
    assert asked_for(["transformers", f"nanogpt={folder}"], KNOWN) == {
        "transformers": None,
        "nanogpt": str(folder),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nanogtp", "--against nanogtp: unknown peer; choose from nanogpt, transformers, litgpt"),
        ("transformers=here", "transformers is a package, not a folder; give --against transformers"),
        ("nanogpt=/nowhere", "there is no train.py in /nowhere"),
    ],
)
def test_what_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        asked_for([text], KNOWN)


def test_who_is_absent_and_how_to_have_it() -> None:
    assert absence("transformers") is None
    assert absence("nanogpt", "folder") is None
    no_folder, no_package = absence("nanogpt"), absence("no_such_package")
    assert no_folder is not None
    assert "--against nanogpt=FOLDER" in no_folder.reason
    assert no_package is not None
    assert no_package.reason.endswith("-m pip install no_such_package")


def model_of(name: str, **settings: object) -> Decoder:
    config = preset(name).model.replace(vocab_size=19, d_model=16, n_layers=2, max_seq_len=11, **settings)
    return build(config).eval()


def test_a_model_that_transformers_has_keeps_its_weights() -> None:
    model = model_of("gpt2", attention=preset("translate").model.attention)
    theirs, note = in_transformers(model)
    tokens = torch.randint(19, (2, 7))
    assert note == ""
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(tokens).logits, model(tokens), atol=1e-5, rtol=0)


def test_one_that_it_has_not_is_stood_in_for_by_a_gpt2_of_its_sizes() -> None:
    model = model_of("lecture")
    theirs, note = in_transformers(model)
    assert "a GPT-2 of the same sizes" in note
    assert "model." in note  # the setting that does not fit
    sizes: Any = theirs.config
    assert (sizes.n_layer, sizes.n_embd, sizes.n_head, sizes.n_positions, sizes.vocab_size) == (
        2,
        16,
        1,
        11,
        19,
    )


def test_a_plain_config_is_like_itself() -> None:
    gpt2 = ModelConfig.model_validate(preset("gpt2").model.model_dump() | {"vocab_size": 19})
    assert peers.like_gpt2(gpt2).replace(init=gpt2.init) == gpt2
