"""Which modules a process has loaded after a statement: what answers at once must not wait for what it does not use."""

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def test_text_and_data_are_imported_without_torch() -> None:
    assert "torch" not in loaded_by("import clearformer.text, clearformer.data")


def test_the_command_line_is_there_before_torch_and_pydantic() -> None:
    """So that --help answers at once."""
    assert not loaded_by("import clearformer.cli") & {"torch", "pydantic", "numpy"}


HELP_OF_ALL = (
    "import io; from clearformer.cli import COMMANDS, main; sys.stdout = text = io.StringIO(); "
    "assert not any(main([name, '--help']) for name in COMMANDS); sys.stdout = sys.__stdout__; "
    "assert text.getvalue().count('Usage:') == len(COMMANDS)"
)


def test_no_command_loads_for_its_help_what_it_needs_for_its_work() -> None:
    loaded = loaded_by(HELP_OF_ALL)
    assert "typer" in loaded
    assert not loaded & {"torch", "numpy", "pydantic", "tokenizers", "rich", "importlib.metadata"}


def test_the_lens_offers_what_the_page_makes_and_loads_none_of_it() -> None:
    loaded = loaded_by("import clearformer.lens; assert callable(clearformer.lens.show)")
    assert not [module for module in loaded if module.startswith("clearformer.page")]


TWO_STEPS = (
    "import torch, clearformer.training.loop; from clearformer.training.optim.optimizers import Muon, AdamW; "
    "from clearformer.model.fast import random_bits; from clearformer.device import deterministic_kernels; "
    "mode = deterministic_kernels(torch.device('cpu')); mode.__enter__(); "
    "assert torch.are_deterministic_algorithms_enabled(); random_bits.dropout(torch.ones(9), 0.5); "
    "net = torch.nn.Sequential(torch.nn.Linear(2, 2)); net[0].weight.grad = torch.ones(2, 2); "
    "[(o.step(), o.zero_grad(False)) for s in (AdamW(), Muon()) for o in s.build(net, 0.1)]"
)


def test_training_needs_no_compiler_where_nothing_is_compiled() -> None:
    """torch's takes over a second to import, and its optimizers, operators and modes would do so by themselves."""
    loaded = loaded_by(TWO_STEPS)
    assert "torch" in loaded
    assert not loaded & {"torch._dynamo", "torch._inductor", "sympy", "sklearn", "sacrebleu", "matplotlib"}


def test_a_text_is_continued_without_what_trains_compiles_and_compares(tmp_path: Path) -> None:
    from clearformer.model import ModelConfig, build
    from clearformer.run import Run
    from clearformer.text import ByteTokenizerSpec

    model = build(ModelConfig(vocab_size=256, d_model=8, n_layers=1, max_seq_len=8))
    Run(model, ByteTokenizerSpec().train(())).save(tmp_path / "run")
    typed = ["generate", str(tmp_path / "run"), "--prompt", "a", "--max-new-tokens", "2"]
    loaded = loaded_by(
        f"import io; from clearformer.cli import main; sys.stdout = io.StringIO(); "
        f"assert main({typed}) == 0; assert sys.stdout.getvalue(); sys.stdout = sys.__stdout__"
    )
    assert "clearformer.decoding" in loaded
    assert not {"torch._dynamo", "torch._inductor", "sympy", "transformers"} & loaded
    assert not {"matplotlib", "rich", "sklearn", "scipy", "sacrebleu", "starlette"} & loaded
    assert (
        not {"clearformer.training.loop", "clearformer.interop", "clearformer.lens", "clearformer.page"}
        & loaded
    )


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter holds after a statement."""
    code = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); {statement}; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())
