"""Parts of one's own: registered, refused, brought by a file or a package, and checked like those of the package."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

import clearformer as cf
from clearformer import parts
from clearformer.cli import main
from clearformer.config import Spec, resolve, slot_variants, to_toml
from clearformer.data.kinds import form_of, kind_of
from clearformer.data.text.sources import BUILT_IN
from clearformer.errors import ConfigError, DataError, UserError
from clearformer.lens.activations import computes_as_known
from clearformer.lens.ledgers.held import check_known_parts
from clearformer.model import ModelConfig
from clearformer.model.attention import LastModule, Mean, MultiHead, MultiHeadModule
from clearformer.model.cache import KeyValueCache, LayerCache
from clearformer.model.norms import RMSNorm
from clearformer.presets import PRESETS
from clearformer.registry import (
    SLOTS,
    AttentionBase,
    TextData,
    import_parts,
    imported_files,
    register,
    unregister,
)
from clearformer.study.lectures import studies
from clearformer.testing import check_kind, close
from clearformer.training.config import RunConfig, TrainConfig
from clearformer.training.objectives import (
    ClassificationObjective,
    MaskedObjective,
    NextTokenObjective,
    ObjectiveSpec,
    TranslationObjective,
)
from clearformer.training.planning import plan as plan_module
from clearformer.training.planning.duration import compile_pays
from clearformer.training.planning.memory import training_memory
from clearformer.training.planning.plan import plan
from clearformer.training.tasks import (
    TASKS,
    ClassificationTask,
    MaskedTask,
    NextTokenTask,
    Task,
    TranslationTask,
)


class Centred(Spec):
    """gain * (x - mean(x))."""

    kind: Literal["centred"] = "centred"
    gain: PositiveFloat = 1.0

    def build(self, d: int) -> nn.Module:
        return CentredModule(self.gain)


class CentredModule(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * (x - x.mean(-1, keepdim=True))


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """What a test registers is gone after it."""
    fields = {slot: SLOTS[slot][0].model_fields for slot in ("attention", "norm", "ffn", "optimizer")}
    before = {slot: set(slot_variants(of_owner[slot])) for slot, of_owner in fields.items()}
    yield
    for slot, of_owner in fields.items():
        for kind in set(slot_variants(of_owner[slot])) - before[slot]:
            unregister(slot, kind)  # type: ignore[arg-type]


def test_a_kind_is_taken_wherever_its_slot_stands_and_written_by_its_name() -> None:
    register("norm")(Centred)

    inner: dict[str, Any] = {"norm": {"kind": "centred", "gain": 2}, "attention": {"qk_norm": "centred"}}
    config = cf.ModelConfig(**inner)
    assert (config.norm, config.attention.qk_norm) == (Centred(gain=2), Centred())  # type: ignore[union-attr]
    whole = cf.preset("quick", model={"norm": "centred"})
    assert 'kind = "centred"' in to_toml(whole)
    assert resolve(RunConfig, whole.model_dump()) == whole
    with pytest.raises(ConfigError, match=r"^norm\.gain takes a number above 0; got -1"):
        cf.ModelConfig(**{"norm": {"kind": "centred", "gain": -1}})
    with pytest.raises(
        ConfigError, match=r"model\.norm of kind 'centred' has no 'gian'; did|did you mean 'gain'"
    ):
        cf.preset("quick", model={"norm": {"kind": "centred", "gian": 1}})


def test_the_kinds_of_the_package_are_what_they_were() -> None:
    presets = {name: make().model_dump() for name, make in PRESETS.items() if name != "auto"}
    schema = RunConfig.model_json_schema()
    torch.manual_seed(0)
    weights = cf.build(cf.ModelConfig(vocab_size=13)).state_dict()

    register("norm")(Centred)
    assert {name: make().model_dump() for name, make in PRESETS.items() if name != "auto"} == presets
    torch.manual_seed(0)
    again = cf.build(cf.ModelConfig(vocab_size=13)).state_dict()
    assert all(torch.equal(weight, again[name]) for name, weight in weights.items())
    unregister("norm", "centred")

    assert RunConfig.model_json_schema() == schema
    with pytest.raises(ConfigError, match=r"norm\.kind is one of none, layernorm, rmsnorm; got 'centred'"):
        cf.ModelConfig(norm="centred")  # type: ignore[arg-type]


class Convolved(Spec):
    """A 1-wide convolution, whose weights no initialisation of the package knows, times a number for each dimension."""

    kind: Literal["convolved"] = "convolved"

    def build(self, d_model: int) -> nn.Module:
        return ConvolvedModule(d_model)


class ConvolvedModule(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.conv, self.gain = nn.Conv1d(d, d, 1), nn.Parameter(torch.empty(d))
        nn.init.constant_(self.gain, 0.7)
        self.register_buffer("drawn", torch.empty(d).normal_())

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.mT).mT * self.gain


def test_weights_that_no_initialisation_knows_begin_as_their_module_makes_them() -> None:
    register("ffn")(Convolved)
    config = cf.ModelConfig(vocab_size=13, d_model=32, n_layers=1, ffn=Convolved())  # type: ignore[arg-type]
    torch.manual_seed(0)
    model, state = cf.build(config), torch.get_rng_state()
    module: Any = model.get_submodule("blocks.0.mlp")

    assert (module.gain == 0.7).all()
    assert module.conv.weight.std().item() == pytest.approx((3 * 32) ** -0.5, rel=0.1)
    assert module.drawn.std().item() == pytest.approx(1, rel=0.4)
    assert not module.conv.bias.any()
    torch.manual_seed(0)
    torch.testing.assert_close(cf.build(config).state_dict(), model.state_dict(), rtol=0, atol=0)
    torch.manual_seed(0)
    cf.build(config.replace(ffn="relu"))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_cell_that_runs_again_replaces_its_kind_and_another_s_is_kept() -> None:
    register("norm")(Centred)
    register("norm")(Centred)
    assert list(slot_variants(cf.ModelConfig.model_fields["norm"])) == [
        "none",
        "layernorm",
        "rmsnorm",
        "centred",
    ]

    class Other(Spec):
        kind: Literal["layernorm"] = "layernorm"

    with pytest.raises(
        ConfigError, match=r"layernorm is already a kind of norm \(LayerNorm\); choose another name"
    ):
        register("norm")(Other)


class Worded(Spec):
    """Its kind may be any word."""

    kind: str = "mine"

    def after_warmup(self, step: int, warmup_steps: int, progress: float) -> float:
        return 1.0


class Unfinished(Worded):
    """A field's type is not defined."""

    kind: Literal["mine"] = "mine"  # type: ignore[assignment]
    other: "Undefined"  # type: ignore[name-defined]


