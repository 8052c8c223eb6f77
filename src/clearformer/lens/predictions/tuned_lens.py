"""The tuned lens: each layer read through an affine map trained for it (Belrose et al. 2023).

    tuned = lens.tune(run, open("held-out.txt").read())
    lens.logit_lens(run, "First Citizen:", tuned=tuned)        # .learned is True

A map is x + A x + b, starting at the identity, which is the logit lens. It is trained to bring the layer's prediction
close to the last layer's, by KL(last || layer), on texts of the caller. Being trained, it shows what can be read from a
layer, and not only what the model's own head reads from it.

Shapes: L layers before the last, B batch, T tokens, D d_model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_run, check_seed, check_whole
from clearformer.decoding.text.inputs import ids_of, text_of
from clearformer.decoding.text.samples import Run
from clearformer.errors import UserError, count
from clearformer.lens.divergence import divergence_of_logs
from clearformer.lens.embeddings import tokens_read
from clearformer.lens.inputs import quiet, read
from clearformer.lens.predictions.logit_lens import stream_names, unembedded
from clearformer.lens.showing import Shown, Table
from clearformer.model import Encoder, EncoderDecoder, Transformer
from clearformer.model.norms import at_least_float32

Arguments = tuple[Int[Tensor, "B _"], ...]
"""The arguments of one call of a model; the last are the tokens whose positions predict."""

LEAST_TEXTS = 5
HELD_OUT = 0.2  # of the text: one half selects each layer's map, the other half measures it
CHECKS = 8  # how often the maps are compared during training
BATCH, LEARNING_RATE = 8, 1e-3


@dataclass(frozen=True, repr=False, eq=False)
class TunedLens(Shown):
    """The maps of a model's layers, and how good they are on held-out text.

    Attributes:
        names: The hook points of the residual streams that have a map: all but the last.
        kl: KL(last || layer) through each map, in nats, on held-out text.
        kl_of_logit_lens: The same without a map.
        n_tokens: The number of held-out tokens that those are means over.
        steps: The number of training steps.
        matrices: A, [L D D].
        offsets: b, [L D].
        model: The model that the lens was tuned for.
    """

    names: list[str]
    kl: list[float]
    kl_of_logit_lens: list[float]
    n_tokens: int
    steps: int
    matrices: Float[Tensor, "L D D"] = field(repr=False)
    offsets: Float[Tensor, "L D"] = field(repr=False)
    model: Transformer = field(repr=False)

    def check_model(self, model: Transformer) -> None:
        """Raise UserError if the lens was tuned for another model."""
        if model is not self.model:
            raise UserError(
                "tuned: this lens was tuned for another model; lens.tune(run, text) tunes one for this"
            )

    def translated(self, x: Float[Tensor, "B T D"], layer: int) -> Float[Tensor, "B T D"]:
        """Apply a layer's map to its residual stream; the last layer has none."""
        if layer == len(self.names):
            return x
        return mapped(x, self.matrices[layer], self.offsets[layer])

    def caption(self) -> str:
        return (
            f"tuned lens (learned): KL to the last layer in nats, on {count(self.n_tokens, 'held-out token')}"
        )

    def table(self) -> Table:
        rows = [
            [name, f"{before:.4f}", f"{after:.4f}"]
            for name, before, after in zip(self.names, self.kl_of_logit_lens, self.kl, strict=True)
        ]
        return Table(["layer", "logit lens", "tuned lens"], rows)

    def inches(self) -> tuple[float, float]:
        return 6.0, 3.6

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        layers = range(len(self.names))
        axes.plot(layers, self.kl_of_logit_lens, "o-", color="#8a97a8", label="logit lens")
        axes.plot(layers, self.kl, "o-", color="#2f6f9f", label="tuned lens (learned)")
        axes.set_xticks(layers, ["embedding", *map(str, layers[:-1])])
        axes.set_xlabel("after block")
        axes.set_ylabel("KL to the last layer, nats")
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        axes.set_title(self.caption(), fontsize=9)


