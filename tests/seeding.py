"""Random numbers that are the same in every run."""

from functools import partial

import torch

from clearformer.device import seed_kernels

seed = partial(seed_kernels, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
"""As torch.manual_seed does, which formats a traceback for each kind of device that is not begun, however often."""
