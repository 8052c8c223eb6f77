"""Conversion to and from transformers: runs written as folders that it loads, and its folders read as runs.

Foreign names and layouts occur only in this package; `architectures` has a file for each family of models.
"""

from clearformer.interop.exporting import to_hf
from clearformer.interop.importing import from_hf

__all__ = ["from_hf", "to_hf"]