@pytest.mark.parametrize(
    ("slot", "part", "line"),
    [
        ("norms", Centred, "there is no slot 'norms'; there are attention, position, norm,"),
        ("norm", nn.Identity, "a kind of norm must be a settings class"),
        ("norm", type("Nameless", (Spec,), {}), 'Nameless has no kind: add kind: Literal["NAME"]'),
        ("schedule", Worded, 'Worded has no kind: add kind: Literal["NAME"]'),
        ("schedule", Unfinished, "Unfinished cannot be a kind of schedule:"),
    ],
)
def test_what_is_no_kind_is_refused_and_changes_nothing(slot: Any, part: Any, line: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(line)) as refused:
        register(slot)(part)
    assert "\n" not in str(refused.value)
    assert cf.preset("quick", seed=2).train.schedule.kind == "wsd"


def test_an_objective_names_what_it_trains_and_on_what() -> None:
    class Bare(ObjectiveSpec):
        kind: Literal["bare"] = "bare"

    class BareTask(NextTokenTask):
        objective_type = Bare

    with pytest.raises(
        ConfigError, match="Bare has no family and no data_kinds and no activity: a kind of objective"
    ):
        register("objective")(BareTask)


def test_an_objective_has_settings_of_its_own() -> None:
    """Those of the package's would make it the task of every run with that objective."""
    line = "Mine: set objective_type to settings of its own"
    for objective_type in ({}, {"objective_type": NextTokenObjective}):
        with pytest.raises(ConfigError, match=line):
            register("objective")(type("Mine", (NextTokenTask,), objective_type))
    assert TASKS[NextTokenObjective] is NextTokenTask
    with pytest.raises(ConfigError, match="Half: a task needs the methods batch, "):
        register("objective")(type("Half", (Task,), {"objective_type": Mentioned}))
    with pytest.raises(ConfigError, match="Loose: set objective_type"):
        register("objective")(type("Loose", (Task,), dict.fromkeys(Task.__abstractmethods__)))


