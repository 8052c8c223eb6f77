"""Heads by what they do: a model whose heads are set by hand is scored as it was made."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from clearformer import lens
from clearformer.errors import UserError
from clearformer.lens.heads.scores import duplicate_positions, induction_positions, repeated
from clearformer.model import ModelConfig, build
from clearformer.model.attention import Last, MultiHead
from clearformer.model.feedforward import NoFeedForward
from clearformer.model.positions import NoPositions
from clearformer.text import CharTokenizerSpec, Tokenizer

V, P, H, DH = 19, 37, 5, 37  # Dh holds a position's or a token's one-hot vector
TOKEN, POSITION, BEFORE, NEXT = (
    slice(0, V),
    slice(V, V + P),
    slice(V + P, 2 * V + P),
    slice(2 * V + P, 3 * V + P),
)
PREVIOUS, DUPLICATE, INDUCTION = ("blocks.0.attn", 3), ("blocks.0.attn", 1), ("blocks.1.attn", 2)


def induction_model() -> Any:
    """Two layers without norms or networks that repeat what they have read (Elhage et al. 2021), and heads of noise.

    The residual stream has four parts: which token, which position, which token stood before, which comes next.
    Head 3 of the first layer reads the position before and writes its token to `before`; head 2 of the second
    reads where the own token stands in `before` and writes the token of that place to `next`, which the head
    reads. Head 1 of the first layer reads the own token, and writes nothing that anybody reads.
    """
    torch.manual_seed(0)
    d_model = 3 * V + P
    model = build(
        ModelConfig(
            vocab_size=V,
            d_model=d_model,
            n_layers=2,
            max_seq_len=P,
            tie_embeddings=False,
            placement="none",
            final_norm=False,
            ffn=NoFeedForward(),
            attention=MultiHead(n_heads=H, d_head=DH, scale=False),
        )
    ).double()
    with torch.no_grad():
        for weight in (model.embed.weight, model.position.weight, model.head.weight):
            weight.zero_()
        model.embed.weight[:, TOKEN] = torch.eye(V)
        model.position.weight[:, POSITION] = torch.eye(P)
        model.head.weight[:, NEXT] = 12 * torch.eye(V)
        set_head(model.blocks[0].attn, 3, POSITION, 30 * torch.eye(P).roll(-1, 0), POSITION, BEFORE)
        set_head(model.blocks[0].attn, 1, TOKEN, 4 * torch.eye(V), TOKEN, POSITION)
        set_head(model.blocks[1].attn, 2, TOKEN, 30 * torch.eye(V), BEFORE, NEXT)
    return model


def set_head(layer: Any, head: int, asks: slice, match: torch.Tensor, keys: slice, writes: slice) -> None:
    """A head that asks by one part of the stream for those that `match` says in another, and moves their tokens."""
    rows = slice(head * DH, (head + 1) * DH)
    for matrix in (layer.W_Q, layer.W_K, layer.W_V):
        matrix.weight[rows] = 0
    layer.W_O.weight[:, rows] = 0
    n = match.shape[0]
    layer.W_Q.weight[rows, asks][:n] = match
    layer.W_K.weight[rows, keys][:n] = torch.eye(n)
    layer.W_V.weight[rows, TOKEN][:V] = torch.eye(V)
    n = min(V, writes.stop - writes.start)
    layer.W_O.weight[writes, rows][:n, :n] = torch.eye(n)


@pytest.fixture(scope="module")
def model() -> Any:
    return induction_model()


def name_of(head: Any) -> tuple[str, int]:
    return head.name.removesuffix(".hook_z"), head.head


def test_the_heads_are_found_by_what_they_do(model: Any) -> None:
    found = lens.head_scores(model, n_tokens=17)
    for kind, made in (("previous", PREVIOUS), ("induction", INDUCTION)):
        first, second = found.largest(kind, 2)  # type: ignore[arg-type]
        assert name_of(first) == made
        assert getattr(first, kind) > 0.95  # the first token is said to stand before itself
        assert getattr(second, kind) < 0.4
    # Itself and the same token before it are alike: half of it goes to each, and a little to the rest.
    duplicate = found.largest("duplicate", 1)[0]
    assert name_of(duplicate) == DUPLICATE
    assert 0.3 < duplicate.duplicate < 0.5
    assert found.repeat_loss < 0.1 < 3 < found.first_loss


def test_circuits_tell_copying_and_matching_by_the_weights_alone(model: Any) -> None:
    by_name = {name_of(each): each for each in lens.head_scores(model, n_tokens=17).heads}
    assert by_name[INDUCTION].copying == pytest.approx(1.0)
    assert by_name[PREVIOUS].copying != by_name[PREVIOUS].copying  # it writes nothing that the logits read
    assert by_name[DUPLICATE].matching == pytest.approx(1.0)
    turned = lens.edited_copy(
        model, {"blocks.1.attn.W_O.weight": torch.neg, "blocks.0.attn.W_Q.weight": torch.neg}
    )
    by_name = {name_of(each): each for each in lens.head_scores(turned, n_tokens=17).heads}
    assert by_name[INDUCTION].copying == pytest.approx(-1.0)
    assert by_name[DUPLICATE].matching == pytest.approx(-1.0)


@pytest.mark.parametrize("changes", [{}, {"attention": MultiHead(n_heads=6, n_kv_heads=3, d_head=4)}])
def test_circuits_are_those_of_the_whole_vocabulary(changes: dict[str, Any]) -> None:
    """The eigenvalues of [V V] matrices, here formed, through the norms' gains."""
    small = {
        "vocab_size": 13,
        "d_model": 22,
        "n_layers": 1,
        "max_seq_len": 17,
        "attention": MultiHead(n_heads=2),
    }
    model = build(ModelConfig(**(small | changes))).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    block, final = model.blocks[0], model.ln_final
    n_heads, n_kv_heads = block.attn.n_heads, block.attn.n_kv_heads
    centred = model.embed.weight - model.embed.weight.mean(1, keepdim=True)
    q, k, v = (
        layer(centred * block.ln1.weight).unflatten(1, (n, -1))
        for layer, n in (
            (block.attn.W_Q, n_heads),
            (block.attn.W_K, n_kv_heads),
            (block.attn.W_V, n_kv_heads),
        )
    )
    for each in lens.head_scores(model).heads:
        shared = each.head * n_kv_heads // n_heads
        columns = block.attn.W_O.weight.unflatten(1, (n_heads, -1))[:, each.head]
        written = v[:, shared] @ columns.T
        logits = (written - written.mean(1, keepdim=True)) * final.weight @ model.embed.weight.T
        for score, matrix in ((each.copying, logits), (each.matching, q[:, each.head] @ k[:, shared].T)):
            values = torch.linalg.eigvals(matrix.detach())
            assert score == pytest.approx((values.real.sum() / values.abs().sum()).item(), abs=1e-6)


