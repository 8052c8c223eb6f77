"""Named configurations to begin with. Each sets only what differs from the defaults; any key can be overridden."""

from collections.abc import Callable

from clearformer.auto import auto
from clearformer.data import LabelledData, PairsData, TextData
from clearformer.errors import ConfigError, did_you_mean, shortened, shown
from clearformer.model.attention import MultiHead
from clearformer.model.config import ModelConfig
from clearformer.model.feedforward import GELU, ReLU, ReLU2
from clearformer.model.init import GPT2, Gaussian, Torch, Xavier
from clearformer.model.norms import LayerNorm, NoNorm, RMSNorm
from clearformer.model.positions import Learned, NoPositions, RoPE, Sinusoidal
from clearformer.text import BPETokenizerSpec, GPT2TokenizerSpec, WordPieceTokenizerSpec
from clearformer.training.config import RunConfig, TrainConfig
from clearformer.training.objectives import ClassificationObjective, MaskedObjective, TranslationObjective
from clearformer.training.optim.optimizers import Adam, AdamW, Muon
from clearformer.training.optim.schedules import Constant, Cosine, InverseSqrt, WarmupStableDecay

DEFAULTS = {"text": "quick", "pairs": "translate", "labelled": "classify"}  # by the form of the data


def quick() -> RunConfig:
    """A small modern decoder that trains well within a minute on two CPU cores."""
    return RunConfig(
        model=ModelConfig(
            d_model=192,
            n_layers=4,
            max_seq_len=128,
            attention=MultiHead(n_heads=3, qk_norm=RMSNorm(learned=False)),
            position=RoPE(),
            norm=RMSNorm(learned=False),
            ffn=ReLU2(bias=False),
            init=Gaussian(zero_outputs=True),
            embedding_norm=True,
            tie_embeddings=False,
            logit_soft_cap=15.0,
        ),
        train=TrainConfig(
            batch_size=16,
            max_seconds=60,
            lr=0.016,
            optimizer=Muon(adam_lr=0.002),
            schedule=WarmupStableDecay(decay=0.8),
            eval_every=100,
        ),
    )


def lecture() -> RunConfig:
    """The four-layer model of lecture 000, section 5.5: no norm, no positions, one head, Adam at 3e-4."""
    return RunConfig(
        model=ModelConfig(
            d_model=256,
            n_layers=4,
            max_seq_len=128,
            attention=MultiHead(n_heads=1, output=False),
            position=NoPositions(),
            norm=NoNorm(),
            ffn=ReLU(),
            init=Torch(),
            tie_embeddings=False,
        ),
        data=TextData(name="shakespeare"),
        train=TrainConfig(
            batch_size=64,
            max_steps=10_000,
            lr=3e-4,
            optimizer=Adam(),
            schedule=Constant(),
            grad_clip_norm=None,
            eval_every=500,
        ),
    )


def minigpt() -> RunConfig:
    """The minimal GPT of lecture 004, section 4.9: 6 layers, 8 heads, d = 256, GELU, pre-norm, tied.

    Unlike there, dropout is on embeddings and attention weights too, and the initialisation is GPT-2's, not torch's.
    """
    return RunConfig(
        model=ModelConfig(
            d_model=256,
            n_layers=6,
            max_seq_len=512,
            dropout=0.1,
            attention=MultiHead(n_heads=8, qkv_bias=True, output_bias=True),
            ffn=GELU(d_ff=1024),
        ),
        data=TextData(name="shakespeare"),
        train=TrainConfig(batch_size=16, max_steps=2000, lr=1e-3, warmup_steps=100),
    )


def nanogpt_cpu() -> RunConfig:
    """nanoGPT's recipe for a CPU: 4 layers, 4 heads, d = 128, 64 characters of context, 2,000 steps."""
    model = ModelConfig(d_model=128, n_layers=4, max_seq_len=64, attention=MultiHead(n_heads=4))
    return _nanogpt(model, batch_size=12, max_steps=2000)


