import pytest

from clearformer.config import resolve
from clearformer.data.labelled.config import LabelledData
from clearformer.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "sst2", "path": "a.tsv"}, "name='sst2' and path='a.tsv' are both set"),
        ({"val_path": "v.tsv"}, "val_path='v.tsv' is for your own texts: set path=FILE too"),
        ({"name": "trec", "text_field": "question"}, "the built-in 'trec' has its own"),
        ({"path": "a.tsv", "val_path": "v.tsv", "val_fraction": 0.2}, "val_fraction=0.2 has no effect"),
        ({"path": "a.tsv", "text_field": "label"}, "text_field and label_field are both 'label'"),
        ({"path": "a.tsv", "columns": "text,class"}, "columns='text,class' must have 'label' once"),
        ({"path": "a.tsv", "columns": "text,label,text"}, "must have 'text' once"),
        ({"labels": ["a"]}, "give two or more labels, all different"),
        ({"labels": ["a", "b", "a"]}, "give two or more labels, all different"),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(LabelledData, settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_short_name() -> None:
    assert LabelledData().label == "languages"
    assert LabelledData(name="trec").label == "trec"
    assert LabelledData(path="some/reviews.train.tsv.gz").label == "reviews"


def test_the_share_held_out_is_the_decimal_that_was_written() -> None:
    assert LabelledData().held_out * 10 == 1
    assert LabelledData(val_fraction=0.3).held_out * 10 == 3
    assert LabelledData(path="a.tsv", val_path="b.tsv").held_out == 0
