"""Imports that Python's garbage collector does not read.

torch brings hundreds of thousands of objects that stay to the end. The collector would read them several times while
they come, and again with every full round and at the exit.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Let the collector rest while modules are imported in the `with` block, and pass over their objects from then on.

    Nothing is changed where torch is there already: what is left to import is little, and what the process holds is
    not all of modules.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
