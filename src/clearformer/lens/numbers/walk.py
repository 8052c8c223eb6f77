"""The whole way through one block: its input, its sub-layers in order, and its output.

The first block's way begins at the embeddings, and the last one's ends at the logits.
"""

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearformer.hooks import Hook, hook_points
from clearformer.hooks.readings import once
from clearformer.lens.activations import (
    block_in_the_open,
    check_part,
    kept,
    memory_name,
    points_before,
    prefix_of,
)
from clearformer.lens.inputs import Inputs
from clearformer.lens.numbers.attention import Head, attention_out, attention_steps
from clearformer.lens.numbers.rules import Activated, Dot, Embedding, Lookup, Mean, Sinusoid, Sum
from clearformer.lens.numbers.sources import Source
from clearformer.lens.numbers.steps import Code, Way, as_code, computed
from clearformer.lens.patterns.attention import checked_number
from clearformer.model import Encoder, Transformer
from clearformer.model.block import Block
from clearformer.model.feedforward import FeedForward, GatedFeedForward
from clearformer.model.positions import LearnedPositions, SinusoidalPositions
from clearformer.model.transformer import MaskedHead, Stack

WORDS = {
    "relu": "relu: relu(a) = max(0, a)",
    "relu2": "relu2: relu2(a) = max(0, a)^2",
    "silu": "silu: silu(a) = a / (1 + exp(-a))",
    "swiglu": "silu: silu(a) = a / (1 + exp(-a))",
    "gelu": "gelu: gelu(a) = a Phi(a), Phi the normal distribution's",
    "geglu": "gelu: gelu(a) = a Phi(a), Phi the normal distribution's",
}
OF_TANH = "gelu: gelu(a) = a / 2 (1 + tanh(sqrt(2/pi) (a + 0.044715 a^3)))"


