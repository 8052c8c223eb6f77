"""What is the language model's own among the tasks."""

from collections.abc import Callable
from typing import Any

import pytest

from clearformer.training.loop import Training
from clearformer.training.tasks import next_token


def test_a_run_ends_with_a_sample_of_400_tokens(
    begun: Callable[..., Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which 30 are made here, more than there are positions."""
    training, generate, asked_for = begun("a", "next_token"), next_token.generate, []

    def shortened(*given: Any, max_new_tokens: int, **options: Any) -> Any:
        asked_for.append(max_new_tokens)
        return generate(*given, max_new_tokens=30, **options)

    monkeypatch.setattr(next_token, "generate", shortened)

    sample = training.task.final_sample(training.model)

    assert asked_for == [400]
    assert 25 < len(sample) <= 30  # characters are tokens; new lines at its ends are taken off
    assert sample == training.task.final_sample(training.model)
