"""Settings of section `data` that name something: nothing is no name, whatever the kind of data."""

import pytest

from clearformer.config import Spec, resolve
from clearformer.data import LabelledData, PairsData, TextData
from clearformer.errors import ConfigError

KINDS: list[type[Spec]] = [TextData, PairsData, LabelledData]
NAMES = [
    (spec, name)
    for spec in KINDS
    for name, field in spec.model_fields.items()
    if name not in ("kind", "order", "labels", "too_long") and "str" in str(field.annotation)
]


def test_every_setting_that_is_a_name_is_tried_below() -> None:
    assert {(spec.__name__, name) for spec, name in NAMES} == {
        *(("TextData", name) for name in ("name", "path", "val_path", "test_path", "field")),
        *(("PairsData", name) for name in ("name", "path", "source", "target", "languages")),
        *(("PairsData", name) for name in ("val_path", "val_source", "val_target")),
        *(("LabelledData", name) for name in ("name", "path", "val_path", "test_path", "columns")),
        *(("LabelledData", name) for name in ("text_field", "label_field")),
    }


@pytest.mark.parametrize(("spec", "name"), NAMES)
def test_nothing_is_no_name(spec: type[Spec], name: str) -> None:
    """A variable of the shell that is not set must not stand for the present folder, or for a built-in."""
    with pytest.raises(ConfigError, match=f"^{name}") as caught:
        resolve(spec, {name: ""})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("spec", "name"), [each for each in NAMES if each[1].endswith("path")])
@pytest.mark.parametrize("value", ["a\0b", "caf\udce9.txt"])
def test_what_no_name_of_a_file_can_be_is_refused(spec: type[Spec], name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: 'a") as caught:
        resolve(spec, {name: value.replace("c", "a", 1)})
    str(caught.value).encode()
