"""What three users type in Python: a student, a lecturer, a researcher."""

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clearformer as cf
from clearformer.cli import main
from clearformer.errors import ClearformerError, ConfigError, RunError, TokenizerError, UserError
from clearformer.resolving import default_preset
from clearformer.text import ByteTokenizerSpec

TEXT = "To be, or not to be, that is the question.\n" * 60
SMALL: dict[str, Any] = {"d_model": 16, "n_layers": 1, "max_seq_len": 16, "attention": {"n_heads": 2}}
TRAIN: dict[str, Any] = {
    "max_steps": 6,
    "max_seconds": "none",
    "batch_size": 4,
    "compile": False,
    "dtype": "float32",
    "eval_every": 3,
    "device": "cpu",
}


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    (tmp_path / "my.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def trained(**changes: Any) -> cf.Run:
    settings: dict[str, Any] = {"data": {"path": "my.txt"}, "model": SMALL, "train": TRAIN, "quiet": True}
    return cf.train("quick", **(settings | changes))


# --- what is there ----------------------------------------------------------------------------------------


def test_tab_shows_the_public_names_and_nothing_else() -> None:
    assert dir(cf) == sorted(cf.__all__)
    assert {
        "evaluate",
        "train",
        "generate",
        "translate",
        "classify",
        "score",
        "plan",
        "tokenize",
        "preset",
        "load",
        "build",
    } < set(dir(cf))


@pytest.mark.parametrize("name", cf.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    value = getattr(cf, name)
    assert inspect.getdoc(value)
    assert name.islower() == (not isinstance(value, type))


def test_the_example_of_a_preset_is_a_configuration() -> None:
    (line,) = [line for line in (inspect.getdoc(cf.preset) or "").splitlines() if "cf.preset(" in line]
    (call,) = [node for node in ast.walk(ast.parse(line.strip())) if isinstance(node, ast.Call)]
    given = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    config = cf.preset(*map(ast.literal_eval, call.args), **given)
    assert config.seed == given["seed"]


def test_every_function_has_a_signature_without_blanks() -> None:
    for name in set(cf.__all__) - {"lens", "errors", "ClearformerError"}:
        signature = inspect.signature(getattr(cf, name))
        if inspect.isfunction(getattr(cf, name)):
            assert signature.return_annotation is not inspect.Signature.empty, name
            for parameter in signature.parameters.values():
                assert parameter.annotation is not inspect.Parameter.empty, (name, parameter)


def test_an_import_loads_no_torch_and_the_package_says_that_it_is_typed() -> None:
    code = "import sys, clearformer; dir(clearformer); sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert (Path(cf.__file__).parent / "py.typed").is_file()


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        cf.trian  # type: ignore[attr-defined]  # noqa: B018


# --- a student --------------------------------------------------------------------------------------------


def test_a_text_is_trained_on_and_continued(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = trained()

    assert run.name == "quick-my"
    assert (runs / "quick-my" / "config.toml").is_file()
    assert run.step == 6
    assert run.config.train.max_seconds is None
    assert not run.model.training
    assert capfd.readouterr() == ("", "")  # quiet
    [sample] = run.generate("To be", max_new_tokens=5, seed=3)
    assert [sample] == cf.generate(run, "To be", max_new_tokens=5, seed=3)
    assert len(sample.tokens) == 5
    again = cf.load("quick-my", device="cpu")
    assert again.generate("To be", max_new_tokens=5, seed=3) == [sample]
    assert "".join(run.stream("To be", max_new_tokens=5, seed=3)) == sample.text


def test_a_run_is_shown_in_a_line_and_in_a_table() -> None:
    run = trained(run="a")

    assert run.val_loss is not None
    assert (
        repr(run)
        == f"Run('a', decoder, {run.n_parameters:,} parameters, step 6, held-out loss {run.val_loss:.4f})"
    )
    assert (
        "<th style='text-align:left'>family</th><td style='text-align:left'>decoder</td>" in run._repr_html_()
    )
    assert repr(cf.load("a", device="cpu")) == repr(run)


def test_a_loss_of_a_part_of_the_held_out_text_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(run="a")
    *others, last = run.folder.metrics_file.read_text().splitlines()
    whole = json.loads(last)

    def shown(**changes: Any) -> tuple[str, str]:
        line = {name: value for name, value in (whole | changes).items() if value != "absent"}
        run.folder.metrics_file.write_text("\n".join([*others, json.dumps(line)]) + "\n")
        assert main(["runs"]) == 0
        return repr(cf.load("a", device="cpu")), capsys.readouterr().out

    loss = f"{whole['val_loss']:.4f}"
    for changes, marked in (({}, loss), ({"val_share": 0.05}, f"~{loss}"), ({"val_share": "absent"}, loss)):
        in_python, in_list = shown(**changes)
        assert f"held-out loss {marked})" in in_python
        assert f" {marked}\n" in in_list
    (line,) = [json.dumps(whole | {"val_loss": "low"})]
    run.folder.metrics_file.write_text("\n".join([*others, line]) + "\n")
    assert "held-out" not in repr(cf.load("a", device="cpu"))


def test_what_a_notebook_shows_is_escaped(tmp_path: Path) -> None:
    run = cf.Run(cf.build(cf.ModelConfig(vocab_size=256)), ByteTokenizerSpec().train(()))
    kept = run.save(tmp_path / "<b>&")
    assert "<b>" not in kept._repr_html_()
    assert "&lt;b&gt;&amp;" in kept._repr_html_()


def test_progress_is_told_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    trained(quiet=False)
    out, told = capfd.readouterr()
    assert out == ""
    assert "held-out" in told
    assert "quick-my" in told


def test_a_second_run_gets_a_name_of_its_own_and_a_taken_one_is_refused() -> None:
    assert [trained().name, trained().name] == ["quick-my", "quick-my-2"]
    with pytest.raises(
        RunError, match=r"^run: .*quick-my exists; resume it with resume=True, choose another"
    ):
        trained(run="quick-my")


def test_a_run_goes_on_to_the_same_weights() -> None:
    whole = trained(run="whole", train=TRAIN | {"max_steps": 8})
    trained(run="part", train=TRAIN | {"max_steps": 8, "checkpoint_every": 4, "schedule": "constant"})
    part = trained(run="two", train=TRAIN | {"max_steps": 8})
    going_on = cf.train(run="two", resume=True, train={"max_steps": 8}, quiet=True)

    assert going_on.step == part.step == 8
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, going_on.model.state_dict()[name])
    longer = cf.train(run="two", resume=True, train={"max_steps": 9}, quiet=True)
    assert longer.step == 9


def test_going_on_needs_a_name() -> None:
    with pytest.raises(RunError, match=r"resume=True: name the run with run=NAME"):
        cf.train(resume=True)


# --- settings ---------------------------------------------------------------------------------------------


def test_python_takes_what_the_command_line_takes() -> None:
    by_words = cf.preset("quick", model={"position": "alibi"}, train={"lr": "3e-4"}, seed=2)
    by_dots: dict[str, Any] = {"model.position": "alibi", "train.lr": 3e-4, "seed": 2}
    dotted = cf.preset("quick", **by_dots)
    nested = cf.RunConfig(**{"model.position.kind": "alibi", "train": {"max_steps": 3}})

    assert by_words == dotted
    assert (by_words.model.position.kind, by_words.train.lr, by_words.seed) == ("alibi", 3e-4, 2)
    assert nested.model.position.kind == "alibi"
    assert cf.ModelConfig(position="sinusoidal").position.kind == "sinusoidal"  # type: ignore[arg-type]
    heads = cf.ModelConfig(attention={"n_heads": 8}).attention  # type: ignore[arg-type]
    assert (heads.kind, heads.heads(128)) == ("multihead", (8, 16))


def test_none_unsets_a_setting_however_it_is_named() -> None:
    dotted: dict[str, Any] = {"train.max_seconds": None, "train.max_steps": 9}
    config = cf.preset("quick", **dotted)
    assert config == cf.preset("quick", train={"max_seconds": None, "max_steps": 9})
    assert (config.train.max_seconds, config.train.max_steps) == (None, 9)
    assert cf.preset("quick", data=None, train=None) == cf.preset("quick")
    # A source of data that is None takes no other's place, and says nothing of their kind.
    assert cf.preset("lecture", data={"path": None}) == cf.preset("lecture")
    assert default_preset([{"data": {"name": "pydoc", "source": None}}]) == "quick"


def test_specs_are_settings_too() -> None:
    model = cf.ModelConfig(d_model=32)
    dotted: dict[str, Any] = {"model.n_layers": 2}
    assert cf.preset("lecture", model=model, **dotted).model.n_layers == 2
    assert cf.preset("lecture", model=model).model.d_model == 32


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"positon": "rope"}, "unknown key 'positon'; did you mean 'position'?"),
        ({"position": "sinusodal"}, "position.kind is one of none, sinusoidal, .*did you mean 'sinusoidal'"),
        ({"d_model": "wide"}, "^d_model takes a whole number; got 'wide'$"),
        ({"attention": {"n_heads": -1}}, "^attention.n_heads takes a number above 0|a number of 1 or more"),
        ({"n_layers": True}, "n_layers takes a value and is not a switch; got true"),
        ({"position": 3}, "position takes one of none, sinusoidal"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line) as raised:
        cf.ModelConfig(**settings)
    assert "\n" not in str(raised.value)


