"""A run's own past: when in its training something happened."""

from clearformer.lens.history.bigram import Bigram, bigram
from clearformer.lens.history.events import Event, Events, InductionAt, events

__all__ = ["Bigram", "Event", "Events", "InductionAt", "bigram", "events"]