class Mentioned(MaskedObjective):
    kind: Literal["mentioned"] = "mentioned"  # type: ignore[assignment]


class Rewritten(TranslationObjective):
    kind: Literal["rewritten"] = "rewritten"  # type: ignore[assignment]


class Sorted(ClassificationObjective):
    kind: Literal["sorted"] = "sorted"  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("settings", "task"),
    [(Mentioned, MaskedTask), (Rewritten, TranslationTask), (Sorted, ClassificationTask)],
)
def test_objectives_of_every_form_of_data_are_checked(settings: Any, task: type[Task]) -> None:
    register("objective")(type("Own", (task,), {"objective_type": settings}))
    try:
        check_kind(settings(), n_layers=1, attention={"n_heads": 2})
    finally:
        unregister("objective", settings.model_fields["kind"].default)
    assert settings not in TASKS


def test_parts_of_one_name_in_two_slots_are_removed_alone() -> None:
    @register("data")
    class Words(TextData):
        kind: Literal["words"] = "words"  # type: ignore[assignment]

        def documents(self) -> Iterator[str]:
            yield "a"

    register("schedule")(spec_of("words", after_warmup=lambda self, step, warmup_steps, progress: 1.0))
    unregister("schedule", "words")
    assert form_of("words") == "text"
    unregister("data", "words")
    assert form_of("words") == "words"


@pytest.mark.parametrize("name", ["trec", "dates", "shakespeare"])
def test_a_text_takes_the_name_of_no_built_in_data(name: str) -> None:
    def documents() -> Iterator[str]:
        yield "a"

    documents.__name__ = name
    with pytest.raises(ConfigError, match=f"the text {name} already exists"):
        register("text")(documents)


def spec_of(kind: str, base: type[Spec] = Spec, **body: Any) -> type[Spec]:
    annotations = {"kind": Literal[kind]}
    return type(
        "Part", (base,), {"__module__": __name__, "__annotations__": annotations, "kind": kind, **body}
    )


@pytest.mark.parametrize(
    ("slot", "part", "line"),
    [
        ("schedule", spec_of("mine"), "Part has no after_warmup: a kind of schedule needs it"),
        ("tokenizer", spec_of("mine"), "Part has no train: a kind of tokenizer needs it"),
        ("optimizer", spec_of("mine"), "Part has no build: a kind of optimizer needs it"),
        (
            "attention",
            spec_of("mine", build=lambda self: None),
            "Part: a kind of attention must be a subclass of clearformer.registry.AttentionBase",
        ),
        ("attention", spec_of("mine", AttentionBase), "Part has no build: a kind of attention needs it"),
        (
            "optimizer",
            spec_of("mine", build=lambda self, model, lr: []),
            "Part.build takes (self, model, lr); a kind of optimizer is called with (self, model, lr, dtype)",
        ),
        (
            "norm",
            spec_of("my thing.x", build=lambda self: None),
            "Part: 'my thing.x' cannot name a kind",
        ),
        (["a"], Centred, "there is no slot ['a']; there are"),
        ("text", "a", "a text is registered as a function that yields documents; got 'a'"),
        ("text", lambda: ["a"], "'<lambda>' cannot be a text's name (data.name)"),
    ],
)
def test_a_part_that_could_not_work_is_refused_where_it_is_registered(
    slot: Any, part: Any, line: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(line)):
        register(slot)(part)


def test_an_optimizer_of_one_s_own_trains() -> None:
    @register("optimizer")
    class WithMomentum(Spec):
        """One of torch's, with state to be kept in checkpoints."""

        kind: Literal["with_momentum"] = "with_momentum"

        def build(self, model: nn.Module, lr: float, dtype: torch.dtype) -> list[torch.optim.Optimizer]:
            return [torch.optim.SGD(model.parameters(), lr, momentum=0.9)]

    check_kind(WithMomentum())


