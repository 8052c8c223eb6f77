"""The lens in a browser: a run's numbers on one page, served to this machine alone.

    cf.look(run)                        opens the page; returns its address
    clearformer look RUN [RUN2]         the same from a terminal
    cf.export_page(run, "page.html")    the page for one selection as a single file that needs no server
    cf.lens.show(run, text, view)       one view in a notebook

The page computes nothing of its own: every number comes from `clearformer.lens`.
"""

from clearformer.page.look import Looking, look
from clearformer.page.standalone.export import export_page
from clearformer.page.standalone.notebook import show

__all__ = ["Looking", "export_page", "look", "show"]
