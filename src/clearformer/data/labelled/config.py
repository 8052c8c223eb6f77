"""The labelled texts that a classifier learns from, and how some are held out."""

from fractions import Fraction
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from clearformer.config import Name, PathName
from clearformer.data.config import DataSpec, Form, exact

DEFAULT_VAL_FRACTION = 0.1


class LabelledData(DataSpec):
    """Section `data` of a run that classifies: texts, each with one label.

    `name` is a built-in (languages, sst2, agnews, trec), `path` a file of your own: TSV, CSV or JSONL, plain or gzip;
    with neither, the data are `languages`. The first line of a TSV or CSV names its columns. If the files have no such
    line, `columns` names them for all files, in order ("text,label"). `text_field` and `label_field` are the columns
    or JSONL fields to read.

    Held-out texts come from files of their own (`val_path`, `test_path`), or are about `val_fraction` of the texts (0.1
    if not given; 0 for none). Each text's own content decides whether it is held out (see `holding_out`), so adding a
    text moves no other one, and a text that occurs twice is never on both sides. Built-in texts with a validation split
    of their own, such as sst2, keep it and take no `val_fraction`.

    `labels` are the classes in the order of their ids. By default they are the labels of the training texts, sorted.

    A text with more tokens than the model has positions is an error; `too_long="truncate"` truncates it instead.
    """

    form: ClassVar[Form] = "labelled"
    made_by: ClassVar[str] = "labelled_texts"
    default_name: ClassVar[str] = "languages"

    kind: Literal["labelled"] = "labelled"
    name: Name | None = None
    path: PathName | None = None
    val_path: PathName | None = None
    test_path: PathName | None = None
    val_fraction: float | None = Field(default=None, ge=0, lt=1)
    text_field: Name = "text"
    label_field: Name = "label"
    columns: Name | None = None
    labels: tuple[str, ...] | None = None
    too_long: Literal["refuse", "truncate"] = "refuse"

    @model_validator(mode="after")
    def _nothing_without_effect(self) -> Self:
        if self.path is None:
            fields = type(self).model_fields
            for field in ("val_path", "test_path", "text_field", "label_field", "columns"):
                if getattr(self, field) != fields[field].default:
                    given = f"{field}={getattr(self, field)!r}"
                    if self.makes_its_own:
                        raise ValueError(
                            f"{given} is for texts in files: kind={self.kind} makes its own; remove it"
                        )
                    raise ValueError(
                        f"{given} is for your own texts: set path=FILE too; the built-in {self.label!r} has its own"
                    )
        if self.val_path is not None and self.val_fraction is not None:
            raise ValueError(
                f"val_fraction={self.val_fraction} has no effect: the validation texts come from {self.val_path}"
            )
        return self

    @model_validator(mode="after")
    def _two_columns(self) -> Self:
        if self.text_field == self.label_field:
            raise ValueError(
                f"text_field and label_field are both {self.text_field!r}: name two different columns"
            )
        names = self.column_names
        for field in ("text_field", "label_field"):
            if names is not None and names.count(getattr(self, field)) != 1:
                raise ValueError(
                    f"columns={self.columns!r} must have {getattr(self, field)!r} once: it lists the columns of a "
                    f"file without a header in order, {field} among them"
                )
        return self

    @field_validator("labels")
    @classmethod
    def _several_labels(cls, labels: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if labels is not None and (len(labels) < 2 or len(set(labels)) < len(labels)):
            raise ValueError("give two or more labels, all different")
        return labels

    @property
    def column_names(self) -> list[str] | None:
        """The columns of files without a header; None if the files name them."""
        return None if self.columns is None else [name.strip() for name in self.columns.split(",")]

    @property
    def held_out(self) -> Fraction:
        """The share of the texts in `path` to hold out for validation, exact for the decimal as written."""
        if self.val_path is not None:
            return Fraction(0)
        return exact(DEFAULT_VAL_FRACTION if self.val_fraction is None else self.val_fraction)