class Slowing(torch.optim.Optimizer):
    """Smaller steps from step to step; their number is a number of Python's, as in many optimizers."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["step"] = state.get("step", 0) + 1
                state["rate"] = group["lr"] / state["step"]
                parameter.data.add_(parameter.grad, alpha=-state["rate"])


def test_an_optimizer_may_count_in_numbers_that_are_no_tensors() -> None:
    @register("optimizer")
    class Slower(Spec):
        """Gradient descent that slows down."""

        kind: Literal["slower"] = "slower"

        def build(self, model: nn.Module, lr: float, dtype: torch.dtype) -> list[torch.optim.Optimizer]:
            return [Slowing(model.parameters(), {"lr": lr})]

    check_kind(Slower())
    config = TrainConfig(max_steps=1, optimizer=Slower(), dtype="float32")
    assert training_memory(ModelConfig(vocab_size=5), config).optimizer == 0


def test_gradients_of_weights_that_no_optimizer_has_do_not_add_up() -> None:
    @register("optimizer")
    class Frozen(Spec):
        """The embeddings stay as they are."""

        kind: Literal["frozen"] = "frozen"

        def build(self, model: nn.Module, lr: float, dtype: torch.dtype) -> list[torch.optim.Optimizer]:
            trained = [weight for name, weight in model.named_parameters() if name != "embed.weight"]
            return [torch.optim.SGD(trained, lr)]

    check_kind(Frozen(), init={"kind": "torch"})


def test_a_text_is_made_of_strings_by_a_function_without_arguments() -> None:
    def of_numbers() -> Any:
        yield from ("a", 7)

    def of_one() -> Any:
        return 7

    def asks(n: int) -> Any:
        yield "a" * n

    with pytest.raises(ConfigError, match="the text asks: its function must take no arguments: missing a"):
        register("text")(asks)
    for function, line in (
        (of_numbers, "the text of_numbers: its function must yield strings; document 2 is 7"),
        (of_one, "the text of_one: its function must yield documents; it returned 7"),
    ):
        register("text")(function)
        try:
            with pytest.raises(DataError, match=line):
                list(BUILT_IN[function.__name__].open().documents())
        finally:
            unregister("text", function.__name__)


def test_what_is_not_registered_cannot_be_removed() -> None:
    for slot, line in (
        ("norms", "no slot 'norms'"),
        ("study", "no slot 'study'"),
        ("norm", "no norm 'centred'"),
    ):
        with pytest.raises(ConfigError, match=f"^there is {line}; there are "):
            unregister(slot, "centred")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("slot", "name"), [("norm", "layernorm"), ("data", "text"), ("objective", "masked"), ("text", "pydoc")]
)
def test_the_package_s_own_parts_stay(slot: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^the {slot} '{name}' is one of the package's own and stays$"):
        unregister(slot, name)


# --- where parts come from --------------------------------------------------------------------------------

PARTS = """
from typing import Literal
from torch import nn
import clearformer as cf
from clearformer.config import Spec

@cf.register("norm")
class FromAFile(Spec):
    kind: Literal["from_a_file"] = "from_a_file"

    def build(self, d: int) -> nn.Module:
        return nn.Identity()
