"""The pairs of lines that a translation is learned from, and how some are held out."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from clearformer.config import Name, PathName
from clearformer.data.config import DataSpec, Form, exact
from clearformer.errors import ConfigError

# The languages of built-in pairs if none are named.
DATES, MULTI30K = "dates", "multi30k"
DEFAULT_LANGUAGES = {DATES: "fr-en", MULTI30K: "en-de"}
DEFAULT_SIZE = 50_000
DEFAULT_VAL_FRACTION = 0.02
MAX_SIZE = 5_000_000


class PairsData(DataSpec):
    """Section `data` of a run that translates: lines of one language, and the same lines in another.

    Give one of these: `name`, a built-in; `path`, a file of `source<TAB>target` lines; or `source` and `target`, two
    files where line n of one translates line n of the other. With none, the pairs are `dates`. Held-out pairs come
    from files of their own (`val_path`, or `val_source` and `val_target`), or are about `val_fraction` and
    `test_fraction` of all pairs, decided by each pair's own content (see `holding_out`); multi30k has its own.
    `val_fraction` is 0.02 if not given, and there is no test split unless one is asked for. `languages` are "from-to";
    `size` is the number of pairs that `dates` makes. Pairs with a side of more than `max_length` tokens are left out of
    training and validation.
    """

    form: ClassVar[Form] = "pairs"
    made_by: ClassVar[str] = "pairs"
    default_name: ClassVar[str] = DATES
    one_of: ClassVar[tuple[tuple[str, ...], ...]] = (("name", "path", "source"), ("val_path", "val_source"))

    kind: Literal["pairs"] = "pairs"
    name: Name | None = None
    path: PathName | None = None
    source: PathName | None = None
    target: PathName | None = None
    val_path: PathName | None = None
    val_source: PathName | None = None
    val_target: PathName | None = None
    val_fraction: float | None = Field(default=None, ge=0, lt=1)
    test_fraction: float | None = Field(default=None, ge=0, lt=1)
    languages: str | None = Field(default=None, pattern=r"^[A-Za-z_]+-[A-Za-z_]+$")
    size: int | None = Field(default=None, ge=10, le=MAX_SIZE)
    max_length: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        for one, other in (("source", "target"), ("val_source", "val_target")):
            if (getattr(self, one) is None) != (getattr(self, other) is None):
                given, absent = (one, other) if getattr(self, other) is None else (other, one)
                raise ValueError(
                    f"{given}={getattr(self, given)!r} needs {absent} too: the other side of the pairs"
                )
        self._check_one_of_each_group()
        return self

    @model_validator(mode="after")
    def _nothing_without_effect(self) -> Self:
        if self.size is not None and self.built_in != DATES:
            raise ValueError(
                f"size={self.size} has no effect: it is the number of pairs that name='dates' makes"
            )
        if self.brings_val and self.val_fraction is not None:
            raise ValueError(
                f"val_fraction={self.val_fraction} has no effect: the validation pairs are {self.brings_val}"
            )
        if self.built_in == MULTI30K and self.test_fraction is not None:
            raise ValueError(
                f"test_fraction={self.test_fraction} has no effect: multi30k has test pairs of its own"
            )
        if self.built_in and (self.val_path or self.val_source):
            raise ValueError(
                f"val_path and val_source are for your own pairs; {self.built_in} has its own: set them to none"
            )
        return self

    @model_validator(mode="after")
    def _something_to_train_on(self) -> Self:
        held_out = self.held_out()
        if sum(held_out.values()) >= 1:
            fractions = " and ".join(f"{name}_fraction={float(share)}" for name, share in held_out.items())
            raise ValueError(f"{fractions} leave nothing to train on: their sum must be less than 1")
        return self

    @classmethod
    def settings_of_files(cls, files: Sequence[str]) -> dict[str, str]:
        """Return the settings for pairs in the given files.

        Raises:
            ConfigError: there are more than two.
        """
        if len(files) > 2:
            raise ConfigError(f"pairs take one TSV or two files, source and target; got {len(files)}")
        return {"source": files[0], "target": files[1]} if len(files) == 2 else {"path": files[0]}

    @property
    def built_in(self) -> str | None:
        """The built-in's name; None if the pairs are the user's own."""
        return None if self.path or self.source or self.makes_its_own else self.name or self.default_name

    @property
    def brings_val(self) -> str | None:
        """The source of the validation pairs; None if they are held out from the training pairs."""
        return self.val_path or self.val_source or ("multi30k's own" if self.built_in == MULTI30K else None)

    def held_out(self) -> dict[str, Fraction]:
        """Return the share of all pairs for each held-out split, exact for the decimals as written."""
        shares = {"val": None if self.brings_val else self.val_fraction, "test": self.test_fraction}
        if not self.brings_val and self.val_fraction is None:
            shares["val"] = DEFAULT_VAL_FRACTION
        return {name: exact(share) for name, share in shares.items() if share}

    @property
    def language_pair(self) -> tuple[str, str] | None:
        """The languages of the source and the target, if they are known."""
        languages = self.languages or DEFAULT_LANGUAGES.get(self.built_in or "")
        if languages is None:
            return None
        source, _, target = languages.partition("-")
        return source, target

    @property
    def label(self) -> str:
        """A short name of the pairs, with their languages if they are known: "dates-fr-en"."""
        own = self.path or self.source
        name = Path(own).name.partition(".")[0] if own else self.built_in or self.kind
        return "-".join((name, *(self.language_pair or ())))
