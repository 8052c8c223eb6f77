"""Sizes of a trained model: its parameters by part, its cache, its training cost, and its bits per byte."""

import math

from clearformer.cost import analytic_flops, analytic_parameters
from clearformer.model import ModelConfig
from clearformer.model.attention import MultiHead
from clearformer.run import Run
from clearformer.study.measures.held_out import text_split
from clearformer.study.study import Measure, Values
from clearformer.training.store.folder import read_metrics

FLOAT32_BYTES = 4


def sizes(run: Run) -> Values:
    """Count the parameters by part, and the bytes of a full cache.

    Returns:
        parameters: The parameters of the model.
        ffn_share: The feed-forward networks' share of them.
        ffn_share_of_blocks: Their share of the parameters of attention and feed-forward networks.
        cache_bytes: See `cache_bytes`.
    """
    parts = analytic_parameters(run.model.config)
    total, ffn = sum(parts.values()), parts["ffn"]
    return {
        "parameters": total,
        "ffn_share": ffn / total,
        "ffn_share_of_blocks": ffn / (ffn + parts["attention"]),
        "cache_bytes": cache_bytes(run.model.config),
    }


def cache_bytes(config: ModelConfig) -> int | None:
    """Return the bytes of one full sequence's cache in float32: 2 L K Dh T numbers, for K key-value heads a layer.

    Return None for models that keep something else: those of other attention, encoder-decoders, encoders.
    """
    attention = config.attention
    if config.family != "decoder" or not isinstance(attention, MultiHead):
        return None
    _, d_head = attention.heads(config.d_model)
    return 2 * config.n_layers * attention.n_key_value_heads * d_head * config.max_seq_len * FLOAT32_BYTES


def bits_per_byte(run: Run) -> Values:
    """Measure the held-out loss in bits per byte, and the cost of training.

    Returns:
        bits_per_byte: None if the tokens do not preserve the whole text (WordPiece).
        bits_per_byte_at_least: The bits of all predictions over the bytes of the text; a lower bound if the tokens do
            not preserve the whole text.
        bytes_per_token: The mean bytes of a held-out token.
        vocabulary: The size of the vocabulary.
        gigaflops_per_megabyte: The cost of training on a million bytes of held-out text, forward and backward.
        train_seconds: The duration of all training steps.
    """
    scores, config = run.evaluate(), run.model.config
    n_bytes = text_split(run).n_bytes
    bytes_per_token = n_bytes / (scores["n_tokens"] + 1)
    at_least = scores["loss"] / math.log(2) * scores["n_tokens"] / n_bytes
    known = scores["bits_per_byte"]
    flops_per_token = analytic_flops(config, config.max_seq_len).total / config.max_seq_len
    return {
        "bits_per_byte": known,
        "bits_per_byte_at_least": at_least if known is None else known,
        "bytes_per_token": bytes_per_token,
        "vocabulary": run.tokenizer.vocab_size,
        "gigaflops_per_megabyte": flops_per_token / bytes_per_token * 1e-3,
        "train_seconds": read_metrics(run.folder.metrics_file)[-1]["seconds"],
    }


SIZES, BITS_PER_BYTE = Measure(sizes), Measure(bits_per_byte)
