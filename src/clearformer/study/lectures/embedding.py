"""The studies of lecture 000: from one embedding to a Transformer."""

from clearformer.study.measures.losses import LOSSES
from clearformer.study.study import Claim, Published, Study, Training

STUDIES = (
    Study(
        name="depth",
        question="How does the loss fall with the number of layers of the lecture's model?",
        lecture="000, 5.4",
        arms=tuple(Training(f"{n} layers", settings={"model.n_layers": n}) for n in (1, 2, 4, 8)),
        measures=(LOSSES,),
        shown=("train_loss", "val_loss", "train_perplexity", "parameters"),
        published=(
            Published("2 layers", "train_loss", 1.63, 0.05, "5.4"),
            Published("4 layers", "train_loss", 1.25, 0.05, "5.4"),
            Published("8 layers", "train_loss", 0.92, 0.05, "5.4"),
        ),
        claims=(
            Claim("Four layers reach a lower training loss than two.", "train_loss", "4 layers", "2 layers"),
        ),
        fairness="All read the same batches in the same order, 10,000 steps of 64 x 128 characters.",
        refuted_if="A deeper model's training loss is not below a shallower one's.",
    ),
)
