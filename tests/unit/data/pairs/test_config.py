from fractions import Fraction
from typing import Any

import pytest
from pydantic import TypeAdapter

from clearformer.config import Spec, resolve
from clearformer.data import Data, PairsData, TextData, kind_of
from clearformer.errors import ConfigError


class Run(Spec):
    data: Data = TextData()


def pairs(**settings: Any) -> PairsData:
    return resolve(PairsData, settings)


def test_without_settings_the_pairs_are_dates_in_french_and_english() -> None:
    config = PairsData()
    assert config.built_in == "dates"
    assert config.language_pair == ("fr", "en")
    assert config.held_out() == {"val": Fraction(2, 100)}
    assert config.label == "dates-fr-en"


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({"name": "multi30k"}, "multi30k-en-de"),
        ({"name": "dates", "languages": "de-pt_BR"}, "dates-de-pt_BR"),
        ({"path": "/some/where/my.pairs.tsv"}, "my"),
        ({"source": "a/train.en.gz", "target": "a/train.de.gz", "languages": "en-de"}, "train-en-de"),
    ],
)
def test_the_label_names_the_pairs_and_their_languages(settings: dict, label: str) -> None:
    assert pairs(**settings).label == label


def test_every_kind_of_data_is_told_by_its_kind() -> None:
    read = TypeAdapter(Data).validate_python
    assert [type(read({"kind": kind})).__name__ for kind in ("text", "pairs", "labelled")] == [
        "TextData",
        "PairsData",
        "LabelledData",
    ]
    assert resolve(Run, {"data": {"kind": "pairs", "size": 11}}).data == PairsData(size=11)


def test_a_spec_reads_back_from_what_it_was_written_as() -> None:
    config = pairs(source="a", target="b", val_path="c", test_fraction=0.1, max_length=7)
    assert PairsData.model_validate(config.model_dump()) == config


def test_held_out_shares_are_the_decimals_that_were_written() -> None:
    own = pairs(path="x", val_fraction=0.1, test_fraction=0.3)
    assert own.held_out() == {"val": Fraction(1, 10), "test": Fraction(3, 10)}
    assert pairs(path="x", val_fraction=0).held_out() == {}
    assert pairs(path="x", val_path="y").held_out() == {}
    assert pairs(name="multi30k").held_out() == {}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"name": "dates", "path": "x"}, "name='dates' and path='x' are both set"),
        ({"path": "x", "source": "y", "target": "z"}, "path='x' and source='y' are both set"),
        ({"source": "x"}, "source='x' needs target too"),
        ({"path": "x", "val_target": "y"}, "val_target='y' needs val_source too"),
        ({"path": "x", "val_path": "y", "val_source": "s", "val_target": "t"}, "are both set"),
        ({"val_path": "y"}, "val_path and val_source are for your own pairs"),
        (
            {"path": "x", "size": 100},
            "size=100 has no effect: it is the number of pairs that name='dates' makes",
        ),
        ({"name": "multi30k", "size": 100}, "size=100"),
        ({"name": "multi30k", "val_fraction": 0.1}, "val_fraction=0.1 has no effect: .* multi30k's own"),
        ({"name": "multi30k", "test_fraction": 0.1}, "test_fraction=0.1 has no effect"),
        ({"path": "x", "val_path": "y", "val_fraction": 0.1}, "has no effect: the validation pairs are y"),
        ({"path": "x", "val_fraction": 0.6, "test_fraction": 0.4}, "leave nothing to train on"),
        ({"languages": "fr"}, "languages"),
        ({"size": 9}, "10 or more"),
        ({"max_length": 0}, "max_length"),
        ({"pth": "x"}, "did you mean 'path'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        pairs(**settings)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"name": "dates"}, "pairs"),
        ({"name": "multi30k", "max_length": 7}, "pairs"),
        ({"name": "shakespeare"}, "text"),
        ({"name": "languages"}, "labelled"),
        ({"source": "a", "target": "b"}, "pairs"),
        ({"path": "a", "label_field": "b"}, "labelled"),
        ({"path": "a", "order": "epochs"}, "text"),
        ({"path": "a"}, None),
        ({}, None),
        ({"kind": "pairs", "path": "a"}, "pairs"),
        ({"name": "unheard of"}, None),
        ({"order": "epochs", "target": "b"}, None),
    ],
)
def test_settings_say_the_kind_they_are_of(settings: dict, kind: str | None) -> None:
    assert kind_of(settings) == kind