def test_a_misspelled_option_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^unknown key 'quite'; did you mean 'quiet'\?$"):
        cf.train("quick", quite=True)
    with pytest.raises(ConfigError, match=r"^unknown key 'devise'; did you mean 'device'\?$"):
        cf.plan("quick", devise="a100")


@pytest.mark.parametrize("function", [cf.train, cf.preset, cf.plan])
def test_every_function_names_the_key_at_fault(function: Any) -> None:
    with pytest.raises(ConfigError, match=r"^train\.lr takes a number above 0; got -1"):
        function("quick", train={"lr": -1})
    with pytest.raises(ConfigError, match=r"unknown key 'model\.heads'"):
        function("quick", model={"heads": 3})
    with pytest.raises(ConfigError, match=r"there is no preset 'quik'; did you mean 'quick'"):
        function("quik")
    with pytest.raises(ConfigError, match="unknown key 'sed'; did you mean 'seed'"):
        function("quick", sed=2)


def test_a_configuration_may_be_a_file_settings_or_a_run_s() -> None:
    Path("small.toml").write_text("seed = 7\n[model]\nd_model = 48\nn_layers = 1\n")
    run = trained(run="a")

    assert (
        cf.plan("small.toml", device="a100").parameters
        == cf.plan({"model": {"d_model": 48, "n_layers": 1}}, device="a100").parameters
    )
    assert cf.plan(run.config, device="a100").parameters.total == run.n_parameters
    again = cf.train(run.config, run="b", seed=5, quiet=True)
    assert again.config == run.config.replace(seed=5)
    with pytest.raises(ConfigError, match="a configuration is a preset name, a TOML file"):
        cf.train(3)  # type: ignore[arg-type]