def shakespeare_gpu() -> RunConfig:
    """nanoGPT's recipe for a GPU: 6 layers, 6 heads, d = 384, 256 characters of context, 5,000 steps."""
    model = ModelConfig(d_model=384, n_layers=6, max_seq_len=256, dropout=0.2, attention=MultiHead(n_heads=6))
    return _nanogpt(model, batch_size=64, max_steps=5000)


def _nanogpt(model: ModelConfig, batch_size: int, max_steps: int) -> RunConfig:
    """Common settings of nanoGPT's recipes for Tiny Shakespeare: a GPT-2 without biases, AdamW from 1e-3 to 1e-4."""
    return RunConfig(
        model=model.replace(norm=LayerNorm(bias=False), ffn=GELU(bias=False)),
        data=TextData(name="shakespeare"),
        train=TrainConfig(
            batch_size=batch_size,
            max_steps=max_steps,
            lr=1e-3,
            optimizer=AdamW(betas=(0.9, 0.99)),
            schedule=Cosine(final=0.1),
            warmup_steps=100,
        ),
    )


def gpt2() -> RunConfig:
    """GPT-2 with 124M parameters (Radford et al. 2019), with its own vocabulary."""
    return RunConfig(
        model=ModelConfig(
            d_model=768,
            n_layers=12,
            max_seq_len=1024,
            attention=MultiHead(n_heads=12, qkv_bias=True, output_bias=True),
            position=Learned(),
            ffn=GELU(approximate="tanh"),
            init=GPT2(),
        ),
        tokenizer=GPT2TokenizerSpec(),
        train=TrainConfig(
            batch_size=480,
            grad_accum_steps=40,
            max_steps=600_000,
            lr=6e-4,
            optimizer=AdamW(betas=(0.9, 0.95)),
            warmup_steps=2000,
        ),
    )


def translate() -> RunConfig:
    """A small encoder-decoder for sentence pairs; learns French to English dates and numbers within two minutes."""
    return RunConfig(
        model=ModelConfig(
            family="encoder-decoder",
            d_model=128,
            n_layers=4,
            max_seq_len=256,
            dropout=0.1,
            attention=MultiHead(n_heads=4, qkv_bias=True, output_bias=True),
            position=Sinusoidal(),
            ffn=ReLU(d_ff=256),
            init=Xavier(zero_outputs=True),
            scale_embeddings=True,
        ),
        data=PairsData(),
        tokenizer=BPETokenizerSpec(vocab_size=2000),
        train=TrainConfig(
            objective=TranslationObjective(batch_tokens=1024),
            max_seconds=120,
            lr=0.005,
            optimizer=Muon(adam_lr=8e-3),
            schedule=WarmupStableDecay(decay=0.7),
            warmup_steps=100,
            label_smoothing=0.1,
            eval_every=500,
        ),
    )


def multi30k() -> RunConfig:
    """English to German image captions: an encoder-decoder with 2.6M parameters (4 + 4 layers, d = 128)."""
    small = translate()
    return small.replace(
        model=small.model.replace(
            dropout=0.2,
            attention=MultiHead(n_heads=4, qk_norm=RMSNorm(learned=False)),
            position=RoPE(),
            norm=RMSNorm(learned=False),
            ffn=ReLU2(d_ff=256, bias=False),
        ),
        data=PairsData(name="multi30k"),
        tokenizer=BPETokenizerSpec(vocab_size=10_000),
        train=small.train.replace(
            objective=TranslationObjective(batch_tokens=1536),
            max_seconds=None,
            max_steps=10_000,
            lr=0.007,
            optimizer=Muon(adam_lr=0.01),
            warmup_steps=400,
            checkpoint_every=250,
            keep_last=10,
        ),
    )


