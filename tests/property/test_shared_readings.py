"""What is made of a text's one reading is what a reading of its own makes: patterns, and what decoding goes on with."""

from typing import Any

import torch

from clearformer import lens
from clearformer.decoding.samplers import Sampling
from clearformer.hooks import hook_points
from clearformer.lens import continuations
from clearformer.lens.sampling.beginnings import beginning
from clearformer.lens.sampling.continuations import continued
from clearformer.model import ModelConfig

from .models import V, each_kind, every_model, made, text

T = 9
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}  # of logits in float32


@every_model()
def test_decoding_goes_on_from_any_position_of_a_text_that_was_read(case: ModelConfig) -> None:
    model, ids = made(case), text(T, n_rows=1)[0]
    for position, drawn in ((0, []), (0, [3]), (4, []), (4, [3, 1]), (T - 1, []), (T - 1, [2])):
        tokens = [*ids[: position + 1].tolist(), *drawn]
        begun = beginning(model, ids, position=position, drawn=drawn)
        with torch.no_grad():
            wanted = model(torch.tensor([tokens]))[0, -1]
            torch.testing.assert_close(begun.logits().double(), wanted, **CLOSE)
            known = begun.prefill(num=2)
            assert (known is None) == (case.attention.kind == "linear")
            if known is None:
                continue
            torch.testing.assert_close(known.logits.double(), wanted.expand(2, -1), **CLOSE)
            following = torch.tensor([[5], [V - 1]])
            found = model(following, cache=known.cache)[:, -1]
            for row, token in zip(found, following, strict=True):
                torch.testing.assert_close(row, model(torch.tensor([[*tokens, int(token)]]))[0, -1])


def test_decoding_goes_on_over_the_end_of_the_context() -> None:
    model, ids = made(ModelConfig(vocab_size=V, d_model=12, n_layers=2, max_seq_len=T)), text(T, n_rows=1)[0]
    model.float()
    for n in range(T - 5, T + 1):
        with torch.no_grad():
            wanted = continuations(model, ids[:n], max_new_tokens=4, num=3, seed=n)
            begun = beginning(model, ids, position=n - 1)
            found = continued(begun, Sampling(), 4, 3, n, use_cache=False)
        assert [[each.id for each in one.tokens] for one in wanted.continuations] == [
            [each.id for each in one.tokens] for one in found
        ]


def check_patterns(case: ModelConfig) -> None:
    model, ids = made(case), text(T, n_rows=1)[0]
    given: tuple[Any, ...] = (ids,) if case.family != "encoder-decoder" else (ids, text(T - 2, n_rows=1)[0])
    names = [name for name in hook_points(model) if name.endswith("hook_pattern")]
    _, seen = lens.run_with_cache(model, *given, names=names)
    found = lens.attention_overview(model, *given).patterns
    assert list(found) == names
    for name in names:
        torch.testing.assert_close(torch.from_numpy(found[name]), seen[name][0].float())


@each_kind(but=("last",))
def test_patterns_of_decoders_are_those_of_their_own_reading(case: ModelConfig) -> None:
    check_patterns(case)


@each_kind("encoder", but=("last",))
def test_patterns_of_encoders_are_those_of_their_own_reading(case: ModelConfig) -> None:
    check_patterns(case)


@each_kind("encoder-decoder", but=("last",))
def test_patterns_of_encoder_decoders_are_those_of_their_own_reading(case: ModelConfig) -> None:
    check_patterns(case)