def test_circuits_pass_the_norms_of_a_post_norm_stream() -> None:
    """The last layer's, by hand: an embedding passes all norms before it, what is written all from its own on."""
    attention = MultiHead(n_heads=2)
    small = {"vocab_size": 13, "d_model": 22, "n_layers": 2, "max_seq_len": 17, "attention": attention}
    model = build(ModelConfig(placement="post", **small)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    first, last = model.blocks

    def through(norms: list[Any], x: torch.Tensor) -> torch.Tensor:
        for norm in norms:
            x = (x - x.mean(1, keepdim=True)) * norm.weight
        return x

    read = through([first.ln1, first.ln2], model.embed.weight)
    q, k, v = (each(read).unflatten(1, (2, -1)) for each in (last.attn.W_Q, last.attn.W_K, last.attn.W_V))
    for each in lens.head_scores(model).heads[2:]:
        columns = last.attn.W_O.weight.unflatten(1, (2, -1))[:, each.head]
        written = through([last.ln1, last.ln2, model.ln_final], v[:, each.head] @ columns.T)
        pairs = written @ model.embed.weight.T, q[:, each.head] @ k[:, each.head].T
        for score, matrix in zip((each.copying, each.matching), pairs, strict=True):
            values = torch.linalg.eigvals(matrix.detach())
            assert score == pytest.approx((values.real.sum() / values.abs().sum()).item(), abs=1e-6)


def test_switching_induction_off_costs_the_repeats_ten_times_what_other_heads_do(model: Any) -> None:
    text = repeated(model, None, 17, 3, seed=5)
    repeats = text.tokens.clone()
    repeats[:, : text.start + text.n + 1] = -100
    metric = lens.MeanLoss(torch.cat([repeats[:, 1:], torch.full_like(repeats[:, :1], -100)], dim=1))
    before = metric(model.eval()(text.tokens)).mean().item()

    def rise(head: lens.Site) -> float:
        """Of the loss on the repeats without a head, nats."""
        with lens.quiet(model), model.hooked(lens.hooks_of([lens.zero(head)])):
            return metric(model(text.tokens)).mean().item() - before

    circuit = [
        lens.Site(each.name, each.head)
        for kind in ("previous", "induction")
        for each in lens.head_scores(model, n_tokens=17).largest(kind, 1)  # type: ignore[arg-type]
    ]
    others = [head for head in lens.heads_of(model) if head not in circuit]
    assert len(others) == 2 * H - 2
    largest_other = max(abs(rise(head)) for head in others)
    for head in circuit:
        assert rise(head) > 1.0
        assert rise(head) > 10 * largest_other


def test_positions_of_duplicates_and_of_what_stood_behind_them() -> None:
    tokens = torch.tensor([[5, 3, 7, 5, 3, 5]])
    assert duplicate_positions(tokens)[0].nonzero().tolist() == [[3, 0], [4, 1], [5, 0], [5, 3]]
    assert induction_positions(tokens)[0].nonzero().tolist() == [[3, 1], [4, 2], [5, 1], [5, 4]]


@dataclass(frozen=True)
class Run:
    model: Any
    tokenizer: Tokenizer


def test_random_tokens_are_plain_ones_behind_bos() -> None:
    tokenizer = CharTokenizerSpec().train(["abcdefg"], specials=("<bos>", "<eos>"))
    model = build(
        ModelConfig(
            vocab_size=tokenizer.vocab_size,
            d_model=8,
            n_layers=1,
            max_seq_len=11,
            attention=MultiHead(n_heads=2),
        )
    )
    text = repeated(model, tokenizer, 50, 3, seed=1)
    assert text.start == 1
    assert text.n == 5
    assert text.tokens.shape == (3, 11)
    assert (text.tokens[:, 0] == tokenizer.bos_id).all()
    assert torch.equal(text.tokens[:, 1:6], text.tokens[:, 6:])
    assert all(len(set(row)) == 5 for row in text.tokens[:, 1:6].tolist())
    assert not {tokenizer.bos_id, tokenizer.eos_id} & set(text.tokens[:, 1:].flatten().tolist())
    assert len(lens.head_scores(Run(model, tokenizer)).heads) == 2


@pytest.mark.parametrize("ties", [True, False])
def test_circuits_of_16_bits_are_products_in_float32(ties: bool) -> None:
    torch.manual_seed(0)
    made = build(
        ModelConfig(vocab_size=1000, d_model=8, n_layers=1, max_seq_len=9, tie_embeddings=ties)
    ).half()
    with torch.no_grad():
        made.embed.weight.mul_(600)  # the sums of its squares are beyond float16
    for found, wanted in zip(lens.head_scores(made).heads, lens.head_scores(made.float()).heads, strict=True):
        assert (found.copying, found.matching) == pytest.approx((wanted.copying, wanted.matching), abs=1e-5)


def test_without_a_residual_stream_there_are_no_direct_paths_but_at_its_ends() -> None:
    torch.manual_seed(0)
    of_one_head = {"d_model": 8, "n_layers": 2, "max_seq_len": 9, "attention": MultiHead(n_heads=1)}
    made = build(ModelConfig(vocab_size=V, residual=False, **of_one_head))
    bare = build(ModelConfig(vocab_size=V, residual=False, ffn=NoFeedForward(), **of_one_head))
    first, last = lens.head_scores(made).heads
    assert [math.isnan(each) for each in (first.copying, first.matching)] == [True, False]
    assert [math.isnan(each) for each in (last.copying, last.matching)] == [True, True]
    first, last = lens.head_scores(bare).heads
    assert [math.isnan(each) for each in (first.copying, first.matching)] == [True, False]
    assert [math.isnan(each) for each in (last.copying, last.matching)] == [True, True]
    alone = build(
        ModelConfig(vocab_size=V, residual=False, ffn=NoFeedForward(), **of_one_head | {"n_layers": 1})  # type: ignore[arg-type]
    )
    [head] = lens.head_scores(alone).heads
    assert not math.isnan(head.copying)
    assert not math.isnan(head.matching)


def test_weights_that_are_no_numbers_have_no_score() -> None:
    """LAPACK's eigenvalues of such a matrix end the process."""
    made = build(ModelConfig(vocab_size=V, d_model=8, n_layers=1, max_seq_len=9))
    with torch.no_grad():
        made.embed.weight[0, 0] = torch.nan
    assert all(
        math.isnan(each.copying) and math.isnan(each.matching) for each in lens.head_scores(made).heads
    )


def test_what_cannot_be_scored_is_said(model: Any) -> None:
    small = {"vocab_size": 7, "d_model": 8, "n_layers": 1}
    with pytest.raises(
        UserError, match=r"^model.attention.kind=last has no pattern, so there is no head to score"
    ):
        lens.head_scores(build(ModelConfig(attention=Last(), position=NoPositions(), **small)))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"n_tokens or model.max_seq_len is too small"):
        lens.head_scores(build(ModelConfig(max_seq_len=3, attention=MultiHead(n_heads=2), **small)))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="n_texts: 1 or more; got 0"):
        lens.head_scores(model, n_texts=0)
    with pytest.raises(UserError, match="n_tokens: a whole number; got 'x'"):
        lens.head_scores(model, n_tokens="x")  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match="no score 'copy'; there are previous, duplicate, induction, copying, matching"
    ):
        lens.head_scores(model).largest("copy")  # type: ignore[arg-type]