def transformer_base() -> RunConfig:
    """The Transformer of Vaswani et al. (2017): 6 + 6 layers, d = 512, 8 heads, post-norm, one vocabulary of 37,000."""
    return RunConfig(
        model=ModelConfig(
            family="encoder-decoder",
            d_model=512,
            n_layers=6,
            max_seq_len=512,
            dropout=0.1,
            attention=MultiHead(n_heads=8, qkv_bias=True, output_bias=True),
            position=Sinusoidal(),
            ffn=ReLU(d_ff=2048),
            init=Xavier(),
            placement="post",
            final_norm=False,
            scale_embeddings=True,
        ),
        data=PairsData(),
        tokenizer=BPETokenizerSpec(vocab_size=37_000),
        train=TrainConfig(
            objective=TranslationObjective(batch_tokens=25_000),
            grad_accum_steps=8,
            max_steps=100_000,
            lr=512**-0.5 * 4000**-0.5,
            optimizer=Adam(betas=(0.9, 0.98), eps=1e-9),
            schedule=InverseSqrt(),
            warmup_steps=4000,
            grad_clip_norm=None,
            label_smoothing=0.1,
            checkpoint_every=1000,
            keep_last=5,
        ),
    )


def masked() -> RunConfig:
    """A small BERT, pre-trained by filling in masked tokens; fine-tune it with `classify` (Devlin et al. 2019)."""
    return RunConfig(
        model=_bert(),
        tokenizer=WordPieceTokenizerSpec(vocab_size=8000),
        train=TrainConfig(
            objective=MaskedObjective(),
            batch_size=64,
            max_seconds=120,
            lr=0.01,
            optimizer=Muon(adam_lr=3e-3),
            schedule=WarmupStableDecay(decay=0.7),
            warmup_steps=50,
        ),
    )


def classify() -> RunConfig:
    """The encoder of `masked` as a text classifier; by default it predicts the language of a name."""
    return RunConfig(
        model=_bert(),
        data=LabelledData(),
        tokenizer=WordPieceTokenizerSpec(vocab_size=8000),
        train=TrainConfig(
            objective=ClassificationObjective(),
            batch_size=64,
            max_seconds=60,
            lr=0.005,
            optimizer=Muon(adam_lr=1e-3),
            schedule=WarmupStableDecay(decay=0.8),
            warmup_steps=50,
            eval_every=200,
        ),
    )


def _bert() -> ModelConfig:
    """The shape of BERT's small models."""
    return ModelConfig(
        family="encoder",
        d_model=128,
        n_layers=3,
        max_seq_len=128,
        dropout=0.1,
        attention=MultiHead(n_heads=4, qkv_bias=True, output_bias=True),
        position=Learned(),
        norm=LayerNorm(eps=1e-12),
        ffn=GELU(),
        placement="post",
        final_norm=False,
        embedding_norm=True,
        head_bias=True,
        n_token_types=2,
        masked_head="transform",
    )


PRESETS: dict[str, Callable[[], RunConfig]] = {
    "quick": quick,
    "auto": auto,
    "lecture": lecture,
    "minigpt": minigpt,
    "nanogpt-cpu": nanogpt_cpu,
    "shakespeare-gpu": shakespeare_gpu,
    "gpt2": gpt2,
    "translate": translate,
    "multi30k": multi30k,
    "transformer-base": transformer_base,
    "masked": masked,
    "classify": classify,
}


def preset(name: str) -> RunConfig:
    """Return the configuration of a preset.

    Raises:
        ConfigError: there is no such preset; the message names the nearest.
    """
    if not isinstance(name, str):
        raise ConfigError(f"expected the name of a preset; got {shown(name)}; there are {', '.join(PRESETS)}")
    if name not in PRESETS:
        hint = did_you_mean(name, PRESETS)
        raise ConfigError(f"there is no preset {shortened(name)!r}{hint}; there are {', '.join(PRESETS)}")
    return PRESETS[name]()
