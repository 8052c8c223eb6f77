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


def test_the_time_of_that_sample_is_told_by_its_first_tokens(
    begun: Callable[..., Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a quarter of a second here; the first of all takes five more. It is as long as fits, at least 100."""
    training, generate, now = begun("a", "next_token"), next_token.generate, [5.0, 0.0]
    asked_for = []

    def slow(*given: Any, max_new_tokens: int, **options: Any) -> Any:
        asked_for.append(max_new_tokens)
        [sample] = generate(*given, max_new_tokens=max_new_tokens, **options)
        now[1] += len(sample.tokens) / 4 + now[0]
        now[0] = 0.0
        return [sample]

    monkeypatch.setattr(next_token, "generate", slow)
    monkeypatch.setattr(next_token.time, "perf_counter", lambda: now[1])

    for seconds, n_tokens in ((150, 400), (100, 400), (50, 200), (3, 100)):
        assert training.task.fit_final_sample(training.model, seconds) == n_tokens / 4
        training.task.final_sample(training.model)
        assert asked_for[-1] == n_tokens
