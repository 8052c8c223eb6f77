"""What a run can learn: one file a task, each with the spec that opens it."""

from typing import Annotated

from pydantic import Field

from clearformer.training.tasks.classification import Classification, Classify
from clearformer.training.tasks.language import LanguageModelling, NextToken
from clearformer.training.tasks.masked import Masked, MaskedModelling
from clearformer.training.tasks.task import Measured, Task
from clearformer.training.tasks.translation import Translate, Translation

Objective = Annotated[NextToken | Translate | Masked | Classify, Field(discriminator="kind")]

__all__ = [
    "Classification",
    "Classify",
    "LanguageModelling",
    "Masked",
    "MaskedModelling",
    "Measured",
    "NextToken",
    "Objective",
    "Task",
    "Translate",
    "Translation",
]
