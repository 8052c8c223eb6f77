"""Named configurations to begin with. Each sets only what differs from the defaults; any key can be overridden."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from clearformer.auto import MEASURED_BY, auto, auto_for
from clearformer.config import (
    NONE,
    Spec,
    as_written,
    explicit,
    flat,
    nested,
    parse_override,
    read_toml,
    resolve,
    whole,
)
from clearformer.data import (
    BUILT_IN_BY_KIND,
    LabelledData,
    PairsData,
    PrepareConfig,
    TextData,
    form_of,
    kind_of,
    section_settings,
)
from clearformer.errors import ConfigError, did_you_mean, shortened, shown
from clearformer.files import user_path
from clearformer.model.attention import MultiHead
from clearformer.model.config import ModelConfig
from clearformer.model.feedforward import GELU, ReLU, ReLU2
from clearformer.model.init import GPT2, Gaussian, Torch, Xavier
from clearformer.model.norms import LayerNorm, NoNorm, RMSNorm
from clearformer.model.positions import Learned, NoPositions, RoPE, Sinusoidal
from clearformer.runs.folders import find_run
from clearformer.text import BPETokenizerSpec, GPT2TokenizerSpec, WordPieceTokenizerSpec
from clearformer.training.config import TRAIN_MAY_CHANGE, RunConfig, TrainConfig
from clearformer.training.objectives import ClassificationObjective, MaskedObjective, TranslationObjective
from clearformer.training.optim.optimizers import Adam, AdamW, Muon
from clearformer.training.optim.schedules import Constant, Cosine, InverseSqrt, WarmupStableDecay
from clearformer.training.store.folder import RunFolder

logger = logging.getLogger(__name__)

DEFAULTS = {"text": "quick", "pairs": "translate", "labelled": "classify"}
TWO_FILES = {"source", "target"}
SOURCES = ("name", "path", *TWO_FILES)  # keys of section `data`, one of which says what to read


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


def split_arguments(
    arguments: list[str], config_file: Path | None = None
) -> tuple[str, list[dict[str, Any]]]:
    """Return the preset's name and the settings to lay over it: those of a TOML file, then the `key=value` arguments.

    If the arguments name no preset, the settings of the data decide: `translate` for pairs, `classify` for labelled
    texts, and `quick` for any other text.
    """
    names = [argument for argument in arguments if "=" not in argument]
    if len(names) > 1:
        raise ConfigError(f"one preset at a time: got {' and '.join(names)}; settings are written key=value")
    layers = [] if config_file is None else [read_toml(user_path(config_file))]
    layers += [parse_override(argument) for argument in arguments if "=" in argument]
    return (names[0] if names else default_preset(layers)), layers


def default_preset(layers: list[dict[str, Any]]) -> str:
    """Return the default preset for the data that some settings name.

    Raises:
        ConfigError: there is no such built-in data.
    """
    return DEFAULTS[_form_of_data(layers)]


def _form_of_data(layers: list[dict[str, Any]]) -> str:
    """Return the form of the data that some settings name: `text`, `pairs` or `labelled`; by default `text`."""
    settings = section_settings(_one_source(layers))
    data = {key: value for key, value in settings.items() if _is_set(value)}
    if not data:
        return "text"
    if kind := kind_of(data):
        form = form_of(kind)
        return form if form in DEFAULTS else "text"
    if isinstance(name := data.get("name"), str) and name.strip():
        known = [name for names in BUILT_IN_BY_KIND.values() for name in names]
        hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
        raise ConfigError(
            f"data.name={shortened(name)}: no such built-in data{hint} (for your own file: data.path=FILE)"
        )
    path = data.get("path")
    is_table = isinstance(path, str) and path.lower().removesuffix(".gz").endswith(".tsv")
    return "pairs" if is_table else "text"


def resolve_run(arguments: list[str], config_file: Path | None) -> RunConfig:
    """Return a run's configuration from a preset, a TOML file and overrides; later ones win.

    If `train.pretrained` names a run, its model and tokenizer override the preset's.

    Raises:
        ConfigError: one line for the first mistake.
        RunError: there is no such run to begin with.
    """
    return resolve_settings(*split_arguments(arguments, config_file))


def resolve_settings(name: str, given: list[dict[str, Any]]) -> RunConfig:
    """Return a run's configuration from a preset's name and the settings to lay over it; see `resolve_run`."""
    if name == "auto":
        return _resolve_auto(given)
    begin_with = preset(name)
    return _resolve_with_pretrained(begin_with, [explicit(begin_with), *given])


def resolve_data(given: list[dict[str, Any]]) -> PrepareConfig:
    """Return the data and the tokenizer that a run of the default preset for the data has with some settings.

    Raises:
        ConfigError: one line for the first mistake.
    """
    begin_with = explicit(preset(default_preset(given)))
    sections = {name: begin_with[name] for name in PrepareConfig.model_fields if name in begin_with}
    return resolve(PrepareConfig, *_one_source([sections, *given]))


def _resolve_auto(given: list[dict[str, Any]]) -> RunConfig:
    """Return what `auto` chooses for the data and time of some settings, with these laid over its choices."""
    begin_with = auto(_form_of_data(given))
    said = {key: value for layer in given for key, value in flat(layer).items()}
    _check_objective(said, begin_with)
    wanted = [explicit(begin_with), *map(_read_by_auto, given)]
    if _is_set(said.get("train.max_seconds")) and "train.max_wall_seconds" not in said:
        # The given limit is in place of the preset's own.
        wanted.append({"train": {"max_wall_seconds": NONE}})
    chosen = auto_for(_resolve_with_pretrained(begin_with, wanted), said)
    run = _resolve_with_pretrained(begin_with, [explicit(chosen), *given])
    if earlier := run.train.pretrained:  # whose model and tokens are in the place of the chosen ones
        logger.info(
            "auto: the model and its tokens are those of %s; steps are estimated for another", earlier
        )
        chosen = _resolve_with_pretrained(begin_with, [explicit(chosen), {"train": {"pretrained": earlier}}])
    if replaced := _replaced(chosen, run):
        logger.info("auto: replaced by your settings: %s", ", ".join(replaced))
    if isinstance(run.data, PairsData) and "data.max_length" not in said:  # of the model's own context
        run = run.replace(data=run.data.replace(max_length=run.model.max_seq_len - 1))
    return run


def _read_by_auto(layer: dict[str, Any]) -> dict[str, Any]:
    """Return those settings of a layer that `auto` reads before it chooses; others may fit its choices alone."""
    kept = {name: layer[name] for name in ("data", "tokenizer") if name in layer}
    of_train = {key: value for key, value in flat(layer).items() if key in MEASURED_BY}
    return kept | nested(of_train)


def _check_objective(said: dict[str, Any], begin_with: RunConfig) -> None:
    """Check that the objective, if one is given, is the one that `auto` has rules for.

    Raises:
        ConfigError: it is another one.
    """
    objective = said.get("train.objective", said.get("train.objective.kind"))
    own = begin_with.train.objective.kind
    if isinstance(objective, str) and objective not in (own, NONE):
        raise ConfigError(
            f"train.objective={shortened(objective)}: of these data, auto has rules for {own} alone; for another "
            "objective begin with a preset that has it: clearformer presets"
        )


def _replaced(chosen: RunConfig, run: RunConfig) -> list[str]:
    """Return the settings of a run that are in the place of chosen ones, as `key=value`."""
    before, after = flat(whole(chosen)), flat(whole(run))
    return [
        f"{key}={as_written(after[key])}"
        for key in _decided(chosen)
        if key in after and after[key] != before[key]
    ]


def _decided(spec: Spec, prefix: str = "") -> Iterator[str]:
    """Yield the keys of the settings that were given to a spec, even if they equal the defaults."""
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if isinstance(value, Spec):
            yield from _decided(value, f"{prefix}{name}.")
        elif name == "kind" or name in spec.model_fields_set:
            yield prefix + name


def resolve_changes(begin_with: RunConfig, given: list[dict[str, Any]]) -> RunConfig:
    """Return a configuration with other settings laid over it; see `resolve_run`."""
    return _resolve_with_pretrained(begin_with, [explicit(begin_with), *given], given)


def _resolve_with_pretrained(
    begin_with: RunConfig, layers: list[dict[str, Any]], named_in: list[dict[str, Any]] | None = None
) -> RunConfig:
    layers = list(layers)
    if pretrained := _pretrained(layers if named_in is None else named_in):
        folder = find_run(pretrained)
        layers.insert(1, _like(folder.read_config(), begin_with))
        layers.append({"train": {"pretrained": str(folder.path.resolve())}})
    return resolve(RunConfig, *_one_source(layers))


def resolve_resumed(folder: RunFolder, arguments: list[str], config_file: Path | None) -> RunConfig:
    """Return the configuration to resume a run with, from command-line arguments; see `resumed_settings`.

    Raises:
        ConfigError: one line for the first mistake.
        RunError: config.toml is missing.
    """
    name, given = split_arguments(arguments, config_file)
    return resumed_settings(folder, name if name in arguments else None, given)


def resumed_settings(folder: RunFolder, name: str | None, given: list[dict[str, Any]]) -> RunConfig:
    """Return the configuration to resume a run with, from a preset's name, if one is given, and settings.

    These may be the ones that the run began with, or only those that change. Settings that are not given stay as the
    run has them. Those of a named preset must be the run's own, except in what may change (`training.setup` compares
    them in `resumed_config`). `auto` does not choose again.

    Raises:
        ConfigError: one line for the first mistake.
        RunError: config.toml is missing.
    """
    begun = folder.read_config()
    if name == "auto" and preset_of(folder) != "auto":
        raise ConfigError(f"auto: {folder.path} was started with another preset; omit it to resume the run")
    if name is not None and name != "auto":
        wanted = resolve_settings(name, given)
    else:
        layers = [explicit(begun), *given]
        if pretrained := _pretrained(given):
            layers.append({"train": {"pretrained": str(find_run(pretrained).path.resolve())}})
        wanted = resolve(RunConfig, *_one_source(layers))
    said = {key for layer in given if isinstance(layer.get("train"), dict) for key in layer["train"]}
    kept = {key: getattr(begun.train, key) for key in TRAIN_MAY_CHANGE - said}
    return wanted.replace(train=wanted.train.replace(**kept))


def preset_of(folder: RunFolder) -> str | None:
    """Return the preset that a run began with, from its env.json: its entry, or in older ones the command."""
    if (recorded := folder.preset()) is not None:
        return recorded if recorded in PRESETS else None
    return next((word for word in folder.command()[1:] if word in PRESETS), None)


def _pretrained(layers: list[dict[str, Any]]) -> str | None:
    sections = [layer["train"] for layer in layers if isinstance(layer.get("train"), dict)]
    named = [section["pretrained"] for section in sections if "pretrained" in section]
    return named[-1] if named and isinstance(named[-1], str) and named[-1] != NONE else None


def _like(run: RunConfig, begin_with: RunConfig) -> dict[str, Any]:
    """Return the settings of a pretrained run's model and tokenizer, to be laid over a preset."""
    model = explicit(run.model, default=begin_with.model)
    for of_the_task in ("n_classes", "pooling", "dropout"):
        model.pop(of_the_task, None)
    return {"model": model, "tokenizer": explicit(run.tokenizer, default=begin_with.tokenizer)}


def _is_set(value: Any) -> bool:
    """Whether a setting has a value; without one it is `none` as typed, or None from Python."""
    return value is not None and value != NONE


def _one_source(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the layers with every key unset that names a source of data which a later layer replaces."""
    said: set[str] = set()
    done = []
    for layer in layers:
        data = layer.get("data")
        if isinstance(data, dict) and (given := {key for key in SOURCES if _is_set(data.get(key))}):
            kept = given | (
                TWO_FILES if given & TWO_FILES else set()
            )  # the two files may be set in different layers
            taken_back = dict.fromkeys(said - kept, NONE)
            layer, said = layer | {"data": taken_back | data}, said | given
        done.append(layer)
    return done
