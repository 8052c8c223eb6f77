"""The loss of every token of a run's data, against torch, the evaluation, and the files that the text stands in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import clearformer as cf
from clearformer import lens
from clearformer.errors import RunError, UserError
from clearformer.lens.passages.rows import MASKED_EVERY
from clearformer.runs.own_data import read_own_data

from ..trainings import SETTINGS, home_with_data, trained

KINDS = tuple(SETTINGS)
ALL = 10_000


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with home_with_data(tmp_path_factory.mktemp("corpus")):
        yield {kind: trained(kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["val", "train"])
def test_each_loss_is_that_of_what_its_row_says(runs: dict[str, Any], kind: str, split: str) -> None:
    """A row's text, read by the lens at the row's position, gives the very losses: so the page's other views do."""
    run = runs[kind]
    found = lens.corpus(run, split, first=1, rows=3)
    assert [row.number for row in found.rows] == [1, 2, 3]
    n_compared = 0
    for r, row in enumerate(found.rows):
        if not row.read_alike:
            continue
        for c in np.flatnonzero(np.isfinite(found.losses[r])).tolist():
            masked = masked_with(found, r, c)
            inputs = lens.read(run, row.text, row.output, masked=masked)
            with lens.quiet(run.model):
                output = run.model(*inputs.arguments)
            logits = output[0] if output.dim() == 2 else output[0, row.position + c]
            loss = -F.log_softmax(logits, -1)[found.ids[r, c]].item()
            assert found.losses[r, c] == pytest.approx(loss, abs=1e-5)
            assert found.likeliest[r, c] == int(logits.argmax())
            n_compared += 1
    assert n_compared >= (3 if kind == "classes" else 9)


def masked_with(found: Any, r: int, c: int) -> list[int]:
    """The positions that are masked with a column, by what the row says."""
    row = found.rows[r]
    if not row.masked_every:
        return []
    assert row.masked_every == MASKED_EVERY
    columns = range(c % MASKED_EVERY, found.ids.shape[1], MASKED_EVERY)
    return [row.position + each for each in columns if found.ids[r, each] >= 0 and each not in row.special]


def test_the_mean_of_all_rows_is_the_loss_of_the_evaluation(runs: dict[str, Any]) -> None:
    for kind in ("decoder", "encoder-decoder"):
        found = lens.corpus(runs[kind], rows=ALL)
        assert len(found.rows) == found.n_rows
        assert found.mean == pytest.approx(cf.evaluate(runs[kind]).loss, abs=1e-5)


def test_each_token_of_a_text_is_predicted_once(runs: dict[str, Any]) -> None:
    for kind, first in (("decoder", 1), ("encoder", 0)):
        text: Any = read_own_data(runs[kind]).prepared.splits["val"]
        ids = lens.corpus(runs[kind], rows=ALL).ids
        assert ids[ids >= 0].tolist() == text.read(first, len(text)).tolist()


def test_passages_are_where_they_are_said_to_be(runs: dict[str, Any]) -> None:
    content = Path("text.txt").read_bytes()
    for split in ("val", "train"):
        found = lens.corpus(runs["decoder"], split, first=2, rows=9, length=5)
        for passage in [*found.hardest, *found.easiest]:
            losses = found.losses[passage.row, passage.column : passage.column + passage.n]
            assert passage.loss == pytest.approx(losses.mean(), abs=1e-6)
            [span] = passage.spans
            assert content[span.start : span.stop].decode() == passage.text
            labels = [found.labels[i] for i in found.ids[passage.row, passage.column :][: passage.n]]
            assert "".join(labels).replace("\\n", "\n") == passage.text
        means = [passage.loss for passage in found.hardest]
        assert means == sorted(means, reverse=True)
        assert found.easiest[0].loss <= found.hardest[-1].loss


def test_pairs_and_labelled_texts_are_passages_on_their_lines(runs: dict[str, Any]) -> None:
    for kind, file in (("encoder-decoder", "pairs.tsv"), ("classes", "labelled.tsv")):
        lines = Path(file).read_bytes()
        found = lens.corpus(runs[kind], rows=ALL)
        for passage in found.hardest:
            [span] = passage.spans
            line = lines[span.start : span.stop].decode()
            wanted = passage.text if kind == "encoder-decoder" else passage.text.replace(": ", "\t", 1)
            assert line == wanted
            assert passage.loss == pytest.approx(float(np.nanmean(found.losses[passage.row])), abs=1e-6)
        assert found.uniform_loss == pytest.approx(
            np.log(2 if kind == "classes" else runs[kind].tokenizer.vocab_size)
        )


def test_an_encoders_special_tokens_have_no_loss(runs: dict[str, Any]) -> None:
    found = lens.corpus(runs["encoder"], rows=ALL)
    special = {runs["encoder"].tokenizer.id_of(name) for name in runs["encoder"].tokenizer.specials}
    for r, row in enumerate(found.rows):
        assert row.special == [c for c, token in enumerate(found.ids[r]) if token in special]
        assert np.isnan(found.losses[r, row.special]).all()
    assert found.n_losses > 50


def test_it_shows_itself_and_says_how_far_it_is(runs: dict[str, Any], tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    found = lens.corpus(runs["decoder"], rows=4, on_step=lambda *each: told.append(each))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert "split val, rows 0 to 3 of" in found.caption()
    assert {row[0] for row in found.table().rows} == {"hardest", "easiest"}
    assert found.figure(tmp_path / "corpus.png").stat().st_size > 1000
    assert found.to_dict() == lens.corpus(runs["decoder"], rows=4).to_dict()


def test_it_changes_nothing_in_the_model(runs: dict[str, Any]) -> None:
    run = runs["encoder"]
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    state = torch.get_rng_state()
    lens.corpus(run, rows=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"split": "tset"}, "split: the data have no 'tset'; choose train, val"),
        ({"split": [0]}, r"split: the data have no \[0\]; choose train, val"),
        ({"first": 9999}, "first: the split val has"),
        ({"rows": 0}, "rows: 1 or more; got 0"),
        ({"length": True}, "length: a whole number"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(
    runs: dict[str, Any], given: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        lens.corpus(runs["decoder"], **given)


def test_a_run_that_was_not_trained_here_has_no_corpus(runs: dict[str, Any], tmp_path: Path) -> None:
    saved = cf.Run(runs["decoder"].model, runs["decoder"].tokenizer).save(tmp_path / "saved")
    with pytest.raises(RunError):
        lens.corpus(saved)
