"""What is the language model's own among the tasks."""

from collections.abc import Callable

from clearformer.training.loop import Training


def test_a_run_ends_with_a_sample_of_400_tokens(begun: Callable[..., Training]) -> None:
    training = begun("a", "next_token")

    sample = training.task.final_sample(training.model)

    assert 380 < len(sample) <= 400  # characters are tokens; new lines at its ends are taken off
    assert sample == training.task.final_sample(training.model)
