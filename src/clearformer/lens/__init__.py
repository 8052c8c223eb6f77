"""Looking inside a trained model: every number taken apart into named parts that sum to it.

    logits, cache = lens.run_with_cache(run, text)        cache["pattern", 0]
    lens.ledger(run, text, target=" the", foil=" a")      a logit, by the part of the model that wrote it
    lens.score(run, text, layer=1, head=0, key=3)         an attention score, by who wrote query and key
    lens.sources(run, text)                               a logit, by source token
    lens.logit_lens(run, text)                            the prediction after every layer
    lens.attention(run, text), lens.alignment(run, text)  attention patterns
    lens.attention_overview(run, text), lens.head_pattern(run, text, layer=0, head=2)    the same for long texts
    lens.block(run, text, layer=0, head=2)                every matrix on the way through a block
    lens.matrix(run, text, name="blocks.0.mlp.hook_post", row=700, column=900)    a part of a large one
    lens.cell(run, text, name="blocks.0.attn.hook_q", row=3, column=5)    one number and its operands
    lens.next_tokens(run, text), lens.positions(run), lens.tokens(run, text)
    lens.pieces(run, text, position=3)                    a token's bytes, and the merges or pieces it came from
    lens.architecture(run)                                the model's parts, their parameters and FLOPs
    lens.next_draw(run, text, top_k=40, seed=1)           the whole vocabulary, what is cut off, and the draw
    lens.continuations(run, text, num=3), lens.beam_tree(run, text)
    lens.metrics(run)                                     the loss by training step
    lens.events(run)                                      when the induction heads formed, when bigram loss was reached
    lens.bigram(run)                                      the loss of a bigram model of the run's training text
    lens.corpus(run, "val")                               the loss of every token of its data, the hardest passages
    lens.embed(run, text), lens.word_similarity(run, word, texts)
    lens.meanings(run, text, word=word, contexts=texts)   a word's vectors across texts, in two dimensions
    lens.intervene(run, text, lens.zero(lens.Site("blocks.0.attn.hook_z", head=2)))
    lens.with_edits(run, text, ["zero blocks.0.attn.hook_z:2"])    predictions and losses without and with edits
    lens.patch_every(run, text, donor, "heads"), lens.patch_paths(run, text, donor, senders, receivers)
    lens.gradient_x_input(run, text), lens.integrated_gradients(run, text), lens.occlusion(run, text)
    lens.classes(run, text)                               a classifier's probabilities, and each token's contribution
    lens.weight_gradients(run, text)                      dW of each matrix, position by position
    lens.head_scores(run), lens.head_scores_by_checkpoint(run)
    lens.loss_changes(before, after, text)                the loss change, by the part of the model that caused it
    lens.tracin(run, text)                                the training windows that favour a prediction
    lens.counterfactual(run, text, without=[...])         the run trained again without them
    lens.check_tracin(run, text)                          how well the two agree
    lens.match_heads(run, other, texts), lens.differences(run, other, text)
    lens.beside(lens.ledger, run, other, text)            most of these as a difference of two runs or checkpoints
    lens.transplant(run, other, layer, head)              a head of the other run, and the loss that it costs
    with lens.Readings(megabytes=200).in_use(): ...       compute a text's activations once for the whole block
    lens.show(run, text, "attention")                     an interactive view of the page in a notebook

Each result is a value (`to_dict()`), a table in a notebook, and a figure (`.figure("name.png")`).
"""

