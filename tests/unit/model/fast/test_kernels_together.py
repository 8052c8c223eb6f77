"""Kernels that share a file are those that torch's compiler makes."""

import gc
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from clearformer.model.fast.kernels_together import (
    Kernel,
    KernelToCome,
    garbage_kept,
    joint_source,
)

from ....forks import ForkServer

SCRIPT = """
import sys
from pathlib import Path

import torch
from clearformer.model.fast.compiling import compile_step
from clearformer.model.fast.kernels_together import kernels_together

torch.manual_seed(1)
torch.set_default_dtype(torch.float64)  # in float32 the cosine of large numbers depends on the processor
x, w = torch.randn(7, 5, requires_grad=True), torch.randn(5, 5, requires_grad=True)

def loss(x, w):
    return (x.exp() @ w).cos().softmax(0).square().sum()

def gradients(function):
    x.grad = w.grad = None
    value = function(x, w)
    value.backward()
    return value.detach(), x.grad.clone(), w.grad.clone()

step = compile_step(loss, any_threads=True)
with kernels_together(Path(sys.argv[1])):
    first = gradients(step)
again = gradients(step)
print("the plain ones", all(map(torch.allclose, first, gradients(loss))))
print("each time", all(map(torch.equal, first, again)))
from torch._dynamo.utils import counters
print("found", counters["aot_autograd"]["autograd_cache_hit"])
"""


def test_a_step_s_kernels_share_a_file_for_each_way_and_are_found_again(
    forks: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)

    def built_in(folder: str) -> tuple[list[str], int]:
        done = forks.run(str(tmp_path / folder), script=SCRIPT)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines(), len(list((tmp_path / folder).rglob("*.main.cpp")))

    same = ["the plain ones True", "each time True"]
    assert built_in("a") == ([*same, "found 0"], 2)
    assert built_in("a") == ([*same, "found 1"], 2)


def test_garbage_is_collected_afterwards_as_it_was_before() -> None:
    assert gc.isenabled()
    with garbage_kept():
        assert not gc.isenabled()
        with garbage_kept():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_each_kernel_has_a_name_and_a_namespace_in_the_file_and_headers_come_once() -> None:
    kernels = [
        Kernel(["const float*", "float*"], "#include <a.h>\nvoid kernel(const float* x, float* y) {}"),
        Kernel(["int64_t"], '#include <a.h>\n  #include "b.h"\nvoid kernel(int64_t n) {}'),
    ]

    lines = joint_source(kernels, "{entry_func}/{arg_len}: {call_entry_func}{extra_parse_arg}").split("\n")

    assert [line for line in lines if "include" in line] == [
        "#include <a.h>",
        '  #include "b.h"',
        "#include <Python.h>",
        "#include <sstream>",
        "#include <cstdlib>",
        "#include <cerrno>",
    ]
    assert (
        "kernel_0/2: kernel_0(parse_arg<float*>(args, 0), parse_arg<float*>(args, 1)); Py_RETURN_NONE;"
        in lines
    )
    second = lines[lines.index("#define kernel kernel_1") :]
    assert [line for line in second if line] == [
        "#define kernel kernel_1",
        "void kernel(int64_t n) {}",
        "#undef kernel",
        "namespace of_kernel_1 {",
        "kernel_1/1: kernel_1(parse_arg<int64_t>(args, 0)); Py_RETURN_NONE;",
        "}",
    ]


def test_a_kernel_to_come_gives_its_place_to_the_function_or_is_built_alone() -> None:
    called: list[tuple[Any, ...]] = []

    def run(built: Future[Any], alone: Any) -> list[tuple[Any, ...]]:
        called.clear()
        scope: dict[str, Any] = {}
        scope["mul"] = KernelToCome(scope, "mul", built, 1, alone)
        scope["mul"](3, 4)
        scope["mul"](5)
        assert not isinstance(scope["mul"], KernelToCome)
        return called

    whole: Future[Any] = Future()
    whole.set_result([None, lambda *arguments: called.append(("together", *arguments))])
    assert run(whole, dict) == [("together", 3, 4), ("together", 5)]

    broken: Future[Any] = Future()
    broken.set_exception(ValueError("two functions of one name"))
    function = lambda *arguments: called.append(("alone", *arguments))  # noqa: E731
    later: Future[Any] = Future()
    later.set_result(function)
    assert run(broken, lambda: function) == [("alone", 3, 4), ("alone", 5)]
    assert run(broken, lambda: later) == [("alone", 3, 4), ("alone", 5)]


def test_a_kernel_that_a_signal_has_stopped_is_not_built_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Ctrl-C ends the compiler as well, whose output is long."""
    killed: Future[Any] = Future()
    killed.set_exception(RuntimeError("C++ compile error\ng++ a.cpp\nOutput:"))
    kernel = KernelToCome({}, "mul", killed, 1, lambda: pytest.fail("built alone"), ended=lambda: True)
    with caplog.at_level("INFO"), pytest.raises(RuntimeError, match="compile error"):
        kernel(3, 4)
    assert caplog.messages == ["building a kernel by itself, because it fails with others: C++ compile error"]
