"""Generate again and again, adding a line to a file each time: work for `in_turn.py`.

    PYTHONPATH=src python benchmarks/one_stream.py PROGRESS_FILE

A model as the preset `quick` has it, with random weights, continues one text of 16 tokens by 20, greedy, uncompiled.
"""

import sys
from pathlib import Path
from typing import Any

import torch

import clearformer as cf

try:
    from clearformer.decoding import Sampling, collect, generate_tokens, random_stream
except ImportError:  # a checkout from before the package was renamed
    from clearformer.generate import (  # type: ignore[import-not-found,no-redef]
        Sampling,
        collect,
        generate_tokens,
        random_stream,
    )

VOCABULARY, PROMPT, NEW = 103, 16, 20


def quick_model() -> Any:
    """The preset's model, with the embedding norm that it did not have at first."""
    torch.manual_seed(1)
    config = cf.preset("quick").model
    sizes = {"vocab_size": VOCABULARY, "max_seq_len": 256, "embedding_norm": True}
    return cf.build(type(config).model_validate({**config.model_dump(), **sizes})).eval()


def main() -> None:
    """Generate until killed."""
    model, prompt = quick_model(), list(range(3, 3 + PROMPT))
    with Path(sys.argv[1]).open("w", buffering=1) as progress:
        while True:
            streams = [random_stream(0, 0)]
            collect(
                generate_tokens(model, [prompt], NEW, Sampling(temperature=0.0), streams, compiled=False), 1
            )
            progress.write("generated\n")


if __name__ == "__main__":
    main()
