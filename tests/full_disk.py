"""A disk on which a file cannot be written whole."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def largest_file(n_bytes: int) -> Iterator[None]:
    """No file may grow beyond this size, as `ulimit -f` sets it; a write fails in the midst, as on a full disk.

    Python 3.11 would keep half of the bytecode of a module that is imported meanwhile, and fail at it from then on.
    """
    before, kept = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = kept
