from math import sqrt

import numpy as np
import pytest

from clearformer.data.labelled.batches import LabelledBatch
from clearformer.data.masking import (
    IGNORED,
    Masking,
    TextWindows,
    mask_tokens,
    windows_in_order,
)
from clearformer.data.shards import Split
from clearformer.errors import DataError
from clearformer.text import BPETokenizerSpec, ByteTokenizerSpec, CharTokenizerSpec, Tokenizer, specials_of

MASK, V = 50, 40  # plain tokens are 0 to 39
PAD = 48


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def rows(n: int, length: int) -> np.ndarray:
    return np.random.default_rng(1).integers(V, size=(n, length))


def within(share: float, expected: float, n: int) -> bool:
    """Whether a share of n draws is as expected, within four standard errors."""
    return abs(share - expected) < 4 * sqrt(expected * (1 - expected) / n)


def test_shares_are_bert_s() -> None:
    tokens = rows(1009, 128)
    inputs, targets = mask_tokens(tokens, np.ones_like(tokens, bool), MASK, V, rng())
    chosen = targets != IGNORED
    n = int(chosen.sum())
    assert within(chosen.mean(), 0.15, tokens.size)
    assert (targets[chosen] == tokens[chosen]).all()
    assert (inputs[~chosen] == tokens[~chosen]).all()
    hidden = inputs[chosen] == MASK
    kept = inputs[chosen] == tokens[chosen]
    assert within(hidden.mean(), 0.8, n)
    assert within(kept.mean(), 0.1 + 0.1 / V, n)  # a random token is the true one now and then
    drawn = inputs[chosen][~hidden & ~kept]
    counts = np.bincount(drawn, minlength=V)
    assert len(counts) == V  # never a special token
    assert counts.min() > 0.7 * counts.mean()


@pytest.mark.parametrize("fraction", [0.0, 0.02, 0.15, 1.0])
def test_every_row_has_something_to_guess(fraction: float) -> None:
    tokens = rows(211, 7)
    maskable = np.zeros_like(tokens, bool)
    maskable[:, 1:4] = True
    maskable[5] = False
    _, targets = mask_tokens(tokens, maskable, MASK, V, rng(), fraction)
    chosen = targets != IGNORED
    assert not chosen[~maskable].any()
    expected = {0.0: 1, 1.0: 3}.get(fraction)
    counts = np.delete(chosen.sum(1), 5)
    assert (counts == expected).all() if expected else counts.min() == 1
    if fraction == 0:  # each place is as likely as the others
        assert all(within(share, 1 / 3, 210) for share in np.delete(chosen, 5, 0)[:, 1:4].mean(0))


def test_rows_are_chosen_from_the_ids_that_are_given() -> None:
    tokens = rows(101, 64)
    plain = np.array([3, 11, 29])
    inputs, targets = mask_tokens(tokens, np.ones_like(tokens, bool), MASK, plain, rng(), 0.5)
    changed = (inputs != tokens) & (inputs != MASK)
    assert set(inputs[changed].tolist()) == {3, 11, 29}
    assert (targets[changed] == tokens[changed]).all()


def test_whole_words_are_chosen_or_left() -> None:
    tokens = rows(307, 61)
    maskable = np.ones_like(tokens, bool)
    maskable[:, [0, 20, 60]] = False
    starts = np.random.default_rng(2).random(tokens.shape) < 0.4
    _, targets = mask_tokens(tokens, maskable, MASK, V, rng(), 0.15, starts)
    chosen = targets != IGNORED
    assert not chosen[~maskable].any()
    goes_on = ~starts[:, 1:] & maskable[:, 1:] & maskable[:, :-1]
    assert (chosen[:, 1:] == chosen[:, :-1])[goes_on].all()
    first = maskable.copy()
    first[:, 1:] &= ~goes_on
    assert within(chosen[first].mean(), 0.15, int(first.sum()))
    assert chosen.any(1).all()


def test_what_is_hidden_hangs_on_the_generator_alone() -> None:
    tokens = rows(5, 17)
    maskable = np.ones_like(tokens, bool)
    once, again = (mask_tokens(tokens, maskable, MASK, V, rng()) for _ in range(2))
    assert all((a == b).all() for a, b in zip(once, again, strict=True))
    other = mask_tokens(tokens, maskable, MASK, V, np.random.default_rng(4))
    assert (other[1] != once[1]).any()


# --- with a tokenizer --------------------------------------------------------------------------------------

TEXT = "the cat sat on the mat, the cats sat there; catty cats chatter. " * 3


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return BPETokenizerSpec(vocab_size=290).train([TEXT], specials=specials_of("encoder"))


