"""Imports without garbage collection.

Importing torch creates hundreds of thousands of objects that live until the process ends. The collector would traverse
them several times during the import, then in every full collection and at exit.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Disable the collector while the `with` block imports modules, and exempt their objects from later collections.

    Does nothing if torch is already imported: little is left to import, and the process holds other objects than those
    of modules.
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