"""


def test_a_file_brings_its_kinds_once(tmp_path: Path) -> None:
    (tmp_path / "parts_a.py").write_text(PARTS)
    import_parts(tmp_path / "parts_a.py")
    first = slot_variants(cf.ModelConfig.model_fields["norm"])["from_a_file"]
    import_parts(tmp_path / "parts_a.py")
    assert slot_variants(cf.ModelConfig.model_fields["norm"])["from_a_file"] is first


def test_a_file_may_be_imported_by_its_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by another file of parts, which `import_parts` does not see."""
    (tmp_path / "parts_d.py").write_text(PARTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("parts_d")
    import_parts(tmp_path / "parts_d.py")
    last = slot_variants(cf.ModelConfig.model_fields["norm"])["from_a_file"]
    assert last is not module.FromAFile
    assert last.__module__.startswith(parts.IMPORTED_AS)


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    files = [tmp_path / folder / "parts_b.py" for folder in ("one", "other", "copy")]
    for file, kind in zip(files, ("one", "other", "one"), strict=True):
        file.parent.mkdir()
        file.write_text(PARTS.replace("from_a_file", f"from_{kind}"))

    import_parts(files[0])
    import_parts(files[1])
    assert set(files[:2]) <= set(imported_files())
    with pytest.raises(ConfigError, match="from_one is already a kind of norm"):
        import_parts(files[2])


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("none.py", None, "none.py is not a Python file"),
        ("bad.py", "1 / 0", "bad.py failed: ZeroDivisionError: 'division by zero'"),
        ("script.py", "raise SystemExit(0)", "script.py failed: SystemExit: '0'"),
        ("parts.txt", PARTS, "parts.txt is not a Python file"),
    ],
)
def test_a_file_that_brings_nothing_is_told(
    name: str, content: str | None, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    assert main(["presets", "quick", "--import", str(tmp_path / name)]) == 2
    told = capsys.readouterr().err
    assert line in told
    assert told.count("\n") == 1


def test_a_run_whose_kind_is_unknown_says_which_and_how_to_bring_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path))
    register("norm")(Centred)
    model = cf.build(cf.ModelConfig(vocab_size=256, d_model=16, n_layers=1, norm=Centred()))  # type: ignore[arg-type]
    from clearformer.text import ByteTokenizerSpec

    cf.Run(model, ByteTokenizerSpec().train(())).save("mine")
    unregister("norm", "centred")

    assert main(["generate", "mine"]) == 2
    assert "model.norm.kind is one of" in (told := capsys.readouterr().err)
    assert "got 'centred'; load your own kinds with --import FILE.py" in told


def test_an_installed_package_s_parts_are_found_when_a_kind_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '@cf.register("text")\ndef texts_of_a_package():\n    yield "a"\n'
    (tmp_path / "package_of_parts.py").write_text(PARTS.replace("from_a_file", "from_a_package") + text)
    monkeypatch.syspath_prepend(tmp_path)
    entry = metadata.EntryPoint("mine", "package_of_parts", parts.ENTRY_POINTS)
    asked: list[str] = []

    def entry_points(group: str) -> list[metadata.EntryPoint]:
        asked.append(group)
        return [entry]

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    parts.load_installed_parts.cache_clear()
    try:
        cf.ModelConfig(norm="rmsnorm")  # type: ignore[arg-type]
        assert asked == []
        assert cf.ModelConfig(norm="from_a_package").norm.kind == "from_a_package"  # type: ignore[arg-type]
        assert asked == ["clearformer.parts"]

        # Also where no slot of a configuration is looked at first.
        found: dict[str, Callable[[], Any]] = {
            "data": lambda: form_of("from_a_package"),
            "text": lambda: kind_of({"name": "texts_of_a_package"}) == "text",
            "study": studies,
        }
        for find in found.values():
            unregister("text", "texts_of_a_package")
            sys.modules.pop("package_of_parts")
            parts.load_installed_parts.cache_clear()
            assert find()
        assert asked == ["clearformer.parts"] * 4
    finally:
        parts.load_installed_parts.cache_clear()


# --- check_kind -------------------------------------------------------------------------------------------


def test_good_kinds_pass() -> None:
    register("norm")(Centred)
    check_kind(Centred(gain=2))
    check_kind(MultiHead(n_heads=3, window=4), position="alibi")
    check_kind(RMSNorm(), attention={"n_heads": 2})


