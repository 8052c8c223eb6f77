"""Names of countries, languages and currencies, labelled with their language; they need no download.

The names are CLDR's, from Babel. A name with the same spelling in two of the languages ("Peru") has no single right
answer and is left out.
"""

import importlib.util
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from clearformer.errors import needs_extra

if TYPE_CHECKING:
    from babel import Locale

# Most use Latin letters, so that the script alone does not identify a language, and members of a family are easily
# confused. The others share a script too.
ROMANCE = ("ca", "es", "fr", "it", "pt", "ro")
GERMANIC = ("da", "de", "en", "nl", "sv")
SLAVIC_AND_BALTIC = ("cs", "lt", "pl")
FINNIC = ("et", "fi")
NO_RELATIVES = ("eu", "hu", "id", "tr", "vi")
CYRILLIC = ("bg", "ru", "uk")
ARABIC = ("ar", "fa")
LANGUAGES = (*ROMANCE, *GERMANIC, *SLAVIC_AND_BALTIC, *FINNIC, *NO_RELATIVES, *CYRILLIC, *ARABIC)


def has_babel() -> bool:
    """Whether Babel, which carries the names, is installed."""
    return importlib.util.find_spec("babel") is not None


def source_of_names() -> str:
    """Describe the names, with the version of CLDR that they come from."""
    from babel.core import get_cldr_version

    return f"names of countries, languages and currencies from CLDR {get_cldr_version()}"


def named_languages() -> Iterator[tuple[str, str]]:
    """Yield each name with the English name of its language, ordered by language code and then by name.

    Raises:
        MissingPackageError: Babel is not installed.
    """
    with needs_extra("data", "data.name=languages takes its names from Babel"):
        from babel import Locale

    locales = [Locale(code) for code in sorted(LANGUAGES)]
    names = [_names(locale) for locale in locales]
    spelled_alike = Counter(spelling for own in names for spelling in own)
    for locale, own in zip(locales, names, strict=True):
        language = locale.get_language_name("en")
        assert language is not None
        for spelling, name in sorted(own.items()):
            if spelled_alike[spelling] == 1:
                yield name, language


def _names(locale: "Locale") -> dict[str, str]:
    """Return all names in one language by their case-folded spelling; names that differ only in case are one.

    CLDR gives the code itself where it has no name; such entries are left out.
    """
    tables = (locale.territories, locale.languages, locale.currencies)
    names = sorted({name.strip() for table in tables for code, name in table.items() if name != code})
    return {name.casefold(): name for name in names}