def test_the_data_choose_the_preset() -> None:
    Path("pairs.tsv").write_text("".join(f"{i} eins\t{i} one\n" for i in range(50)))
    run = cf.train(
        data={"path": "pairs.tsv", "val_fraction": 0.1},
        model=SMALL | {"max_seq_len": 64},
        train={k: v for k, v in TRAIN.items() if k != "batch_size"} | {"objective": {"batch_tokens": 256}},
        tokenizer={"kind": "byte"},
        quiet=True,
    )

    assert run.config.train.objective.kind == "translation"
    [[best]] = run.translate("3 eins", beams=1, max_new_tokens=4)
    assert [[best]] == cf.translate(run, ["3 eins"], beams=1, max_new_tokens=4)
    ids = run.tokenizer.encode("3 eins")
    for given in (ids, torch.tensor(ids), ids.tolist(), [ids], np.array(["3 eins"])):
        assert run.translate(given, beams=1, max_new_tokens=4) == [[best]]
    with pytest.raises(UserError, match="only a decoder continues a text"):
        run.generate("a")


# --- a lecturer -------------------------------------------------------------------------------------------


def test_a_text_is_cut_into_tokens(tmp_path: Path) -> None:
    cut = cf.tokenize("low lower", "bpe", vocab_size=258)
    assert len(cut.ids) == len(cut) == len(cut.labels) < len("low lower")
    assert str(cut) == " | ".join(cut.labels)
    assert cf.tokenize("ab", "char").to_dict() == {"text": "ab", "ids": [0, 1], "labels": ["a", "b"]}
    cut.tokenizer.save(tmp_path / "tokenizer.json")
    again = cf.tokenize("low lower", tmp_path / "tokenizer.json")
    for given in (tmp_path / "tokenizer.json", cut.tokenizer):
        with pytest.raises(
            ConfigError, match=r"^vocab_size: only a tokenizer kind takes settings; remove it$"
        ):
            cf.tokenize("low lower", given, vocab_size=300)
    assert again.ids.tolist() == cut.ids.tolist()
    assert cf.tokenize(cut.ids, cut.tokenizer).text == "low lower"
    assert np.asarray(cut).tolist() == list(cut) == cut.ids.tolist()
    assert (cut[0], cut[-2:]) == (cut.ids[0], cut.ids[-2:].tolist())
    assert type(cut[0]) is int