def batch_of(tokenizer: Tokenizer, texts: list[str]) -> LabelledBatch:
    wrapped = [tokenizer.wrap(tokenizer.encode(text)) for text in texts]
    tokens = np.full((len(texts), max(map(len, wrapped)) + 2), tokenizer.pad_id)
    padding = np.zeros(tokens.shape, bool)
    for i, row in enumerate(wrapped):
        tokens[i, : len(row)] = row
        padding[i, : len(row)] = True
    return LabelledBatch(tokens, padding, np.zeros(len(texts), np.int64))


@pytest.mark.parametrize("whole_word", [False, True])
def test_special_tokens_and_padding_are_left_alone(tokenizer: Tokenizer, whole_word: bool) -> None:
    batch = batch_of(tokenizer, [TEXT, "cats", TEXT[:31]])
    special = ~batch.padding | (batch.tokens >= tokenizer.vocab_size - len(tokenizer.specials))
    masking = Masking(tokenizer, seed=5, fraction=0.5, whole_word=whole_word)
    for step in range(20):
        inputs, padding, targets = masking(batch.tokens, batch.padding, step)
        assert (padding == batch.padding).all()
        assert (targets[special] == IGNORED).all()
        assert (inputs[special] == batch.tokens[special]).all()
        assert (targets != IGNORED).any(1).all()
        random = (inputs != batch.tokens) & (inputs != tokenizer.mask_id)
        assert (inputs[random] < tokenizer.vocab_size - len(tokenizer.specials)).all()


def test_a_words_tokens_are_hidden_together() -> None:
    letters = CharTokenizerSpec().train([TEXT], specials=specials_of("encoder"))
    batch = batch_of(letters, [TEXT])
    targets = Masking(letters, seed=5, fraction=0.3, whole_word=True)(batch.tokens, batch.padding, 0).targets[
        0
    ]
    chosen = "".join("#" if hit else "." for hit in targets[1 : len(TEXT) + 1] != IGNORED)
    words = [(start, start + 3) for start in range(len(TEXT)) if TEXT[start : start + 4] == "sat "]
    assert {chosen[start:stop] for start, stop in words} == {"###", "..."}


def test_every_step_and_seed_is_masked_anew(tokenizer: Tokenizer) -> None:
    batch = batch_of(tokenizer, [TEXT, TEXT[:40], TEXT[3:90], "cats", TEXT[7:]])

    def targets(seed: int, step: int) -> np.ndarray:
        return Masking(tokenizer, seed)(batch.tokens, batch.padding, step).targets

    assert (targets(5, 4) == targets(5, 4)).all()
    assert (targets(5, 5) != targets(5, 4)).any()
    assert (targets(6, 4) != targets(5, 4)).any()


def windows_over(n_tokens: int) -> tuple[TextWindows, Tokenizer]:
    tokenizer = ByteTokenizerSpec().train(specials=specials_of("encoder"))
    split = Split("train", [np.arange(n_tokens) % 251], n_tokens, n_tokens)
    return TextWindows(split, "epochs", batch_size=3, max_length=13, seed=1, tokenizer=tokenizer), tokenizer


def test_windows_of_a_running_text_stand_between_the_marks() -> None:
    windows, tokenizer = windows_over(101)
    tokens, padding = windows.batch(2)
    assert tokens.shape == (3, 13)
    assert padding.all()
    assert (tokens[:, 0] == tokenizer.bos_id).all()
    assert (tokens[:, -1] == tokenizer.eos_id).all()
    assert (np.diff(tokens[:, 1:-1], axis=1) == 1).all()
    assert Masking(tokenizer, 0)(tokens, padding, 2).tokens.shape == (3, 13)


def test_a_text_too_short_to_train_on_says_what_would_fit() -> None:
    assert windows_over(12)[0].batch(0).tokens.shape == (3, 13)
    with pytest.raises(
        DataError, match=r"^the train split has 11 tokens, but model.max_seq_len=13 needs 12 .*=12 or"
    ):
        windows_over(11)


def test_a_whole_text_in_order_is_each_token_once() -> None:
    windows, tokenizer = windows_over(101)
    found = list(windows_in_order(windows.split, 3, 13, tokenizer))
    assert [len(each.tokens) for each in found] == [3, 3, 3, 1]
    read = [token for each in found for row, real in zip(*each, strict=True) for token in row[real][1:-1]]
    assert read == list(range(101))
    assert (found[-1].tokens[0, 4:] == tokenizer.pad_id).all()


def test_a_text_shorter_than_a_row_is_read_too() -> None:
    tokenizer = ByteTokenizerSpec().train(specials=specials_of("encoder"))
    [found] = windows_in_order(Split("val", [np.arange(5)], 5, 5), 3, 13, tokenizer)
    assert found.tokens[0][found.padding[0]].tolist() == [tokenizer.bos_id, *range(5), tokenizer.eos_id]
