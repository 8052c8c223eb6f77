"""Looking inside a trained model: what it makes of each token, layer by layer."""

from clearformer.lens.embeddings import Embedded, embed
from clearformer.lens.inputs import Inputs, quiet, read
from clearformer.lens.words import similarity_table, word_similarity

__all__ = ["Embedded", "Inputs", "embed", "quiet", "read", "similarity_table", "word_similarity"]