class Walk:
    """The steps through a block for one head.

    Attributes:
        inputs: The text.
        layer: The block, from 0.
        head: The head whose queries, keys, values and scores are included, from 0.
        part: `attn`, `cross_attn`, or `encoder` for a block of an encoder-decoder's encoder.
        path: The block's name.
        position: The position of the logits, if the way ends there.

    Raises:
        UserError: there is no such layer, head or part.
    """

    def __init__(self, inputs: Inputs, layer: int, head: int, part: str, position: int) -> None:
        self.inputs, self.model = inputs, inputs.model
        check_part(self.model, part)
        self.part, self.prefix = part, prefix_of(self.model, part)
        self.stack: Stack = self.model.stack(self.prefix)
        self.layer = checked_number("layer", layer, len(self.stack.blocks))
        self.head = checked_number(
            "head", head, self.model.config.attention.heads(self.model.config.d_model)[0]
        )
        self.position = position
        self.path = f"{self.prefix}blocks.{self.layer}"
        self.is_last = self.layer == len(self.stack.blocks) - 1
        cache = kept(inputs, self.is_needed_before)
        opened = ("block in the open", inputs.key, self.path)
        cache.update(
            once(self.model, opened, lambda: block_in_the_open(inputs, self.prefix, self.layer, cache))
        )
        self.way = Way(inputs, cache, "source" if self.reads_source else "tokens")
        with torch.no_grad():
            self.walk()

    @property
    def reads_source(self) -> bool:
        """Whether its rows are positions of an encoder-decoder's source."""
        return self.prefix == "encoder_"

    def is_needed_before(self, name: str) -> bool:
        """Whether an activation is needed that comes before the block."""
        embeds = (f"hook_{self.prefix}embed", f"hook_{self.prefix}pos_embed")
        before = points_before(self.model, self.prefix, self.layer)
        return name in (*embeds, *before) or name.startswith(f"{self.prefix}ln_embed.")

    def walk(self) -> None:
        """Add all steps, in order."""
        way, path, block = self.way, self.path, self.stack.blocks[self.layer]
        x = self.embedded() if self.layer == 0 else self.from_before()
        assert isinstance(block, Block)
        before = x
        way.stage = "attention"
        mid_name = f"{path}.hook_resid_mid" if hasattr(block, "hook_resid_mid") else f"{path}.hook_resid_post"
        x = self.sublayer(block, x, "attn", mid_name)
        if block.cross_attn is not None:
            way.stage = "cross-attention"
            x = self.sublayer(block, x, "cross_attn", f"{path}.hook_resid_mid_cross")
        if block.mlp is not None and block.ln2 is not None:
            way.stage = "feed-forward"
            x = self.feed_forward(block, block.ln2, x, before)
        elif block.cross_attn is not None:
            post = way.activation(f"{path}.hook_resid_post", "resid_post")
            code: Code = (Block.forward, "return self.hook_resid_post")
            x = way.add(
                post, "residual stream after the block", f"resid_post = {x.symbol}", "block", code, Sum((x,))
            )
        if self.is_last:
            way.stage = "output"
            self.output(x)

    # --- input ----------------------------------------------------------------------------------------------

    def embedded(self) -> Source:
        """Add the tokens' vectors and those of their positions, as the first block reads them."""
        way, model, prefix = self.way, self.model, self.prefix
        tokens = self.inputs.source if self.reads_source else self.inputs.tokens
        assert tokens is not None
        d, scaled = model.config.d_model, model.config.scale_embeddings
        factor = way.number("sqrt_d", "sqrt(d_model)", d**0.5) if scaled else None
        rule = Embedding(
            tokens[0].tolist(),
            way.matrix("embed.weight", "W_E"),
            factor,
            way.parameter("token_types.weight", "token_type"),
        )
        made = way.add(
            way.activation(f"hook_{prefix}embed", "embed"),
            "token embeddings",
            "embed = the rows of W_E for the token ids"
            + (" * sqrt(d)" if scaled else "")
            + (f" + {rule.types.symbol}[0]" if rule.types is not None else ""),
            "scaled embedding" if scaled else "embedding",
            (Transformer.token_vectors, "x = self.embed("),
            rule,
        )
        parts = [made]
        if f"hook_{prefix}pos_embed" in way.cache:
            parts.append(self.position_vectors())
        code: Code = (Stack.run, "x = x + (")
        equation = " + ".join(each.symbol for each in parts)
        if not isinstance(self.stack.ln_embed, nn.Identity):
            norm = f"{prefix}ln_embed"
            total = parts[0]
            if len(parts) > 1:
                total = self.added(parts, f"{norm}.input", "embed_sum")
                title = "embeddings and positions"
                way.add(total, title, f"embed_sum = {equation}", "embedding", code, Sum(tuple(parts)))
            parts = [way.normalized(self.stack.ln_embed, norm, total, "norm0", "embeddings, normalised")]
            equation, code = "norm0", (Stack.run, "self.ln_embed(")
        return way.add(
            way.activation(f"{self.path}.hook_resid_pre", "resid_pre"),
            "input of the block: the residual stream",
            f"resid_pre = {equation}",
            "block",
            code,
            Sum(tuple(parts)),
        )

    def position_vectors(self) -> Source:
        """Add the vectors of the positions."""
        way, position, path = self.way, self.stack.position, f"{self.prefix}position"
        made = way.activation(f"hook_{self.prefix}pos_embed", "pos_embed")
        code: Code = (type(position).embed, "return")
        if isinstance(position, LearnedPositions):
            table = way.matrix(f"{path}.weight", "W_pos")
            rule = Lookup(table, lambda row, column: (row, column), "the position's own vector")
            equation = "pos_embed = the rows of W_pos for the positions"
            return way.add(made, "position vectors", equation, "positions", code, rule)
        if isinstance(position, SinusoidalPositions):
            rule = Sinusoid(self.model.config.d_model, position.spec.interleaved)
            equation = "pos_embed = sin and cos of t / 10000^(2i/d)"
            return way.add(made, "position vectors", equation, "sinusoidal", code, rule)
        why = f"{path} is a {type(position).__name__}, a custom kind: how it computes a number is unknown"
        return way.add(made, "position vectors", "pos_embed = positions", "own", None, why)

    def from_before(self) -> Source:
        """Add the residual stream after the previous block."""
        way = self.way
        before = way.activation(f"{self.prefix}blocks.{self.layer - 1}.hook_resid_post", "resid_post_before")
        way.stage = "attention"
        return way.add(
            way.activation(f"{self.path}.hook_resid_pre", "resid_pre"),
            "input of the block: the residual stream",
            f"resid_pre = output of block {self.layer - 1}",
            "block",
            (Stack.run, "x = block("),
            Sum((before,)),
        )

    # --- sub-layers -----------------------------------------------------------------------------------------

    def sublayer(self, block: Block, x: Source, sublayer: str, name: str) -> Source:
        """Add attention or cross-attention: its norm, its head if wanted, its output, and the residual sum."""
        way, path = self.way, self.path
        cross = sublayer == "cross_attn"
        norm_name = "ln_cross" if cross else "ln1"
        norm: nn.Module = getattr(block, norm_name)
        module: nn.Module = getattr(block, sublayer)
        symbol = "norm_cross" if cross else "norm1"
        what = "cross-attention" if cross else "attention"
        reads = x
        if block.placement == "pre":
            reads = way.normalized(norm, f"{path}.{norm_name}", x, symbol, f"{what} input, normalised")
        if cross == (self.part == "cross_attn"):
            memory = self.memory() if cross else None
            positions, causal = (None if cross else self.stack.position), self.is_causal and not cross
            attention_steps(
                way,
                Head(
                    module,
                    f"{path}.{sublayer}",
                    self.head,
                    reads,
                    memory,
                    positions,
                    f"{self.prefix}position",
                    causal,
                ),
            )
        written = "cross_attn_out" if cross else "attn_out"
        out = attention_out(way, f"{path}.{sublayer}", f"{path}.hook_{written}", module, written)
        return self.add_back(block, norm, f"{path}.{norm_name}", x, out, name, symbol)

    @property
    def is_causal(self) -> bool:
        """Whether the stack's self-attention is causal."""
        return not (isinstance(self.model, Encoder) or self.reads_source)

    def memory(self) -> Source:
        """Add the vectors that cross-attention reads."""
        way = self.way
        made = way.activation(memory_name(self.model), "memory")
        why = "the output of the encoder: its own last block explains it (part encoder)"
        title = "what is read: the output of the encoder"
        return way.add(
            made, title, "memory = the encoder's last vectors", "cross-attention", None, why, "source"
        )

    def add_back(
        self, block: Block, norm: nn.Module, norm_path: str, x: Source, out: Source, name: str, symbol: str
    ) -> Source:
        """Add the residual stream after a sub-layer."""
        way = self.way
        parts = (x, out) if block.residual else (out,)
        equation = " + ".join(each.symbol for each in parts)
        made = way.activation(name, name.rpartition("hook_")[2])
        title = "residual stream after " + {
            "resid_mid": "attention",
            "resid_mid_cross": "cross-attention",
            "resid_post": "the block",
        }.get(made.symbol, "it")
        code: Code = (Block.add, "x = x + out")
        if block.placement != "post" or isinstance(norm, nn.Identity):
            return way.add(made, title, f"{made.symbol} = {equation}", "residual", code, Sum(parts))
        total = self.added(list(parts), f"{norm_path}.input", f"{made.symbol}_sum")
        way.add(total, "sum before the norm", f"{total.symbol} = {equation}", "residual", code, Sum(parts))
        normed = way.normalized(norm, norm_path, total, symbol, "sum, normalised", section="post-norm")
        code = (Block.add, "return norm(x)")
        return way.add(made, title, f"{made.symbol} = {normed.symbol}", "post-norm", code, Sum((normed,)))

    def added(self, parts: list[Source], name: str, symbol: str) -> Source:
        """Return a sum that has no hook point."""
        values = parts[0].values
        for part in parts[1:]:
            values = values + part.values
        python = "(" + " + ".join(part.python for part in parts) + ")"
        return computed(symbol, name, values, python)

    def feed_forward(self, block: Block, norm: nn.Module, x: Source, before: Source) -> Source:
        """Add the feed-forward network's steps, and the residual sum."""
        way, path, mlp = self.way, f"{self.path}.mlp", block.mlp
        reads = before if block.parallel else x
        if block.placement == "pre":
            reads = way.normalized(norm, f"{self.path}.ln2", reads, "norm2", "feed-forward input, normalised")
        out = way.activation(f"{self.path}.hook_mlp_out", "mlp_out")
        if isinstance(mlp, FeedForward | GatedFeedForward):
            post = self.hidden(mlp, path, reads)
            bias = way.parameter(f"{path}.W_out.bias", "b_out")
            rule: Dot | str = Dot(post, way.matrix(f"{path}.W_out.weight", "W_out"), "f", bias=bias)
            equation = "mlp_out = post W_out" + (" + b_out" if bias else "")
            code: Code | None = (type(mlp).forward, "return self.W_out(")
            section = "feed-forward"
        else:
            rule = f"{path} is a {type(mlp).__name__}, a custom kind: how it computes a number is unknown"
            equation, code, section = "mlp_out = network", None, "own"
        way.add(out, "output of the feed-forward network", equation, section, code, rule)
        return self.add_back(block, norm, f"{self.path}.ln2", x, out, f"{self.path}.hook_resid_post", "norm2")

    def hidden(self, mlp: FeedForward | GatedFeedForward, path: str, x: Source) -> Source:
        """Add the network's hidden numbers."""
        way, ffn = self.way, self.model.config.ffn
        gated = isinstance(mlp, GatedFeedForward)
        section, code = ("gated" if gated else "feed-forward"), (type(mlp).forward, "self.hook_pre(")

        def projected(matrix: str, name: str, symbol: str, title: str, code: Code) -> Source:
            bias = way.parameter(f"{path}.{matrix}.bias", matrix.replace("W", "b", 1))
            rule = Dot(x, way.matrix(f"{path}.{matrix}.weight", matrix), "d", bias=bias)
            equation = f"{symbol} = {x.symbol} {matrix}" + (
                f" + {matrix.replace('W', 'b', 1)}" if bias else ""
            )
            return way.add(way.activation(f"{path}.{name}", symbol), title, equation, section, code, rule)

        pre = projected("W_gate" if gated else "W_in", "hook_pre", "pre", "before the activation", code)
        linear = None
        if gated:
            code = (type(mlp).forward, "self.hook_pre_linear(")
            linear = projected("W_in", "hook_pre_linear", "pre_linear", "what is gated", code)
        words = WORDS.get(ffn.kind, f"{ffn.kind}: a custom activation")
        if getattr(ffn, "approximate", "none") == "tanh":
            words = OF_TANH
        name = words.partition(":")[0]
        return way.add(
            way.activation(f"{path}.hook_post", "post"),
            "after the activation",
            f"post = {name}(pre)" + (" * pre_linear" if gated else ""),
            section,
            (type(mlp).forward, "self.activation("),
            Activated(pre, mlp.activation, words, f"model.{as_code(path)}.activation", linear),
        )

    # --- output ---------------------------------------------------------------------------------------------

    def output(self, x: Source) -> None:
        """Add the steps after the last block: the final norm and, in the stack that predicts, the position's logits."""
        way, model = self.way, self.model
        norm = f"{self.prefix}ln_final"
        final = way.normalized(self.stack.ln_final, norm, x, "final", "final vectors, normalised")
        if self.reads_source:
            return
        if isinstance(model, Encoder) and model.config.n_classes is not None:
            self.class_logits(model, final)
            return
        row = self.position
        self.token_logits(self.masked_head(model, final), row)

    def token_logits(self, final: Source, row: int) -> None:
        """Add the logits of one position: of every token as the next one or, in an encoder, as its own."""
        way, model, config = self.way, self.model, self.model.config
        tied = model.head is None
        matrix = way.matrix("embed.weight" if tied else "head.weight", "W_E" if tied else "W_head")
        bias = way.parameter("head_bias" if tied else "head.bias", "b_head")
        factor = (
            way.number("scale", "1 / sqrt(d_model)", config.d_model**-0.5) if config.scale_logits else None
        )
        rule = Dot(final, matrix, "d", bias=bias, factor=factor)
        values = model.uncapped_logits(final.values[row])
        cap = config.logit_soft_cap
        symbol = "logits" if cap is None else "uncapped"
        equation = f"{symbol} = {'scale ' if factor else ''}{final.symbol} {matrix.symbol}^T" + (
            " + b_head" if bias else ""
        )
        code: Code = (Transformer.uncapped_logits, "return ")
        logits = way.add(
            replace(
                computed(
                    symbol,
                    symbol,
                    values[None],
                    f"model.uncapped_logits({final.python}[{row}])[None].detach()",
                ),
                first_row=row,
            ),
            "logits of every token" + ("" if cap is None else ", before the soft cap"),
            equation,
            "tied logits" if tied else "logits",
            code,
            rule,
            columns="vocabulary",
        )
        if cap is None:
            return
        capped = (cap * torch.tanh(values / cap))[None]
        way.add(
            replace(computed("logits", "logits", capped, f"logits[0, {row}:{row + 1}]"), first_row=row),
            "logits of every token",
            f"logits = {cap:g} tanh(uncapped / {cap:g})",
            "soft cap",
            (Transformer.unembed, "return logits if cap"),
            Activated(
                logits,
                partial(soft_capped, cap=cap),
                f"cap: cap(a) = {cap:g} tanh(a / {cap:g})",
                f"(lambda a: {cap!r} * (a / {cap!r}).tanh())",
            ),
            columns="vocabulary",
        )

    def masked_head(self, model: Transformer, final: Source) -> Source:
        """Add the steps of an encoder's masked head, if it has one; return the vectors after it."""
        if not isinstance(model, Encoder) or not isinstance(head := model.masked_head, MaskedHead):
            return final
        way, path = self.way, "masked_head"
        code: Code = (MaskedHead.forward, "return")
        dense = head.dense(final.values)
        bias = way.parameter(f"{path}.dense.bias", "b")
        made = way.add(
            computed("dense", f"{path}.dense", dense, f"model.masked_head.dense({final.python}).detach()"),
            "masked head, before its activation",
            f"dense = {final.symbol} W" + (" + b" if bias else ""),
            "masked head",
            code,
            Dot(final, way.matrix(f"{path}.dense.weight", "W"), "d", bias=bias),
        )
        bent = way.add(
            computed("bent", f"{path}.gelu", F.gelu(dense), f"torch.nn.functional.gelu({made.python})"),
            "masked head, after its activation",
            "bent = gelu(dense)",
            "masked head",
            code,
            Activated(made, F.gelu, WORDS["gelu"], "torch.nn.functional.gelu"),
        )
        if isinstance(head.ln, nn.Identity):
            return bent
        points = [name for name in hook_points(model) if name.startswith(f"{path}.ln.")]
        with model.hooked(dict.fromkeys(points, self.keep)):
            head(final.values[None])
        return way.normalized(head.ln, f"{path}.ln", bent, "normed_head", "masked head, normalised")

    def keep(self, activation: Tensor, hook: Hook) -> None:
        """Keep an activation that `kept` does not reach."""
        self.way.cache[hook.name] = activation

    def class_logits(self, model: Encoder, final: Source) -> None:
        """Add the vector of the whole text, and the logits of the classes."""
        way = self.way
        values = model.pool(final.values[None])
        if model.pooler is None:
            rule, equation = Mean(final), "pooled = mean of all positions"
            code: Code = (Encoder.pool, "return (x * weights)")
        else:
            before = way.add(
                computed(
                    "dense",
                    "pooler",
                    model.pooler(final.values[:1]),
                    f"model.pooler({final.python}[:1]).detach()",
                ),
                "the first token's vector, before tanh",
                "dense = final W + b",
                "masked head",
                (Encoder.pool, "return torch.tanh("),
                Dot(final, way.matrix("pooler.weight", "W"), "d", bias=way.parameter("pooler.bias", "b")),
                rows="text",
            )
            rule = Activated(before, torch.tanh, "tanh", "torch.tanh")
            equation, code = "pooled = tanh(dense)", (Encoder.pool, "return torch.tanh(")
        pooled = way.add(
            computed("pooled", "hook_pooled", values, 'cache["hook_pooled"]'),
            "one vector for the whole text",
            equation,
            "masked head",
            code,
            rule,
            rows="text",
        )
        way.add(
            computed("logits", "logits", model.classifier(values), "logits"),
            "logits of every class",
            "logits = pooled W + b",
            "logits",
            (Encoder.forward, "return self.classifier("),
            Dot(
                pooled,
                way.matrix("classifier.weight", "W"),
                "d",
                bias=way.parameter("classifier.bias", "b"),
            ),
            rows="text",
            columns="classes",
        )


def soft_capped(x: Tensor, cap: float) -> Tensor:
    """Return cap * tanh(x / cap), as `Transformer.unembed` does."""
    return cap * torch.tanh(x / cap)
