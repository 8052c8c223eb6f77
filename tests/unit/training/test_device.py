import logging
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from clearformer import device as module
from clearformer.device import (
    ALLOW,
    RAISE,
    FreedMemory,
    autocast,
    bfloat16_gain,
    deterministic_kernels,
    gain_of_products,
    has_cpp_compiler,
    keep_freed_memory,
    memory_errors,
    processor_name,
    resolve_compile,
    resolve_device,
    resolve_dtype,
    seed_kernels,
    synchronize,
    torch_as_it_begins,
)
from clearformer.errors import ConfigError, DeviceError
from clearformer.training.config import TrainConfig

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
    assert resolve_device("auto") == CPU  # MPS has no float64, so it is taken by name alone
    assert resolve_device("mps") == resolve_device(torch.device("mps", 0)) == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == torch.device("cuda")
    assert resolve_device("cpu") == CPU


@pytest.mark.usefixtures("_cpu_only")
@pytest.mark.parametrize("name", ["cpu", "CPU", " Cpu "])
def test_upper_and_lower_case_are_the_same(name: str) -> None:
    assert resolve_device(name) == CPU


@pytest.fixture
def _two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.usefixtures("_two_gpus")
def test_one_gpu_of_several_is_taken_where_it_is_there() -> None:
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    assert resolve_device("CUDA:0") == torch.device("cuda", 0)
    assert resolve_device("auto") == torch.device("cuda")
    with pytest.raises(ConfigError, match=r"no cuda:2; it has cuda, cuda:0, cuda:1, cpu$"):
        resolve_device("cuda:2")


@pytest.mark.usefixtures("_cpu_only")
@pytest.mark.parametrize(
    ("name", "nearest"),
    [("gpu", "cuda"), ("cda", "cuda"), ("cpuu", "cpu"), ("cuda:x", "cuda"), ("cuda:-1", "cuda")],
)
def test_what_is_no_device_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_device(name, key="--device")
    assert (
        str(caught.value)
        == f"--device: {name!r} is not a device (this machine has cpu); did you mean {nearest!r}?"
    )
    with pytest.raises(ConfigError, match=rf"train\.device: auto, cpu, .*did you mean '{nearest}'"):
        TrainConfig(max_steps=1, device=name)


