"""The way to transformers and back: a run as a folder that it loads, and its folders as runs.

Foreign names and layouts live here and nowhere else; `architectures` has a file for each family of models.
"""

from clearformer.interop.exporting import to_hf
from clearformer.interop.importing import from_hf

__all__ = ["from_hf", "to_hf"]
