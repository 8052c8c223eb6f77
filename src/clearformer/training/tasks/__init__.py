"""The tasks that a run can learn: one file each, found by the objective in the configuration."""

from clearformer.text import Tokenizer
from clearformer.training.config import RunConfig, add_objective
from clearformer.training.objectives import ObjectiveSpec
from clearformer.training.tasks.classification import ClassificationTask
from clearformer.training.tasks.masked import MaskedTask
from clearformer.training.tasks.next_token import NextTokenTask
from clearformer.training.tasks.task import EvaluationResult, Progress, Task
from clearformer.training.tasks.translation import TranslationTask

TASKS: dict[type[ObjectiveSpec], type[Task]] = {}
"""The task of each objective."""


def register_task(task: type[Task]) -> None:
    """Make a task and its objective known, so that a configuration can ask for it."""
    TASKS[task.objective_type] = task
    add_objective(task.objective_type)


for _task in (NextTokenTask, TranslationTask, MaskedTask, ClassificationTask):
    register_task(_task)


def task_type(objective: ObjectiveSpec) -> type[Task]:
    """The task of an objective."""
    return TASKS[type(objective)]


def make_task(config: RunConfig, tokenizer: Tokenizer | None, progress: Progress) -> Task:
    """The task of a configuration that leaves nothing open, its data prepared."""
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
    "register_task",
    "task_type",
]