@pytest.mark.parametrize(
    ("arguments", "error", "line"),
    [
        (("ab", "bpee"), ConfigError, r"tokenizer\.kind is one of .*did you mean 'bpe'"),
        (("ab", "no.json"), TokenizerError, "no.json"),
        (([97], "byte"), UserError, "ids are already tokens"),
        ((3.5, "byte"), UserError, "a text must be a string or token ids; got 3.5"),
    ],
)
def test_what_cannot_be_cut_is_told(arguments: Any, error: type[Exception], line: str) -> None:
    with pytest.raises(error, match=line):
        cf.tokenize(*arguments)


def test_results_are_short_to_look_at_and_whole_as_a_dictionary() -> None:
    run = trained()
    [sample] = run.generate("To be", max_new_tokens=60)

    assert len(repr(sample)) < 400
    assert json.loads(json.dumps(sample.to_dict()))["tokens"] == sample.tokens
    with pytest.raises(AttributeError):
        sample.text = "other"  # type: ignore[misc]


def test_tokens_arrays_and_strings_are_texts() -> None:
    run = trained()
    ids = run.tokenizer.encode("To be")
    expected = run.generate("To be", max_new_tokens=3)

    cut = cf.tokenize("To be", run)
    assert torch.tensor(cut).tolist() == ids.tolist()
    for given in (
        ids,
        torch.tensor(ids),
        ids.tolist(),
        cut,
        ["To be"],
        [ids],
        ids[None],
        np.array(["To be"]),
    ):
        assert run.generate(given, max_new_tokens=3) == expected
    assert expected[0].prompt == "To be"
    assert len(run.generate(np.stack([ids, ids]), max_new_tokens=2)) == 2
    of_nothing = run.generate("", max_new_tokens=3)
    for given in (cf.tokenize("", run).ids, torch.tensor(ids)[:0]):
        assert run.generate(given, max_new_tokens=3) == of_nothing
    for none in ([], (), np.array([]), ids[None][:0]):
        assert run.generate(none, max_new_tokens=3) == []
    with pytest.raises(TokenizerError, match="the id 999 is outside this tokenizer's vocabulary"):
        run.generate([999])
    with pytest.raises(UserError, match="a text must be a string or token ids"):
        run.generate([1.5])  # type: ignore[list-item]


def test_defaults_of_torch_that_a_notebook_set_change_nothing(tmp_path: Path) -> None:
    """As `torch.set_default_device("cuda")` would, on a machine without a GPU: what is made there has no numbers."""
    run = trained(run="plain")
    wanted = run.generate("To be", max_new_tokens=5, seed=3)
    try:
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("meta"):
            opened = cf.load("plain", device="cpu")
            for one in (trained(run="other"), opened, cf.replay("plain", 6, device="cpu")):
                assert one.generate("To be", max_new_tokens=5, seed=3) == wanted
            for see in (cf.lens.next_draw, cf.lens.ledger, cf.lens.logit_lens, cf.lens.integrated_gradients):
                assert see(opened, "To be") == see(run, "To be")
            assert cf.lens.head_scores(opened, n_tokens=4) == cf.lens.head_scores(run, n_tokens=4)
            assert cf.build(opened.config.model).embed.weight.is_meta  # a module of torch like any other
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(opened.model.embed.weight, run.model.embed.weight)


# --- a researcher -----------------------------------------------------------------------------------------


