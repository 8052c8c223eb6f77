"""The text that a run learns from or is measured on, each token of it with its loss."""

from clearformer.lens.passages.corpus import Corpus, CorpusRow, Passage, corpus

__all__ = ["Corpus", "CorpusRow", "Passage", "corpus"]
