"""The text that a language model learns from, and how it is split."""

from fractions import Fraction
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from clearformer.config import Name, PathName
from clearformer.data.config import DataSpec, Form, exact


class TextData(DataSpec):
    """Section `data` of a run.

    `name` is a built-in text, `path` a file or a folder; with neither, the text is pydoc. `field` is the JSONL field
    that holds the text. The end of the text is held out: `val_fraction` of it, then `test_fraction`; with 0 there is
    no such split. `order` is that of training: `random` windows begin anywhere, `epochs` reads each window once, and
    then again in another order.
    """

    form: ClassVar[Form] = "text"
    made_by: ClassVar[str] = "documents"
    default_name: ClassVar[str] = "pydoc"

    kind: Literal["text"] = "text"
    name: Name | None = None
    path: PathName | None = None
    field: Name = "text"
    order: Literal["random", "epochs"] = "random"
    val_fraction: float = Field(default=0.1, ge=0, lt=1)
    test_fraction: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _nothing_without_effect(self) -> Self:
        if self.path is None and self.field != type(self).model_fields["field"].default:
            raise ValueError(
                f"field={self.field!r} is for JSONL files of your own: set path=FILE too; {self.label!r} has no fields"
            )
        return self

    @model_validator(mode="after")
    def _something_to_train_on(self) -> Self:
        if self.train_fraction <= 0:
            raise ValueError(
                f"val_fraction={self.val_fraction} and test_fraction={self.test_fraction} leave nothing "
                "to train on: their sum must be less than 1"
            )
        return self

    @property
    def train_fraction(self) -> Fraction:
        """The share that the other splits leave, exact for the decimals as written."""
        return 1 - exact(self.val_fraction) - exact(self.test_fraction)
