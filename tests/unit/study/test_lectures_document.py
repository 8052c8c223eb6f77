"""docs/lectures.md against the package: the studies, files, presets and settings that it names exist."""

import re
from pathlib import Path

import pytest

import clearformer
from clearformer.model.attention import MultiHead
from clearformer.model.feedforward import ReLU
from clearformer.presets import PRESETS
from clearformer.resolving import resolve_settings, split_arguments
from clearformer.study.lectures import studies

PACKAGE = Path(clearformer.__file__).parent
DOCUMENT = PACKAGE.parents[1] / "docs" / "lectures.md"
pytestmark = pytest.mark.skipif(not DOCUMENT.exists(), reason="the documents are not installed")


def code() -> list[str]:
    """The pieces of code in the document's tables."""
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
    return [piece for row in rows for piece in re.findall(r"`([^`]+)`", row)]


def test_every_file_is_there() -> None:
    paths = [piece for piece in code() if re.fullmatch(r"[a-z0-9_]+/[a-z0-9_/]*(\.py)?", piece)]
    assert len(paths) > 40
    assert [path for path in paths if not (PACKAGE / path).exists()] == []


def test_every_study_of_the_lectures_is_named_and_exists() -> None:
    named = (
        {piece for piece in code() if re.fullmatch(r"[a-z]+(-[a-z]+)*", piece)}
        - PRESETS.keys()
        - {"placement"}
    )
    assert named <= studies().keys()
    assert studies().keys() <= named | set(re.findall(r"`([a-z-]+)`", DOCUMENT.read_text()))


def test_the_settings_are_those_of_lecture_001() -> None:
    (command,) = (piece for piece in code() if piece.startswith("clearformer train minigpt model."))
    preset, layers = split_arguments(command.split()[2:])
    model = resolve_settings(preset, layers).model
    assert (model.placement, model.ffn.kind, model.position.kind) == ("post", "relu", "learned")
    attention, ffn = model.attention, model.ffn
    assert isinstance(attention, MultiHead)
    assert isinstance(ffn, ReLU)
    assert (attention.qk_norm.kind, model.logit_soft_cap, model.embedding_norm) == ("none", None, False)
    assert (attention.qkv_bias, attention.output_bias, ffn.bias, model.tie_embeddings) == (
        True,
        True,
        True,
        False,
    )


def test_the_presets_exist() -> None:
    for row in DOCUMENT.read_text().splitlines():
        for name in re.findall(r"preset `([^`]+)`|clearformer train (\w+)`", row):
            assert (name[0] or name[1]) in PRESETS
