"""The records of a run under way: gradient norms by layer, and the learning rates of all steps."""

import struct
from pathlib import Path

import numpy as np
import pytest

from clearformer.training.reporting.run_log import layer_norms
from clearformer.training.store.folder import LrFactors


def test_norms_of_parameters_are_put_together_by_layer() -> None:
    norms = layer_norms(
        {
            "embed.weight": 2.0,
            "encoder_blocks.0.attn.W_Q.weight": 3.0,
            "encoder_blocks.0.ln1.weight": 4.0,
            "decoder_blocks.0.cross_attn.W_K.weight": 6.0,
            "decoder_blocks.10.mlp.W_in.weight": 8.0,
            "masked_head.dense.weight": 5.0,
            "masked_head.ln.bias": 12.0,
            "head_bias": 1.0,
        }
    )

    assert norms == {
        "embed": 2.0,
        "encoder_blocks.0": 5.0,
        "decoder_blocks.0": 6.0,
        "decoder_blocks.10": 8.0,
        "masked_head": 13.0,
        "head_bias": 1.0,
    }


def test_factors_come_back_to_the_bit(tmp_path: Path) -> None:
    path, factors = tmp_path / "lr_factors.f64", [0.1, 1 / 3, 1.0, 5e-324]
    record = LrFactors(path, 0)
    for factor in factors:
        record.append(factor)
    record.sync()

    assert LrFactors.read(path).tolist() == factors
    assert path.read_bytes() == struct.pack("<4d", *factors)


@pytest.mark.parametrize("written", [b"", struct.pack("<5d", 1, 2, 3, 4, 5) + b"cut off"])
def test_a_resumed_run_goes_on_behind_the_step_it_resumes_from(tmp_path: Path, written: bytes) -> None:
    """Later factors are cut off; those of steps that were taken before there was a record are not known."""
    path = tmp_path / "lr_factors.f64"
    if written:
        path.write_bytes(written)

    LrFactors(path, 3).append(0.5)

    known = [1.0, 2.0, 3.0] if written else [np.nan] * 3
    np.testing.assert_array_equal(LrFactors.read(path), [*known, 0.5])


def test_of_no_record_no_factor_is_known(tmp_path: Path) -> None:
    assert LrFactors.read(tmp_path / "lr_factors.f64").tolist() == []
    assert LrFactors.read(tmp_path).tolist() == []