def test_every_checkpoint_of_a_run_is_scored(tmp_path: Path, model: Any) -> None:
    import clearformer as cf
    from clearformer.training.store.checkpoint import Checkpoint, Progress, save_checkpoint
    from clearformer.training.store.state import weights_of

    tokenizer = CharTokenizerSpec().train(["abcdefghijklmnopqrs"])
    unmade = lens.edited_copy(model, {"blocks.1.attn.W_Q.weight": torch.zeros_like})
    run = cf.Run(unmade.float(), tokenizer, step=3).save(tmp_path / "run")
    save_checkpoint(run.folder.checkpoints, Checkpoint(Progress(step=7), weights_of(model.float()), {}))
    model.double()
    found = lens.head_scores_by_checkpoint(run, n_tokens=17)
    assert [each.step for each in found.checkpoints] == [3, 7]
    scores = found.of("induction")
    assert scores.shape == (2, 2 * H)
    column = [name_of(head) for head in found.checkpoints[0].heads].index(INDUCTION)
    assert scores[0, column] < 0.2
    assert scores[1, column] > 0.95
    assert found.checkpoints[0].repeat_loss > 1 > found.checkpoints[1].repeat_loss
    rows = json.loads(json.dumps(found.to_dict()))["checkpoints"]
    assert [row["step"] for row in rows] == [3, 7]
    assert "blocks.1.attn:2" in found._repr_html_()
    for shown, name in ((found, "history"), (found.checkpoints[1], "heads")):
        assert shown.figure(tmp_path / f"{name}.svg").stat().st_size > 0