def test_a_model_of_one_s_own_loop_is_a_run(tmp_path: Path) -> None:
    model = cf.build(cf.ModelConfig(vocab_size=256, d_model=16, n_layers=1, max_seq_len=8, position="rope"))  # type: ignore[arg-type]
    tokenizer = ByteTokenizerSpec().train(())
    run = cf.Run(model, tokenizer, step=3)

    [sample] = run.generate("ab", max_new_tokens=4, temperature=0)
    assert run.config.model == model.config
    with pytest.raises(RunError, match=r"this run has no folder; save it with run\.save\(NAME\)"):
        run.folder  # noqa: B018
    kept = run.save("mine")
    opened = cf.load("mine", device="cpu")
    assert (opened.step, opened.config) == (3, run.config)
    assert opened.generate("ab", max_new_tokens=4, temperature=0) == [sample]
    assert kept.folder.path == opened.folder.path
    elsewhere = run.save(tmp_path / "elsewhere")
    assert cf.load(tmp_path / "elsewhere", device="cpu").name == elsewhere.name
    for taken in ("mine", tmp_path / "elsewhere"):
        with pytest.raises(RunError, match="exists"):
            run.save(taken)
    with pytest.raises(RunError, match="is not a valid run name"):
        run.save("a b")


def test_opened_runs_are_compared_by_their_folders() -> None:
    runs = [trained(run=name, seed=seed) for name, seed in (("a", 1), ("b", 2))]
    assert cf.compare(*runs) == cf.compare("a", cf.load("b", device="cpu")) == cf.compare("a", "b")
    with pytest.raises(UserError, match="the run a is given twice"):
        cf.compare(runs[0], "a")
    with pytest.raises(RunError, match="no folder"):
        cf.compare(cf.Run(runs[0].model, runs[0].tokenizer))
    with pytest.raises(UserError, match="give a run, such as"):
        cf.compare(runs[0].model)  # type: ignore[arg-type]


def test_a_trained_run_is_kept_under_another_name_with_what_it_was_trained_on() -> None:
    run = trained(run="a")
    run.save("b")
    assert cf.load("b", device="cpu").folder.trained_on() == run.folder.trained_on()


@pytest.mark.parametrize(
    ("model", "tokenizer", "line"),
    [
        (
            torch.nn.Linear(1, 1),
            ByteTokenizerSpec().train(()),
            r"must come from clearformer\.build\(\.\.\.\); got Linear",
        ),
        (torch.nn.DataParallel(torch.nn.Linear(1, 1)), "byte", r"got DataParallel; give its \.module$"),
        (
            torch.compile(torch.nn.Linear(1, 1), backend="eager"),
            "byte",
            r"got OptimizedModule; give its \._orig_mod$",
        ),
        (None, "byte", "got str"),
        (None, ByteTokenizerSpec(bos=True).train(()), "257 tokens, but the model has 256"),
    ],
)
def test_what_makes_no_run_is_told(model: Any, tokenizer: Any, line: str) -> None:
    ours = cf.build(cf.ModelConfig(vocab_size=256, d_model=16, n_layers=1))
    with pytest.raises(UserError, match=line):
        cf.Run(ours if model is None else model, tokenizer)


def test_a_model_without_a_vocabulary_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"vocab_size is missing.*ModelConfig\(vocab_size=256\)"):
        cf.build(cf.ModelConfig())


def test_a_model_goes_to_transformers_and_back(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"position": "learned", "ffn": {"kind": "gelu", "approximate": "tanh"}}
    settings |= {"attention": {"n_heads": 2, "qkv_bias": True, "output_bias": True}, "max_seq_len": 8}
    model = cf.build(cf.ModelConfig(vocab_size=256, d_model=16, n_layers=1, **settings))
    run = cf.Run(model, ByteTokenizerSpec().train(())).save("ours")

    run.export(tmp_path / "theirs")
    back = cf.from_hf(tmp_path / "theirs", "back")

    assert isinstance(back, cf.Run)
    tokens = torch.arange(8)[None]
    torch.testing.assert_close(back.model(tokens), model.eval()(tokens))


def test_all_errors_are_of_one_class() -> None:
    with pytest.raises(cf.ClearformerError):
        cf.load("nothing")
    assert cf.ClearformerError is ClearformerError
