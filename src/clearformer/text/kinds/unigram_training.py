"""Learning a Unigram vocabulary (Kudo 2018, section 3.2) by starting with many pieces and removing most of them.

At first every frequent substring of a word is a piece. Then, again and again, expectation maximisation estimates the
pieces' probabilities, and a quarter of the pieces is removed: those whose removal lowers the text's likelihood least.
Characters always stay, so that every word can be cut into pieces.

The words are sorted, the longest first, and processed together: a quantity after d characters is an array over the
words of at least d characters. D is the length of the longest word, N_d the number of words of at least d characters,
V the number of pieces.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

LONGEST_PIECE = 16  # characters
LONGEST_WORD = 24  # longer ones are split into parts of this length; a product of so many does not underflow
MOST_WORDS = 200_000  # the most frequent ones, which a vocabulary serves
SEEDS_PER_PIECE = 16
KEPT_AT_ONCE = 0.75
EM_STEPS = 2
COVERAGE = 0.9995  # of all characters in the corpus; rarer ones are left to bytes
FEWEST = 0.5  # expected occurrences; a piece with fewer is dropped

NO_PIECE = -1


def learn_pieces(
    words: Counter[str], n_pieces: int, required: Sequence[str], forbidden: Collection[str] = ()
) -> list[tuple[str, float]]:
    """Return at most `n_pieces` pieces and their log-probabilities, the likeliest first.

    Args:
        words: The number of occurrences of each word.
        n_pieces: The most pieces to return.
        required: Characters that are pieces whether or not the corpus has them.
        forbidden: Strings that must not become pieces.
    """
    alphabet = _alphabet(words, n_pieces, required)
    lattice = _lattice(words, SEEDS_PER_PIECE * n_pieces, forbidden)
    probabilities = _prune(lattice, n_pieces - len(alphabet))
    kept = {
        piece: float(np.log(probability))
        for piece, probability in zip(lattice.pieces, probabilities, strict=True)
        if probability > 0 and (len(piece) > 1 or piece in alphabet)
    }
    least = min(kept.values(), default=0.0)  # there is none where the alphabet has no character of the corpus
    kept |= {character: least for character in alphabet if character not in kept}
    return sorted(kept.items(), key=lambda item: (-item[1], item[0]))


def _alphabet(words: Counter[str], limit: int, required: Sequence[str]) -> list[str]:
    """Return the required characters, and the most frequent others up to `COVERAGE`."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    total, covered = counts.total(), sum(counts[character] for character in required)
    alphabet = list(dict.fromkeys(required))
    for character in sorted(counts, key=lambda c: (-counts[c], c)):
        if len(alphabet) >= limit or covered >= COVERAGE * total:
            break
        if character not in required:
            alphabet.append(character)
            covered += counts[character]
    return alphabet


@dataclass(frozen=True)
class _Lattice:
    """All ways to cut all words: the piece at each place.

    Attributes:
        counts: The number of occurrences of each word, float64 [N_1].
        n_longer: N_0 to N_D, where N_0 is N_1.
        flat: For each length l, the piece of l characters after the first d of each word that is long enough, or
            NO_PIECE; for d = 0, 1, ... one after another, int32 [sum over d of N_{d+l}].
        pieces: The pieces' spellings, characters first.
        places: The index in `flat` of each piece's first occurrence, int64 [V].
        n_characters: The number of pieces that are characters.
    """

    counts: np.ndarray
    n_longer: list[int]
    flat: dict[int, np.ndarray]
    pieces: list[str]
    places: np.ndarray
    n_characters: int

    @property
    def longest(self) -> int:
        """D, the length of the longest word."""
        return len(self.n_longer) - 1

    def starts(self, length: int) -> np.ndarray:
        """Return the index in `flat` at which each d begins."""
        return _starts(self.n_longer, length)

    def at(self, length: int, depth: int) -> np.ndarray:
        """Return the pieces of a length after the first `depth` characters of each word, int32 [N_{depth+length}]."""
        start = self.starts(length)[depth]
        return self.flat[length][start : start + self.n_longer[depth + length]]

    def ending_at(self, depth: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the lengths and pieces that end at a depth."""
        for length in range(1, min(len(self.flat), depth) + 1):
            yield length, self.at(length, depth - length)

    def starting_at(self, depth: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the lengths and pieces that start at a depth."""
        for length in range(1, min(len(self.flat), self.longest - depth) + 1):
            yield length, self.at(length, depth)


def _starts(n_longer: Sequence[int], length: int) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(n_longer[length:])])


