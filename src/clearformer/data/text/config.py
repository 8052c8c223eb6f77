"""The text that a language model learns from, and how it is split."""

from fractions import Fraction
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from clearformer.config import Name, PathName
from clearformer.data.config import DataSpec, Form, exact


class TextData(DataSpec):
    """Section `data` of a run.

    `name` is a built-in text, `path` a file or a folder; with neither, the text is pydoc. `field` is the JSONL field
    that holds the text. Held-out text comes from files or folders of its own (`val_path`, `test_path`), or is the end
    of the text: `val_fraction` of it, then `test_fraction`; with 0 there is no such split. `order` is that of training:
    `random` windows begin anywhere, `epochs` reads each window once, and then again in another order.
    """

    form: ClassVar[Form] = "text"
    made_by: ClassVar[str] = "documents"
    default_name: ClassVar[str] = "pydoc"

    kind: Literal["text"] = "text"
    name: Name | None = None
    path: PathName | None = None
    val_path: PathName | None = None
    test_path: PathName | None = None
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
        for split, path in self.paths_of_held_out.items():
            if self.path is None:
                raise ValueError(
                    f"{split}_path={path!r} is for a text of your own: set path=FILE too; the built-in {self.label!r} "
                    "is split by itself"
                )
            fraction = getattr(self, f"{split}_fraction")
            if fraction not in (0, type(self).model_fields[f"{split}_fraction"].default):
                raise ValueError(
                    f"{split}_fraction={fraction} has no effect: the {split} text comes from {path}; remove it"
                )
        if self.val_path is not None and self.test_path is None and self.test_fraction:
            raise ValueError(
                f"test_fraction={self.test_fraction}: with val_path, give the test text as a file too, test_path=FILE"
            )
        return self

    @model_validator(mode="after")
    def _something_to_train_on(self) -> Self:
        if sum(self.shares_held_out.values()) >= 1:
            raise ValueError(
                f"val_fraction={self.val_fraction} and test_fraction={self.test_fraction} leave nothing "
                "to train on: their sum must be less than 1"
            )
        return self

    @property
    def paths_of_held_out(self) -> dict[str, str]:
        """The files or folders of held-out text, by split."""
        paths = {"val": self.val_path, "test": self.test_path}
        return {split: path for split, path in paths.items() if path is not None}

    @property
    def shares_held_out(self) -> dict[str, Fraction]:
        """The shares of the text in `path` that its end is held out with, exact for the decimals as written."""
        fractions = {"val": self.val_fraction, "test": self.test_fraction}
        return {
            split: Fraction(0) if split in self.paths_of_held_out else exact(fraction)
            for split, fraction in fractions.items()
        }
