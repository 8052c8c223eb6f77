"""What a run can learn: one file a task, each with the spec that opens it."""

from typing import Annotated

from pydantic import Field

from clearformer.train.tasks.classification import Classification, Classify
from clearformer.train.tasks.language import LanguageModelling, NextToken
from clearformer.train.tasks.masked import Masked, MaskedModelling
from clearformer.train.tasks.task import Measured, Task
from clearformer.train.tasks.translation import Translate, Translation

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