def _lattice(words: Counter[str], n_seeds: int, forbidden: Collection[str]) -> _Lattice:
    """Build the lattice of the characters and of the `n_seeds` substrings that cover most of the text."""
    columns = _columns(words)
    lengths = np.array([len(word) for word, _ in columns])
    n_longer = [int((lengths >= d).sum()) for d in range(lengths[0] + 1)]
    counts = np.array([count for _, count in columns], dtype=np.float64)
    levels = [_characters([word for word, _ in columns], n_longer)]
    for length in range(2, min(LONGEST_PIECE, len(n_longer) - 1) + 1):
        levels.append(_one_longer(levels[-1], levels[0], n_longer, length, counts))
    kept = _most_covering(levels, n_seeds)
    flat, pieces, places = {}, [], []
    for length, (level, chosen) in enumerate(zip(levels, kept, strict=True), start=1):
        where = level.first[chosen]
        depths = np.searchsorted(_starts(n_longer, length), where, side="right") - 1
        rows = where - _starts(n_longer, length)[depths]
        spelled = [columns[row][0][depth : depth + length] for row, depth in zip(rows, depths, strict=True)]
        allowed = np.array([length == 1 or piece not in forbidden for piece in spelled], dtype=bool)
        number = np.full(len(level.first) + 1, NO_PIECE, dtype=np.int32)  # the last is NO_PIECE's
        number[chosen[allowed]] = len(pieces) + np.arange(allowed.sum())
        flat[length] = number[level.at]
        pieces += [piece for piece, fits in zip(spelled, allowed, strict=True) if fits]
        places.append(where[allowed])
    return _Lattice(counts, n_longer, flat, pieces, np.concatenate(places), len(kept[0]))


def _columns(words: Counter[str]) -> list[tuple[str, int]]:
    """Return the most frequent words (long ones in parts) and their counts, sorted by length, then by spelling."""
    parts: Counter[str] = Counter()
    for word, count in sorted(words.items(), key=lambda item: (-item[1], item[0]))[:MOST_WORDS]:
        for start in range(0, len(word), LONGEST_WORD):
            parts[word[start : start + LONGEST_WORD]] += count
    return sorted(parts.items(), key=lambda item: (-len(item[0]), item[0]))


@dataclass(frozen=True)
class _Substrings:
    """The distinct substrings of one length that occur twice or more.

    Attributes:
        at: The substring at each place, laid out as `_Lattice.flat`, or NO_PIECE, int64.
        counts: The number of occurrences of each substring.
        first: The first place of each substring.
    """

    at: np.ndarray
    counts: np.ndarray
    first: np.ndarray


def _characters(words: list[str], n_longer: list[int]) -> _Substrings:
    text = "".join(word[depth] for depth in range(len(n_longer) - 1) for word in words[: n_longer[depth + 1]])
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    _, first, at, counts = np.unique(points, return_index=True, return_inverse=True, return_counts=True)
    return _Substrings(at.astype(np.int64), counts, first)


def _one_longer(
    shorter: _Substrings, characters: _Substrings, n_longer: list[int], length: int, counts: np.ndarray
) -> _Substrings:
    """Return the substrings one character longer: each is a shorter one and the character after it."""
    starts, starts_shorter, starts_chars = (_starts(n_longer, each) for each in (length, length - 1, 1))
    keys = np.full(starts[-1], NO_PIECE, dtype=np.int64)
    weights = np.empty(starts[-1])
    for depth, n in enumerate(n_longer[length:]):
        here = slice(starts[depth], starts[depth] + n)
        left = shorter.at[starts_shorter[depth] :][:n]
        right = characters.at[starts_chars[depth + length - 1] :][:n]
        keys[here] = np.where(left < 0, NO_PIECE, left * len(characters.first) + right)
        weights[here] = counts[:n]
    places = np.flatnonzero(keys >= 0)
    _, first, inverse = np.unique(keys[places], return_index=True, return_inverse=True)
    totals = np.bincount(inverse, weights[places], minlength=len(first))
    frequent = totals >= 2
    number = np.where(frequent, np.cumsum(frequent) - 1, NO_PIECE)
    at = np.full(len(keys), NO_PIECE, dtype=np.int64)
    at[places] = number[inverse]
    return _Substrings(at, totals[frequent], places[first[frequent]])


def _most_covering(levels: list[_Substrings], n_seeds: int) -> list[np.ndarray]:
    """Return for each length the substrings that are pieces at first: every character, and the best others."""
    coverage = [length * level.counts for length, level in enumerate(levels[1:], start=2)]
    best = np.argsort(-np.concatenate([[], *coverage]), kind="stable")[:n_seeds]
    ends = np.cumsum([len(each) for each in coverage])
    level_of = np.searchsorted(ends, best, side="right")
    chosen = [
        np.sort(best[level_of == i]) - (end - len(coverage[i])) for i, end in enumerate(ends.astype(np.int64))
    ]
    return [np.arange(len(levels[0].first)), *chosen]


