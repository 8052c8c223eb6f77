"""The tasks that a run can learn, one file each; the objective in the configuration selects one."""

from clearformer.data import Progress
from clearformer.text import Tokenizer
from clearformer.training.config import RunConfig
from clearformer.training.objectives import ObjectiveSpec
from clearformer.training.tasks.classification import ClassificationTask
from clearformer.training.tasks.masked import MaskedTask
from clearformer.training.tasks.next_token import NextTokenTask
from clearformer.training.tasks.task import EvaluationResult, Task
from clearformer.training.tasks.translation import TranslationTask

TASKS: dict[type[ObjectiveSpec], type[Task]] = {
    task.objective_type: task for task in (NextTokenTask, TranslationTask, MaskedTask, ClassificationTask)
}
"""The task of each objective; `registry.register("objective")` adds one of your own."""


def task_type(objective: ObjectiveSpec) -> type[Task]:
    """Return the task of an objective."""
    return TASKS[type(objective)]


def make_task(config: RunConfig, tokenizer: Tokenizer | None, progress: Progress) -> Task:
    """Prepare the data of a configuration in which no setting is left open, and return its task."""
    task = task_type(config.train.objective)
    return task(config, task.prepare(config, tokenizer, progress))


__all__ = [
    "TASKS",
    "ClassificationTask",
    "EvaluationResult",
    "MaskedTask",
    "NextTokenTask",
    "Task",
    "TranslationTask",
    "make_task",
    "task_type",
]
