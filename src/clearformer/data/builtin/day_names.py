"""The names of months and weekdays in English and French."""

ENGLISH_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
ENGLISH_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FRENCH_MONTHS = (
    *("janvier", "février", "mars", "avril", "mai", "juin"),
    *("juillet", "août", "septembre", "octobre", "novembre", "décembre"),
)
_ABBREVIATED = (
    *("janv. jan. janv jan", "févr. fév. févr fév", "mars", "avr. avr", "mai", "juin"),
    *("juil. juill. juil", "août", "sept. sept sep.", "oct. oct", "nov. nov", "déc. déc"),
)
FRENCH_SHORT_MONTHS = tuple(forms.split() for forms in _ABBREVIATED)
FRENCH_WEEKDAYS = ("lundi", "mardi", "mercredi", "jeudi", "vendredi", "samedi", "dimanche")