@torch.inference_mode(False)
def tune(
    run: Run,
    text: Text | Sequence[str],
    output: Sequence[str] | None = None,
    *,
    steps: int = 200,
    seed: int = 0,
) -> TunedLens:
    """Train a lens on a text: a map for each layer but the last; for an encoder-decoder, on pairs, for its decoder.

    The last fifth of the text is held out. One half of it selects, for each layer, among the maps of several steps,
    including the identity at the start; the other half measures the selected maps.

    Args:
        run: A model that predicts tokens, and its tokenizer.
        text: At least a few windows of the model's length, best of the kind that it was trained on but did not see.
            For an encoder-decoder, a list of sources.
        output: What an encoder-decoder writes for each source.
        steps: The number of training steps, each on a batch of windows or pairs.
        seed: The seed of their order.

    Raises:
        UserError: it is no run, its model is a classifier, `steps` is less than 1, or there is too little text.
    """
    check_run(run)
    model = run.model
    check_whole("steps", steps, least=1)
    check_seed(seed)
    if model.config.n_classes is not None:
        raise UserError("a tuned lens is for a model that predicts tokens, and this one predicts a class")
    training, choosing, measuring = _parts(_texts(run, text, output))
    n, d = len(stream_names(model)) - 1, model.config.d_model
    device = model.embed.weight.device
    maps = torch.zeros(n, d, d, device=device), torch.zeros(n, d, device=device)
    best, best_kl = maps, _kl(model, choosing, *maps)
    trained = [each.clone().requires_grad_() for each in maps]
    optimizer = torch.optim.Adam(trained, lr=LEARNING_RATE)
    for step, batch in enumerate(_batches(training, steps, seed), start=1):
        with torch.enable_grad():
            loss = _mean_kl(model, batch, *trained).sum()
            optimizer.zero_grad()
            # Only of the maps: the model's own gradients are left as they are.
            for parameter, slope in zip(trained, torch.autograd.grad(loss, trained), strict=True):
                parameter.grad = slope
        optimizer.step()
        if step % -(-steps // CHECKS) == 0 or step == steps:
            now = [each.detach().clone() for each in trained]
            kl = _kl(model, choosing, *now)
            is_better = kl < best_kl
            best = tuple(
                torch.where(is_better.view(-1, *[1] * (new.dim() - 1)), new, old)
                for new, old in zip(now, best, strict=True)
            )
            best_kl = torch.minimum(kl, best_kl)
    return TunedLens(
        names=stream_names(model)[:-1],
        kl=_kl(model, measuring, *best).tolist(),
        kl_of_logit_lens=_kl(model, measuring, *maps).tolist(),
        n_tokens=_n_tokens(measuring),
        steps=steps,
        matrices=best[0],
        offsets=best[1],
        model=model,
    )


def mapped(
    x: Float[Tensor, "B T D"], matrix: Float[Tensor, "D D"], offset: Float[Tensor, " D"]
) -> Float[Tensor, "B T D"]:
    """Return x + A x + b."""
    return x + x @ matrix.T.to(x.dtype) + offset.to(x.dtype)


# --- what it is trained on --------------------------------------------------------------------------------


def _texts(run: Run, text: Any, output: Any) -> list[Arguments]:
    """Return the text as windows of one length, or an encoder-decoder's pairs."""
    if isinstance(run.model, EncoderDecoder):
        return [read(run, *pair).arguments for pair in _pairs(text, output)]
    if output is not None:
        raise UserError("output: only an encoder-decoder writes another text; omit it")
    ids = ids_of(run.tokenizer, text_of(text))
    # An encoder read each stretch between special tokens, in training too.
    around = (
        tokens_read(run.model, run.tokenizer, ids[:1])[1:] if isinstance(run.model, Encoder) and ids else []
    )
    length = min(run.model.config.max_seq_len - len(around), len(ids) // 10)
    if length < 2:
        raise UserError(
            f"text: {count(len(ids), 'token')} {'is' if len(ids) == 1 else 'are'} too few to train and measure a lens; "
            "give more"
        )
    windows = [ids[at : at + length] for at in range(0, len(ids) - length + 1, length)]
    if around:
        windows = [tokens_read(run.model, run.tokenizer, window) for window in windows]
    return [(window,) for window in torch.tensor(windows, device=run.model.embed.weight.device).split(1)]


def _pairs(sources: Any, outputs: Any) -> list[tuple[str, str]]:
    if isinstance(sources, str) or not isinstance(outputs, Sequence) or isinstance(outputs, str):
        raise UserError(
            "the lens of an encoder-decoder is tuned on pairs: give a list of sources and, as `output`, a list of "
            "their outputs"
        )
    if len(sources) != len(outputs) or len(sources) < LEAST_TEXTS:
        raise UserError(
            f"output: {count(len(sources), 'source')} and {count(len(outputs), 'output')}; give the same number "
            f"of each, at least {LEAST_TEXTS}"
        )
    return list(zip(sources, outputs, strict=True))


def _parts(texts: list[Arguments]) -> tuple[list[Arguments], list[Arguments], list[Arguments]]:
    """Split the texts into those for training, for selecting and for measuring."""
    held_out = max(2, round(len(texts) * HELD_OUT))
    first, second = len(texts) - held_out, len(texts) - held_out + held_out // 2
    return texts[:first], texts[first:second], texts[second:]


def _batches(texts: list[Arguments], steps: int, seed: int) -> Iterator[list[Arguments]]:
    generator = torch.Generator("cpu").manual_seed(seed)
    for _ in range(steps):
        chosen = torch.randint(len(texts), (min(BATCH, len(texts)),), generator=generator, device="cpu")
        yield [texts[number] for number in chosen.tolist()]


# --- how far the layers are from the last -----------------------------------------------------------------


def _kl(model: Transformer, texts: list[Arguments], matrices: Tensor, offsets: Tensor) -> Float[Tensor, " L"]:
    """Return `_mean_kl` of any number of texts, without gradients."""
    total = torch.zeros(len(matrices), device=matrices.device)
    with torch.no_grad():
        for start in range(0, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            total += _mean_kl(model, batch, matrices, offsets) * _n_tokens(batch)
    return total / _n_tokens(texts)


def _mean_kl(
    model: Transformer, texts: list[Arguments], matrices: Tensor, offsets: Tensor
) -> Float[Tensor, " L"]:
    """Return KL(last || layer) of each layer through its map, averaged over all tokens of some texts."""
    calls = _calls(texts)
    sums = [
        torch.stack(list(_divergences(model, call, matrices, offsets))) * call[-1].numel() for call in calls
    ]
    return torch.stack(sums).sum(0) / _n_tokens(texts)


def _calls(texts: list[Arguments]) -> list[Arguments]:
    """Batch texts of one length into one call."""
    by_shape: dict[tuple[torch.Size, ...], list[Arguments]] = {}
    for text in texts:
        by_shape.setdefault(tuple(each.shape for each in text), []).append(text)
    return [tuple(map(torch.cat, zip(*alike, strict=True))) for alike in by_shape.values()]


def _n_tokens(texts: list[Arguments]) -> int:
    return sum(text[-1].numel() for text in texts)


def _divergences(
    model: Transformer, call: Arguments, matrices: Tensor, offsets: Tensor
) -> Iterator[Float[Tensor, ""]]:
    names = stream_names(model)
    with quiet(model):
        logits, seen = model.run_with_cache(*call, names=names)
        last = at_least_float32(logits).log_softmax(-1)
    with quiet(model, grad=torch.is_grad_enabled()):
        for i, name in enumerate(names[:-1]):
            layer = unembedded(model, mapped(seen[name], matrices[i], offsets[i]))
            logs = at_least_float32(layer).log_softmax(-1)
            yield divergence_of_logs(last, logs).mean()