from clearformer.hooks.readings import Readings
from clearformer.lens.activations import run_with_cache
from clearformer.lens.architecture import Architecture, Component, architecture
from clearformer.lens.causal.hook_gradients import Gradient, gradients_at
from clearformer.lens.causal.interventions import (
    Edit,
    Intervention,
    add,
    change,
    hooks_of,
    intervene,
    mean,
    patch,
    replace,
    resample,
    zero,
)
from clearformer.lens.causal.metrics import LogitDifference, MeanLoss, next_token_loss
from clearformer.lens.causal.patching import Effect, PatchEffects, patch_every
from clearformer.lens.causal.paths import PathEffect, patch_paths
from clearformer.lens.causal.sites import Site, heads_of, networks_of
from clearformer.lens.causal.weights import copy_without_heads, edited_copy
from clearformer.lens.causal.with_edits import Predicted, WithEdits, with_edits
from clearformer.lens.comparison.changes import Difference, beside, difference
from clearformer.lens.comparison.differences import Differences, Distance, TokenLoss, differences
from clearformer.lens.comparison.heads import HeadMatch, HeadMatches, match_heads
from clearformer.lens.comparison.transplant import Transplant, transplant
from clearformer.lens.embeddings import Embedded, embed
from clearformer.lens.gradients.input_attribution import (
    InputAttribution,
    gradient_x_input,
    integrated_gradients,
    occlusion,
)
from clearformer.lens.gradients.loss_change import LossChanges, loss_changes, loss_changes_since
from clearformer.lens.gradients.matrices import MatrixGradient, WeightGradients, weight_gradients
from clearformer.lens.heads.scores import (
    HeadHistory,
    HeadScore,
    HeadScores,
    head_scores,
    head_scores_by_checkpoint,
)
from clearformer.lens.history.bigram import Bigram, bigram
from clearformer.lens.history.events import Event, Events, InductionAt, events
from clearformer.lens.inputs import Inputs, quiet, read
from clearformer.lens.learning.agreement import Agreement, Compared, check_tracin
from clearformer.lens.learning.counterfactual import Counterfactual, counterfactual
from clearformer.lens.learning.tracin import Learned, TrainingWindow, tracin
from clearformer.lens.ledgers.residual import Ledger, Part, ledger
from clearformer.lens.ledgers.scores import Score, score
from clearformer.lens.ledgers.sources import Sources, sources
from clearformer.lens.meanings import Meanings, WordPlace, meanings
from clearformer.lens.metrics import Metrics, metrics
from clearformer.lens.numbers.block import BlockNumbers, NamedArray, block
from clearformer.lens.numbers.cell import Cell, cell
from clearformer.lens.numbers.code import CodeLine
from clearformer.lens.numbers.matrix import MatrixPart, matrix
from clearformer.lens.numbers.rules import Term
from clearformer.lens.numbers.sources import Operand
from clearformer.lens.passages.corpus import Corpus, CorpusRow, Passage, corpus
from clearformer.lens.patterns.alignment import Alignment, alignment
from clearformer.lens.patterns.attention import AttentionPatterns, attention
from clearformer.lens.patterns.head_pattern import HeadPattern, head_pattern
from clearformer.lens.patterns.overview import AttentionOverview, attention_overview
from clearformer.lens.pieces import MergeStep, Pieces, WordPart, pieces
from clearformer.lens.positions import PositionTable, positions
from clearformer.lens.predictions.classes import ClassChance, Classes, classes
from clearformer.lens.predictions.logit_lens import LogitLens, logit_lens
from clearformer.lens.predictions.next_tokens import NextTokens, next_tokens
from clearformer.lens.predictions.tuned_lens import TunedLens, tune
from clearformer.lens.sampling.beam_tree import BeamNode, BeamTree, Found, beam_tree
from clearformer.lens.sampling.continuations import (
    Continuations,
    Continued,
    DrawnToken,
    continuations,
)
from clearformer.lens.sampling.next_draw import Cut, NextDraw, next_draw
from clearformer.lens.showing import Shown, Table, show
from clearformer.lens.tokens import TokenTable, tokens
from clearformer.lens.words import WordSimilarity, word_similarity

__all__ = [
    "Agreement",
    "Alignment",
    "Architecture",
    "AttentionOverview",
    "AttentionPatterns",
    "BeamNode",
    "BeamTree",
    "Bigram",
    "BlockNumbers",
    "Cell",
    "ClassChance",
    "Classes",
    "CodeLine",
    "Compared",
    "Component",
    "Continuations",
    "Continued",
    "Corpus",
    "CorpusRow",
    "Counterfactual",
    "Cut",
    "Difference",
    "Differences",
    "Distance",
    "DrawnToken",
    "Edit",
    "Effect",
    "Embedded",
    "Event",
    "Events",
    "Found",
    "Gradient",
    "HeadHistory",
    "HeadMatch",
    "HeadMatches",
    "HeadPattern",
    "HeadScore",
    "HeadScores",
    "InductionAt",
    "InputAttribution",
    "Inputs",
    "Intervention",
    "Learned",
    "Ledger",
    "LogitDifference",
    "LogitLens",
    "LossChanges",
    "MatrixGradient",
    "MatrixPart",
    "MeanLoss",
    "Meanings",
    "MergeStep",
    "Metrics",
    "NamedArray",
    "NextDraw",
    "NextTokens",
    "Operand",
    "Part",
    "Passage",
    "PatchEffects",
    "PathEffect",
    "Pieces",
    "PositionTable",
    "Predicted",
    "Readings",
    "Score",
    "Shown",
    "Site",
    "Sources",
    "Table",
    "Term",
    "TokenLoss",
    "TokenTable",
    "TrainingWindow",
    "Transplant",
    "TunedLens",
    "WeightGradients",
    "WithEdits",
    "WordPart",
    "WordPlace",
    "WordSimilarity",
    "add",
    "alignment",
    "architecture",
    "attention",
    "attention_overview",
    "beam_tree",
    "beside",
    "bigram",
    "block",
    "cell",
    "change",
    "check_tracin",
    "classes",
    "continuations",
    "copy_without_heads",
    "corpus",
    "counterfactual",
    "difference",
    "differences",
    "edited_copy",
    "embed",
    "events",
    "gradient_x_input",
    "gradients_at",
    "head_pattern",
    "head_scores",
    "head_scores_by_checkpoint",
    "heads_of",
    "hooks_of",
    "integrated_gradients",
    "intervene",
    "ledger",
    "logit_lens",
    "loss_changes",
    "loss_changes_since",
    "match_heads",
    "matrix",
    "mean",
    "meanings",
    "metrics",
    "networks_of",
    "next_draw",
    "next_token_loss",
    "next_tokens",
    "occlusion",
    "patch",
    "patch_every",
    "patch_paths",
    "pieces",
    "positions",
    "quiet",
    "read",
    "replace",
    "resample",
    "run_with_cache",
    "score",
    "show",
    "sources",
    "tokens",
    "tracin",
    "transplant",
    "tune",
    "weight_gradients",
    "with_edits",
    "word_similarity",
    "zero",
]
