"""Texts being written: the next draw with all that cuts it, continuations token by token, the beams of a search."""

from clearformer.lens.sampling.beam_tree import BeamNode, BeamTree, Found, beam_tree
from clearformer.lens.sampling.continuations import Continuations, Continued, DrawnToken, continuations
from clearformer.lens.sampling.next_draw import Cut, NextDraw, next_draw

__all__ = [
    "BeamNode",
    "BeamTree",
    "Continuations",
    "Continued",
    "Cut",
    "DrawnToken",
    "Found",
    "NextDraw",
    "beam_tree",
    "continuations",
    "next_draw",
]
