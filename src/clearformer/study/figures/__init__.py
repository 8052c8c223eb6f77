"""The usual figures of a study, each a frozen dataclass of the value to draw and the arms to show.

    figures=(Curves("Loss on the way"), Bars("Loss at the end", "train_loss"))

Arms that were not measured are left out. Lines and dots are means over seeds. `note` says how to read a figure;
`summary` describes it in words, for those who cannot see it.
"""

from clearformer.study.figures.bars import Bars
from clearformer.study.figures.curves import Curves
from clearformer.study.figures.distributions import Distributions
from clearformer.study.figures.lines import Lines, Trend
from clearformer.study.figures.matrix import Matrix
from clearformer.study.figures.texts import Texts

__all__ = ["Bars", "Curves", "Distributions", "Lines", "Matrix", "Texts", "Trend"]
