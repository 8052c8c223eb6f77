"""The loss of every token of the text that a run is trained or measured on."""

from clearformer.lens.passages.corpus import Corpus, CorpusRow, Passage, corpus

__all__ = ["Corpus", "CorpusRow", "Passage", "corpus"]