def attention(kind: str, **methods: Any) -> Any:
    """A kind of attention of one head whose module has other methods."""
    module = type("Module", (MultiHeadModule,), methods)

    def build(self: Any, d_model: int, dropout: float) -> nn.Module:
        made = MultiHead(n_heads=2).build(d_model, dropout)
        made.__class__ = module
        return made

    annotations = {"kind": Literal[kind]}
    body = {
        "__annotations__": annotations,
        "kind": kind,
        "build": build,
        "heads": lambda self, d: (2, d // 2),
    }
    return register("attention")(type("Spoilt", (AttentionBase,), {"__module__": __name__, **body}))()


class Forgetful(KeyValueCache):
    """Where positions are dropped, as many of the first are forgotten."""

    def keep(self, kept: Tensor, length: int) -> None:
        assert self.buffers is not None
        for buffer in self.buffers:
            buffer[:, :, 0] = 0


class Unselected(KeyValueCache):
    def select(self, rows: Tensor) -> None:
        pass


def reads_the_future(self: Any, x: Tensor, *rest: Any, **named: Any) -> Tensor:
    return MultiHeadModule.forward(self, x, *rest, **named) + x.mean(1, keepdim=True)


def without_numbers(self: Any, x: Tensor, *rest: Any, **named: Any) -> Tensor:
    return MultiHeadModule.forward(self, x, *rest, **named) * torch.nan


def forgets(self: Any, x: Tensor, mask: Any, positions: Any, cache: Any = None, memory: Any = None) -> Tensor:
    fresh = None if cache is None else self.new_cache()
    return MultiHeadModule.forward(self, x, mask, positions, fresh, memory) if fresh is None else x


def other_pattern(self: Any, *parts: Any) -> Tensor:
    return (1 if self.has_hooks else 2) * MultiHeadModule.mix(self, *parts)


def doubled(self: Any, *parts: Any) -> Tensor:
    return 2 * MultiHeadModule.formula(self, *parts)


@pytest.mark.parametrize(
    ("methods", "line"),
    [
        ({"forward": reads_the_future}, "^causality: a changed token changes earlier logits"),
        ({"forward": without_numbers}, "^causality: the logits are not finite"),
        ({"forward": forgets}, "^cache: chunks of"),
        ({"mix": other_pattern}, "^(cache|fused = plain):"),
        ({"new_cache": lambda self: Forgetful()}, "^drafts: tokens that were dropped"),
        ({"new_cache": lambda self: Unselected()}, "^cache: RuntimeError: "),
        ({"forward": lambda self, x: x}, "^causality: TypeError: .*takes 2 positional arguments"),
    ],
)
def test_a_kind_that_is_wrong_is_told_so(methods: dict[str, Any], line: str) -> None:
    spec = attention("spoilt", **methods)
    with pytest.raises(AssertionError, match=line):
        check_kind(spec)


def test_a_formula_of_one_s_own_is_what_is_computed_and_no_view_knows_better() -> None:
    spec = attention("doubled", formula=doubled)
    check_kind(spec)
    own, known = (build_from_seed(kind) for kind in (spec, MultiHead(n_heads=2)))
    tokens = torch.arange(6)[None]
    assert not torch.allclose(own(tokens), known(tokens))
    assert not computes_as_known(own.blocks[0].attn)
    assert computes_as_known(known.blocks[0].attn)
    with pytest.raises(UserError, match="cannot be held constant"):
        check_known_parts(own)


def build_from_seed(kind: Any) -> Any:
    torch.manual_seed(0)
    return cf.build({"vocab_size": 6, "d_model": 8, "n_layers": 1, "attention": kind})


def test_drafts_are_refused_where_the_cache_cannot_drop_them() -> None:
    class Plain(KeyValueCache):
        hold = LayerCache.hold

    spec = attention("plain_cache", new_cache=lambda self: Plain())
    check_kind(spec)
    tokenizer = cf.tokenize("abc", "char").tokenizer
    model = cf.build({"vocab_size": tokenizer.vocab_size, "d_model": 8, "n_layers": 1, "attention": spec})
    run = cf.Run(model, tokenizer)
    assert run.generate("abcabc", max_new_tokens=9, seed=1)
    with pytest.raises(
        UserError, match=r"^lookup: Plain cannot drop rejected tokens, .*; generate without lookup$"
    ):
        run.stream("abcabc", max_new_tokens=9, seed=1, lookup=3)  # at the call, before any text
    with pytest.raises(UserError, match=r"^lookup: Plain cannot"):
        run.generate("a", max_new_tokens=1, seed=1, lookup=3)  # where no draft could be found either


def test_what_trains_nothing_is_told_so() -> None:
    standing = spec_of("standing", after_warmup=lambda self, step, warmup_steps, progress: 0.0)
    with pytest.raises(AssertionError, match=r"^training: no weight has changed"):
        check_kind(register("schedule")(standing)())


@pytest.mark.parametrize(
    ("factor", "said"), [(float("nan"), "nan"), (float("inf"), "inf"), (None, "None"), ("1", "'1'")]
)
def test_a_schedule_without_a_finite_number_is_told_so(factor: Any, said: str) -> None:
    """A run blames the learning rate for weights that are not finite, and not the schedule."""
    spec = spec_of("unfinished", after_warmup=lambda self, step, warmup_steps, progress: factor)
    line = (
        rf"^train\.schedule\.kind: Part\.after_warmup must return a finite number; got {said} for step \d+$"
    )
    with pytest.raises(ConfigError, match=line):
        check_kind(register("schedule")(spec)())


def test_a_feed_forward_network_that_is_none_is_told_so() -> None:
    """A `build` without a return would train a model without one."""
    spec = register("ffn")(spec_of("absent", build=lambda self, d_model: None))()
    with pytest.raises(
        ConfigError, match=r"^model\.ffn\.kind: Part\.build must return a torch module; got None$"
    ):
        cf.build({"vocab_size": 5, "ffn": spec})


def test_an_optimizer_that_is_no_list_of_torch_s_is_told_so() -> None:
    for built in ([], None, torch.optim.SGD([torch.zeros(1)], 0.1)):
        spec = spec_of("alone", build=lambda self, model, lr, dtype, built=built: built)
        line = r"^train\.optimizer\.kind: Part\.build must return a list of torch optimizers; got (\[\]|None|SGD)"
        with pytest.raises(ConfigError, match=line):
            check_kind(register("optimizer")(spec)())


def test_an_optimizer_that_needs_a_closure_is_told_so() -> None:
    spec = spec_of("lbfgs", build=lambda self, model, lr, dtype: [torch.optim.LBFGS(model.parameters(), lr)])
    line = r"^train\.optimizer\.kind: Part\.build returns LBFGS, whose step\(\) needs a closure; choose one"
    with pytest.raises(ConfigError, match=line):
        check_kind(register("optimizer")(spec)())


def test_an_initialisation_by_luck_is_not_resumed_equally() -> None:
    """What draws numbers in training that nothing seeds differs from step to step."""

    def drawn(self: Any, x: Tensor, *rest: Any, **named: Any) -> Tensor:
        noise = torch.randn((), generator=GENERATOR) if self.training else 0.0
        return MultiHeadModule.forward(self, x, *rest, **named) + noise

    with pytest.raises(AssertionError, match=r"^resume: .* differs from an uninterrupted run"):
        check_kind(attention("drawn", forward=drawn))


GENERATOR = torch.Generator().manual_seed(1)


def test_a_kind_that_is_in_no_slot_is_refused() -> None:
    with pytest.raises(UserError, match=r"Centred is not registered: use @cf\.register\(SLOT\)"):
        check_kind(Centred())


def test_numbers_are_compared_exactly() -> None:
    one = torch.ones(3, dtype=torch.float64)
    assert close(one, one + 1e-12)
    assert not close(one, one + 1e-6)
    assert issubclass(Mean, AttentionBase)
    assert LastModule().hook_z is not None


class Still(AttentionBase):
    """Nothing is mixed."""

    kind: Literal["still"] = "still"

    def build(self, d_model: int, dropout: float) -> nn.Module:
        return LastModule()


def test_a_kind_without_a_formula_is_counted_in_the_model_and_compiled_where_that_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register("attention")(Still)
    monkeypatch.setattr(plan_module, "MOST_BUILT_LAYERS", 2)
    settings: dict[str, Any] = {"vocab_size": 11, "d_model": 8, "n_layers": 4, "max_seq_len": 5}
    own, known = (cf.ModelConfig(attention=kind, position="none", **settings) for kind in ("still", "last"))
    train = cf.preset("quick").train.replace(max_seconds=None, max_steps=10**9, dtype="float32")

    found, expected = plan(own, train), plan(known, train)

    assert expected.parameters.by_formula == expected.parameters.total
    assert (found.parameters.by_formula, found.flops_per_token.by_formula) == (None, None)
    assert found.parameters.by_component == expected.parameters.by_component
    assert found.flops_per_token.by_component == expected.flops_per_token.by_component
    assert compile_pays(own, train, "float32", torch.device("cpu"))