@pytest.mark.parametrize("name", ["", "disk", "cpu:0", "cuda:"])
def test_a_device_s_name_is_checked(name: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a device \(this machine has "):
        resolve_device(name)
    with pytest.raises(ConfigError, match=r"train\.device: auto, cpu, mps, cuda or one GPU"):
        TrainConfig(max_steps=1, device=name)


def test_a_run_may_name_one_gpu() -> None:
    assert TrainConfig(max_steps=1, device="CUDA:1").device == "cuda:1"


# --- types ------------------------------------------------------------------------------------------------


def measured(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[torch.dtype, int], float]) -> None:
    """The time of the n-th product, warm-up included, as a test says."""
    calls = dict.fromkeys((torch.float32, torch.bfloat16), 0)

    def product_seconds(a: torch.Tensor) -> float:
        calls[a.dtype] += 1
        return seconds(a.dtype, calls[a.dtype])

    monkeypatch.setattr(module, "_product_seconds", product_seconds)
    monkeypatch.setattr(module, "_of_auto", {})


@pytest.mark.parametrize(
    ("gain", "chosen"), [(4.0, "bfloat16"), (1.31, "bfloat16"), (1.2, "float32"), (0.1, "float32")]
)
def test_auto_takes_bfloat16_where_it_is_measured_to_be_faster(
    gain: float, chosen: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    measured(monkeypatch, lambda dtype, n: 0.01 * gain if dtype == torch.float32 else 0.01)

    with caplog.at_level(logging.INFO):
        assert resolve_dtype("auto", CPU) == chosen
    assert caplog.messages == [
        f"bfloat16 matrix products are about {gain:.2g} times as fast as float32 here: using {chosen}"
    ]


def test_moments_in_which_the_machine_was_busy_do_not_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of three products in float32 took forty times as long: their median is no measure of anything."""
    measured(monkeypatch, lambda dtype, n: 0.04 if dtype == torch.float32 and n % 3 else 0.001)

    with caplog.at_level(logging.INFO):
        assert resolve_dtype("auto", CPU) == "float32"
    assert caplog.messages == [
        "bfloat16 matrix products are about 1 times as fast as float32 here, or 40 times; the machine is too busy "
        "to tell: using float32"
    ]


def test_auto_measures_once_in_a_process_unless_the_machine_was_too_busy_to_tell(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    busy = True
    measured(
        monkeypatch,
        lambda dtype, n: (0.04 if not busy or n % 3 else 0.001) if dtype == torch.float32 else 0.001,
    )

    with caplog.at_level(logging.INFO):
        assert [resolve_dtype("auto", CPU) for _ in range(2)] == ["float32"] * 2
        assert len(caplog.messages) == 2
        busy = False
        assert [resolve_dtype("auto", CPU) for _ in range(2)] == ["bfloat16"] * 2
    assert len(caplog.messages) == 3


def test_where_the_machine_was_busy_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    measured(monkeypatch, lambda dtype, n: (2 if dtype == torch.float32 else 1) * (0.003 if n % 3 else 0.001))

    with caplog.at_level(logging.INFO):
        assert resolve_dtype("auto", CPU) == "bfloat16"
    assert "about 2 times as fast" in caplog.text
    assert "(busy machine: timings varied by a factor of 3): using bfloat16" in caplog.text


def test_the_two_types_are_measured_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[torch.dtype] = []

    def product_seconds(a: torch.Tensor) -> float:
        order.append(a.dtype)
        return 1.0

    monkeypatch.setattr(module, "_product_seconds", product_seconds)
    gain_of_products(CPU, size=8, repeats=7)

    assert order == [torch.float32, torch.bfloat16] * (7 + module.WARM_UP)


@pytest.mark.parametrize(
    ("gain", "sizes"), [(0.01, {128}), (0.05, {128}), (0.2, {128, 512}), (2.0, {128, 512})]
)
def test_large_products_are_not_tried_where_small_ones_are_hopeless(
    gain: float, sizes: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: set[int] = set()

    def product_seconds(a: torch.Tensor) -> float:
        tried.add(len(a))
        return gain if a.dtype == torch.float32 else 1.0

    monkeypatch.setattr(module, "_product_seconds", product_seconds)
    assert bfloat16_gain(CPU).ratio == pytest.approx(gain)
    assert tried == sizes


@pytest.mark.parametrize("lacks", [False, True])
def test_a_named_type_is_taken_and_told_where_the_processor_has_no_units_for_it(
    lacks: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "lacks_bfloat16", lambda device: lacks)

    assert resolve_dtype("float32", CPU) == "float32"
    assert not caplog.messages
    assert resolve_dtype("bfloat16", CPU) == "bfloat16"
    assert ("this processor lacks native support" in caplog.text) == lacks


@pytest.mark.parametrize(("seconds", "lacks"), [(0.05, True), (0.2, False), (1.0, False), (5.0, False)])
def test_a_processor_lacks_the_units_where_small_products_take_far_longer(
    seconds: float, lacks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, lambda dtype, n: seconds if dtype == torch.float32 else 1.0)
    module.lacks_bfloat16.cache_clear()
    try:
        assert module.lacks_bfloat16(CPU) == lacks
        assert not module.lacks_bfloat16(torch.device("cuda"))
    finally:
        module.lacks_bfloat16.cache_clear()


def test_the_measurement_is_of_products() -> None:
    def least(size: int) -> float:
        return min(module._product_seconds(torch.rand(size, size)) for _ in range(9))

    assert 0 < least(2) < least(512)


def test_a_gpu_with_bfloat16_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_it, chosen in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(module, "_of_auto", {})
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
    monkeypatch.setattr("clearformer.device.has_cpp_compiler", lambda: False)


@pytest.fixture
def _compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearformer.device.has_cpp_compiler", lambda: True)


def yes() -> bool:
    return True


def no() -> bool:
    return False


def not_to_be_asked() -> bool:
    raise AssertionError("the setting alone decides")


def test_a_compiler_is_one_that_says_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS without its developer tools has programs of these names that only ask to install them."""
    monkeypatch.setenv("PATH", str(tmp_path))
    has_cpp_compiler.cache_clear()
    assert not has_cpp_compiler()
    for answer, found in ((1, False), (0, True)):
        program = tmp_path / "clang++"
        program.write_text(f"#!/bin/sh\nexit {answer}\n")
        program.chmod(0o755)
        has_cpp_compiler.cache_clear()
        assert has_cpp_compiler() is found
    has_cpp_compiler.cache_clear()


@pytest.mark.usefixtures("_no_compiler")
def test_compilation_that_was_asked_for_needs_a_compiler() -> None:
    with pytest.raises(ConfigError, match=r"train\.compile: .*no C\+\+ compiler.*install one or set false"):
        resolve_compile(True, CPU, not_to_be_asked)


def test_triton_is_asked_for_by_who_has_imported_nothing_of_it() -> None:
    """`import torch` alone does not."""
    code = "import torch; from clearformer.device import resolve_compile as r; "
    code += "print(r('auto', torch.device('cuda'), bool))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_gpu_s_compiler_is_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    assert resolve_compile(True, torch.device("cuda"), not_to_be_asked) is True
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    with pytest.raises(ConfigError, match=r"train\.compile: found no Triton.*install it or set false"):
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


def test_autocast_within_a_callers_own_takes_the_weights_of_now() -> None:
    layer, x = torch.nn.Linear(3, 5, bias=False), torch.ones(2, 3)
    with torch.autocast("cpu", enabled=False):
        with autocast(CPU, torch.bfloat16):
            before = layer(x)
        with torch.no_grad():
            layer.weight *= 2
        with autocast(CPU, torch.bfloat16):
            torch.testing.assert_close(layer(x), 2 * before)


def test_autocast_makes_products_of_the_type_and_leaves_weights() -> None:
    layer = torch.nn.Linear(3, 5)
    for dtype in (torch.bfloat16, torch.float32):
        with autocast(CPU, str(dtype).removeprefix("torch.")):
            assert layer(torch.zeros(2, 3)).dtype == dtype
    assert layer.weight.dtype == torch.float32


def test_deterministic_kernels_are_used_inside_the_block_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with deterministic_kernels(CPU):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_caller_who_is_only_warned_of_other_kernels_goes_on_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with deterministic_kernels(CPU):
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_environment_that_keeps_cublas_from_being_deterministic_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    with (
        pytest.raises(ConfigError, match=r"train\.deterministic: CUBLAS_WORKSPACE_CONFIG=:0:0 .* unset it"),
        deterministic_kernels(torch.device("cuda")),
    ):
        pass
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
from clearformer.device import keep_freed_memory

def faults(n_steps):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(n_steps):
        tensor = torch.ones(12_000_000)  # 48 MB: more than what glibc keeps of itself, whatever was freed before
        del tensor
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults(2)
without = faults(20)
keep_freed_memory()
faults(20)  # a small piece behind the tensor may hinder the next one from its place a few times
print(without, faults(20))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    without, kept = map(int, done.stdout.split())

    assert kept < without / 4


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc's allocator is told")
def test_of_freed_memory_what_is_too_much_goes_back() -> None:
    script = """
import torch
from clearformer.device import FreedMemory, keep_freed_memory, resident_bytes

keep_freed_memory()
torch.ones(1000)
freed, before = FreedMemory(64 * 2**20), resident_bytes()
for megabytes in (32, 200):
    tensors = [torch.ones(2**18) for _ in range(megabytes)]
    last = torch.ones(1000)  # above them, so that the heap cannot just be made shorter
    del tensors
    freed.bound()
    print((resident_bytes() - before) // 2**20)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    little, much = map(int, done.stdout.split())

    assert little >= 30
    assert much < 30


def test_without_the_systems_word_nothing_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr("pathlib.Path.read_text", missing)
    monkeypatch.setattr("clearformer.device.give_back_freed_memory", lambda: pytest.fail("it was given back"))

    FreedMemory(0).bound()


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


@pytest.mark.parametrize(
    ("cpuinfo", "processor", "name"),
    [
        ("processor : 0\nmodel name\t: Fast CPU: 3 GHz\n", "x86", "Fast CPU: 3 GHz"),
        ("processor : 0\n", "x86", "x86"),
        ("", "", "arm64"),
        (None, "", "arm64"),
    ],
)
def test_the_processor_is_named_as_the_system_can(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: str | None, processor: str, name: str
) -> None:
    def read(*_: object) -> str:
        if cpuinfo is None:
            raise FileNotFoundError
        return cpuinfo

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr("platform.processor", lambda: processor)
    monkeypatch.setattr("platform.machine", lambda: "arm64")

    assert processor_name() == name


def test_blocks_of_two_threads_leave_torch_as_it_was() -> None:
    """Whichever ends first: the settings are the process's, not a thread's."""
    torch.set_default_dtype(torch.float64)
    one, other = (ExitStack() for _ in range(2))
    try:
        for each in (one, other):
            each.enter_context(torch_as_it_begins())
            each.enter_context(deterministic_kernels(CPU))
        one.close()
        assert torch.get_default_dtype() == torch.float32
        assert torch.get_deterministic_debug_mode() == RAISE
        other.close()
        assert torch.get_default_dtype() == torch.float64
        assert torch.get_deterministic_debug_mode() == ALLOW
    finally:
        other.close()
        torch.set_default_dtype(torch.float32)
