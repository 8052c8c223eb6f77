"""The browser's view of the lens: any run's numbers on one page, served to this machine alone.

    cf.look(run)                        opens the page; returns its address
    clearformer look RUN [RUN2]         the same from a terminal

The page computes nothing of its own: every number comes from `clearformer.lens`.
"""

from clearformer.page.look import Looking, look

__all__ = ["Looking", "look"]