def _prune(lattice: _Lattice, n_longer_pieces: int) -> np.ndarray:
    """Return the pieces' probabilities, 0 for removed ones; at most `n_longer_pieces` longer than a character stay."""
    expected = _occurrences(lattice)
    stays = np.arange(len(lattice.pieces)) < lattice.n_characters
    while True:
        for _ in range(EM_STEPS):
            probabilities = _maximised(expected, stays)
            expected = _expected(lattice, probabilities)
        probabilities = _maximised(expected, stays)
        alive = lattice.n_characters + np.flatnonzero(probabilities[lattice.n_characters :])
        if len(alive) <= n_longer_pieces:
            return probabilities
        n_kept = max(n_longer_pieces, int(KEPT_AT_ONCE * len(alive)))
        best_first = alive[np.argsort(-_losses(lattice, probabilities, expected)[alive], kind="stable")]
        expected[best_first[n_kept:]] = 0
        if n_kept == n_longer_pieces:  # the final pieces, none of which is removed any more
            stays[best_first[:n_kept]] = True


def _occurrences(lattice: _Lattice) -> np.ndarray:
    """Count the occurrences of each piece's characters in the text, however it is cut, float64 [V]."""
    occurrences = np.zeros(len(lattice.pieces) + 1)  # the last for NO_PIECE
    for depth in range(lattice.longest):
        for _, at in lattice.starting_at(depth):
            occurrences += np.bincount(at % len(occurrences), lattice.counts[: len(at)], len(occurrences))
    return occurrences[:-1]


def _maximised(expected: np.ndarray, stays: np.ndarray) -> np.ndarray:
    """Return probabilities from expected occurrences; 0 for rare pieces, except those that stay."""
    kept = np.where(expected >= FEWEST, expected, 0)
    kept[stays] = np.maximum(expected[stays], FEWEST)
    return kept / kept.sum()


def _expected(lattice: _Lattice, probabilities: np.ndarray) -> np.ndarray:
    """Return the expected occurrences of each piece over all ways to cut the text, float64 [V].

    With alpha_d the probability of all ways to cut a word's first d characters and beta_d that of the rest, a piece
    from d to e is part of the cut with probability alpha_d p(piece) beta_e / alpha_D.
    """
    p = np.append(probabilities, 0.0)  # of NO_PIECE
    n = [*lattice.n_longer, 0]
    alpha = [np.ones(n[0])]
    for depth in range(1, lattice.longest + 1):
        ways = [alpha[depth - length][: len(at)] * p[at] for length, at in lattice.ending_at(depth)]
        alpha.append(np.sum(ways, axis=0))
    whole = np.concatenate([alpha[d][n[d + 1] :] for d in range(lattice.longest, 0, -1)])
    expected = np.zeros(len(p))
    beta = [np.ones(0)] * (lattice.longest + 1)
    for depth in range(lattice.longest, -1, -1):
        beta[depth] = np.where(np.arange(n[depth]) < n[depth + 1], 0.0, 1.0)  # 1 where the word ends here
        for length, at in lattice.starting_at(depth):
            k = len(at)
            rest = p[at] * beta[depth + length]
            beta[depth][:k] += rest
            taken = lattice.counts[:k] * alpha[depth][:k] * rest / whole[:k]
            expected += np.bincount(at % len(p), taken, len(p))
    return expected[:-1]


def _losses(lattice: _Lattice, probabilities: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the log-likelihood lost without each piece, if its own best cut replaces it, float64 [V]."""
    with np.errstate(divide="ignore"):
        logs = np.append(np.log(probabilities), -np.inf)
    losses = np.zeros(len(probabilities))
    lengths = np.array([len(piece) for piece in lattice.pieces])
    for length in range(2, len(lattice.flat) + 1):
        pieces = np.flatnonzero((lengths == length) & (probabilities > 0))
        best = [np.zeros(len(pieces))]
        for end in range(1, length + 1):
            parts = range(1, min(end, length - 1) + 1)  # the whole piece is no cut of itself
            ways = [best[end - k] + logs[_inside(lattice, pieces, length, end - k, k)] for k in parts]
            best.append(np.max(ways, axis=0))
        losses[pieces] = expected[pieces] * (logs[pieces] - best[length])
    return losses


def _inside(lattice: _Lattice, pieces: np.ndarray, length: int, offset: int, part: int) -> np.ndarray:
    """Return the pieces of `part` characters after the first `offset` characters of pieces of one length."""
    starts = lattice.starts(length)
    depths = np.searchsorted(starts, lattice.places[pieces], side="right") - 1
    rows = lattice.places[pieces] - starts[depths]
    return lattice.flat[part][lattice.starts(part)[depths + offset] + rows]
