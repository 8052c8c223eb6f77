"""A disk on which a file cannot be written whole."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def largest_file(n_bytes: int) -> Iterator[None]:
    """No file may grow beyond this size, as `ulimit -f` sets it; a write fails in the midst, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
