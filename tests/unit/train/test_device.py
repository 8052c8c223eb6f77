import logging
import os
import shutil
import subprocess
import sys

import pytest
import torch

from clearformer.errors import ConfigError, DeviceError
from clearformer.train import device as module
from clearformer.train.device import (
    autocast,
    keep_freed_memory,
    make_deterministic,
    memory_errors,
    resolve_compile,
    resolve_device,
    resolve_dtype,
    seed_kernels,
    synchronize,
)

CPU = torch.device("cpu")


@pytest.fixture
def _cpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.usefixtures("_cpu_only")
@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_device_that_is_not_here_is_named_with_those_that_are(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"train\.device: this machine has no {name}; it has cpu$"):
        resolve_device(name)


@pytest.mark.usefixtures("_cpu_only")
def test_auto_takes_the_best_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_device("auto") == CPU
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("auto") == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == torch.device("cuda")
    assert resolve_device("cpu") == CPU


@pytest.mark.parametrize(
    ("gain", "chosen"), [(4.0, "bfloat16"), (1.3, "bfloat16"), (1.2, "float32"), (0.1, "float32")]
)
def test_auto_takes_bfloat16_where_it_is_measured_to_be_faster(
    gain: float, chosen: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = {torch.float32: 0.01 * gain, torch.bfloat16: 0.01}
    monkeypatch.setattr(module, "_product_seconds", lambda dtype, device: seconds[dtype])

    with caplog.at_level(logging.INFO):
        assert resolve_dtype("auto", CPU) == chosen
    assert chosen in caplog.text  # and it is said


def test_a_named_type_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(module, "_product_seconds")

    assert resolve_dtype("float32", CPU) == "float32"
    assert resolve_dtype("bfloat16", CPU) == "bfloat16"


def test_the_measurement_is_of_products() -> None:
    small, large = (module._product_seconds(torch.float32, CPU, size=size) for size in (2, 512))

    assert 0 < small < large


def test_a_gpu_with_bfloat16_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_it, chosen in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, it=has_it: it)
        assert resolve_dtype("auto", torch.device("cuda")) == chosen


@pytest.mark.parametrize(("before", "after"), [(None, ":4096:8"), (":16:8", ":16:8")])
def test_cublas_is_told_of_its_workspace_before_its_first_product(
    before: str | None, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads this once, and a run is measured and settled before its first step."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", before or "")
    if before is None:
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    resolve_device("cuda")

    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == after


@pytest.fixture
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)


@pytest.fixture
def _compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")


def yes() -> bool:
    return True


def no() -> bool:
    return False


def not_to_be_asked() -> bool:
    raise AssertionError("the setting alone decides")


@pytest.mark.usefixtures("_no_compiler")
def test_compilation_that_was_asked_for_needs_a_compiler() -> None:
    with pytest.raises(ConfigError, match=r"train\.compile: .*no C\+\+ compiler.*install one, or set false"):
        resolve_compile(True, CPU, not_to_be_asked)


def test_triton_is_asked_for_by_who_has_imported_nothing_of_it() -> None:
    """`import torch` alone does not."""
    code = "import torch; from clearformer.train.device import resolve_compile as r; "
    code += "print(r('auto', torch.device('cuda'), bool))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_gpu_s_compiler_is_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    assert resolve_compile(True, torch.device("cuda"), not_to_be_asked) is True
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    with pytest.raises(
        ConfigError, match=r"train\.compile: there is no Triton here.*install it, or set false"
    ):
        resolve_compile(True, torch.device("cuda"), not_to_be_asked)


@pytest.mark.usefixtures("_no_compiler")
def test_without_a_compiler_auto_does_without(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert resolve_compile("auto", CPU, not_to_be_asked) is False
    assert "not compiling" in caplog.text


@pytest.mark.usefixtures("_compiler")
def test_auto_compiles_where_it_pays(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert resolve_compile("auto", CPU, yes) is True
        assert not caplog.messages
        assert resolve_compile("auto", CPU, no) is False
    assert "not compiling" in caplog.text  # and it is said


@pytest.mark.usefixtures("_compiler")
def test_what_was_asked_for_is_done() -> None:
    assert resolve_compile(True, CPU, not_to_be_asked) is True
    assert resolve_compile(False, CPU, not_to_be_asked) is False


def test_autocast_makes_products_of_the_type_and_leaves_weights() -> None:
    layer = torch.nn.Linear(3, 5)
    for dtype in (torch.bfloat16, torch.float32):
        with autocast(CPU, str(dtype).removeprefix("torch.")):
            assert layer(torch.zeros(2, 3)).dtype == dtype
    assert layer.weight.dtype == torch.float32


def test_deterministic_kernels_are_used_until_it_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    undo = make_deterministic(CPU)
    during = torch.are_deterministic_algorithms_enabled()
    undo()

    assert during
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_environment_that_keeps_cublas_from_being_deterministic_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    with pytest.raises(ConfigError, match=r"train\.deterministic: CUBLAS_WORKSPACE_CONFIG=:0:0 .* unset it"):
        make_deterministic(torch.device("cuda"))
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_cpu_needs_no_waiting_for() -> None:
    synchronize(CPU)


CUDA_SAYS = (
    "CUDA out of memory. Tried to allocate 6.13 GiB. GPU 0 has a total capacity of 79.11 GiB. 1.2 GiB is free.\n"
    "If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF"
)


def test_full_memory_is_told_in_one_line_with_what_helps() -> None:
    with pytest.raises(DeviceError) as found, memory_errors("take less"):
        raise torch.OutOfMemoryError(CUDA_SAYS)

    assert str(found.value) == "CUDA out of memory. Tried to allocate 6.13 GiB; take less"
    assert found.value.exit_status == 1


# --- memory and seeds -------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc's allocator is told")
def test_freed_memory_is_taken_up_again_without_a_page_fault() -> None:
    script = """
import resource, torch
from clearformer.train.device import keep_freed_memory

def faults(n_steps):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(n_steps):
        tensors = [torch.ones(300_000) for _ in range(40)]  # 48 MB
        del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults(2)
without = faults(5)
keep_freed_memory()
faults(2)
print(without, faults(5))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    without, kept = map(int, done.stdout.split())

    assert kept < without / 10


def test_another_allocator_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())  # as on a system without mallopt

    with caplog.at_level("INFO"):
        keep_freed_memory()

    assert "not glibc's" in caplog.text


def test_kernels_draw_from_the_seed() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)

    seed_kernels(torch.device("cpu"), 5)

    assert torch.equal(torch.rand(3), expected)
