"""How fast several models generate, side by side."""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from clearformer.bench.generation import GREEDY, random_prompts
from clearformer.bench.rounds import Contender, interleave
from clearformer.config import sections_of
from clearformer.decoding import collect, generate_tokens, random_stream
from clearformer.model import Decoder
from clearformer.model.build import build_undrawn, initialise
from clearformer.resolving import resolve_settings
from clearformer.study.study import Values

VOCABULARY = 256


def generation_speed(
    seed: int,
    preset: str,
    settings: Mapping[str, Any],
    sides: Mapping[str, Mapping[str, Any]],
    streams: int = 16,
    n_new: int = 240,
    rounds: int = 5,
) -> Values:
    """Measure the tokens a second of greedy generation by several untrained models, alternating on one machine.

    Args:
        seed: The seed of the weights.
        preset: The preset of all models.
        settings: Settings of all models, applied on top of the preset.
        sides: By name, the settings in which a model differs.
        streams: The number of sequences that are continued at once.
        n_new: The number of new tokens of each.
        rounds: The number of times each side is measured, after one warm-up.

    Returns:
        NAME_tokens_per_second: For each side, the median of the rounds.
    """
    contenders = []
    for name, own in sides.items():
        layers = [sections_of(dict(each)) for each in (settings, own)]
        model = build_undrawn(resolve_settings(preset, layers).model.replace(vocab_size=VOCABULARY))
        initialise(model, seed)
        contenders.append(Contender(name, partial(tokens_per_second, model.eval(), streams, n_new)))
    return {f"{figures.name}_tokens_per_second": figures.median for figures in interleave(contenders, rounds)}


@torch.inference_mode()
def tokens_per_second(model: Decoder, streams: int, n_new: int) -> float:
    """Measure the rate at which one model generates tokens."""
    prompts, randoms = random_prompts(VOCABULARY, streams), [random_stream(0, i) for i in range(streams)]
    start = time.perf_counter()
    collect(generate_tokens(model, prompts, n_new, GREEDY, randoms), streams)
    return streams * n_new / (time.perf_counter() - start)
