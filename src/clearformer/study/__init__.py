"""Studies: a question, the runs that answer it, the published and the measured numbers, and the report.

from clearformer.study import Training

depth = cf.Study(name="depth", question="...", arms=(Training("2 layers", settings={...}), ...), ...)
outcome = cf.run_study(depth)
"""

from clearformer.study.measures.losses import LOSSES, losses
from clearformer.study.outcomes import Outcome, outcome
from clearformer.study.store import Store
from clearformer.study.study import Claim, Measure, Probe, Published, Study, Training

__all__ = [
    "LOSSES",
    "Claim",
    "Measure",
    "Outcome",
    "Probe",
    "Published",
    "Store",
    "Study",
    "Training",
    "losses",
    "outcome",
]
