"""One worker: it claims and computes trials until all are done or have failed."""

import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from clearformer.errors import ClearformerError, DiskError, Interrupted, RunInUseError, shortened
from clearformer.files import FULL
from clearformer.study.running import compute
from clearformer.study.store import Store
from clearformer.study.trials import Trial
from clearformer.study.workers.claims import TakenError, claimed
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.checkpoint import Progress
from clearformer.training.store.lock import Claim

POLL_SECONDS = 1.0  # between checks of what other workers compute


def work(
    wanted: Sequence[Trial], store: Store, on_settled: Callable[[Trial], object] = lambda _: None
) -> None:
    """Compute trials until each is done or has failed, here or in another process.

    Args:
        wanted: The trials, in the order in which to try them.
        store: The store of claims and results.
        on_settled: Called after each trial that was settled here.

    Raises:
        Interrupted: a signal came; the next call resumes the training.
        DiskError: claims or results cannot be written.
    """
    left = list(wanted)
    while left := [trial for trial in left if not is_settled(trial, store)]:
        took = False
        for trial in left:
            if take(trial, store):
                took = True
                on_settled(trial)
        if not took:
            time.sleep(POLL_SECONDS)


def is_settled(trial: Trial, store: Store) -> bool:
    """Whether a trial is done, or has failed since the study was last started."""
    return store.failure(trial) is not None or store.is_done(trial)


def take(trial: Trial, store: Store) -> bool:
    """Compute a trial unless another process does; returns whether it was settled here.

    Raises:
        Interrupted: a signal came.
        DiskError: the disk is full.
    """
    if is_settled(trial, store):
        return False
    try:
        key = trial.key
    except ClearformerError as error:
        store.write_failure(trial, str(error))
        return True
    with claimed(store, key) as claim:
        if claim is None:
            return False
        # The previous holder of the claim may have settled it after the check above.
        return is_settled(trial, store) or attempt(trial, store, claim)


def attempt(trial: Trial, store: Store, claim: Claim) -> bool:
    """Compute a claimed trial and store its result or its failure; returns whether it is settled.

    Raises:
        Interrupted: a signal came.
        DiskError: the disk is full.
    """
    try:
        compute(trial, store, WhileHeld(claim))
    except Interrupted:
        raise
    except (RunInUseError, TakenError):  # a process presumed dead is still computing it
        return False
    except ClearformerError as error:
        if is_of_a_full_disk(error):
            raise
        store.write_failure(trial, str(error))
    except Exception as error:  # a bug in one run, such as in a user's measure, must not stop the others
        told = shortened(f"{type(error).__name__}: {error}", 300)
        store.write_failure(trial, told, traceback.format_exc())
    return True


def is_of_a_full_disk(error: ClearformerError) -> bool:
    """Whether there is no room on this machine, which is no fault of a trial: another machine can compute it."""
    cause = error.__cause__
    return isinstance(error, DiskError) and isinstance(cause, OSError) and cause.errno in FULL


class WhileHeld(Reporter):
    """Ends a training once another process has taken over its claim."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    def stepped(self, progress: Progress, metrics: Mapping[str, Any]) -> None:
        self._claim.check()


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the block in order, so that claims are released.

    Raises:
        Interrupted: a signal came outside of a training (a training handles signals itself).
    """
    received = signal.SIGINT

    def end(number: int, _: FrameType | None) -> None:
        nonlocal received
        received = signal.Signals(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("ended; everything so far is kept", received) from None
    finally:
        signal.signal(signal.SIGTERM, before)
