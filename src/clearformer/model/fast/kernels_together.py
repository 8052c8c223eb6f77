"""The C++ kernels of compiled graphs, built several in a file, while the compiler goes on.

torch's compiler hands each kernel to the C++ compiler in a file of its own, whose headers take several times as long to
read as its loops take to compile; a precompiled header of 150 MB does not make up for that. The kernels themselves, and
the flags that they are compiled with, stay as they are.
"""

import gc
import importlib.util
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

logger = logging.getLogger(__name__)

KERNELS_IN_A_FILE = 12
"""The most of them, the same on any machine: files are found again in the cache by what they say."""

CACHE = "TORCHINDUCTOR_CACHE_DIR"
"""The variable by which torch's compiler finds its cache."""

INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)
OF_BINDINGS = tuple(f"#include <{name}>" for name in ("Python.h", "sstream", "cstdlib", "cerrno"))
"""The headers of torch's bindings, which each of them asks for within its namespace: there they must be known."""

KernelFunction = Callable[..., None]
"""A kernel as a Python function of the tensors and numbers that it takes."""


class Kernel(NamedTuple):
    """A C++ function named `kernel`, and the types of its arguments."""

    argument_types: list[str]
    source: str


@contextmanager
def kernels_together(folder: Path) -> Iterator[None]:
    """Have torch's compiler build its C++ kernels several in a file, in the `with` block.

    A step is compiled whole in it: forward and backward graph one after the other, and the first one's kernels are
    built while the second is worked out. The C++ compiler is not asked either what instructions it knows, by a program
    for each kind: one that does not know the processor's fails, as one that cannot compile at all does.

    Args:
        folder: Where the compiler keeps what it made, for later processes; unless `CACHE` names another place.
    """
    from torch._functorch import config as of_autograd
    from torch._inductor import async_compile, config
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    chosen = os.environ.get(CACHE)
    if chosen in (None, "", default_cache_dir()):  # torch sets it to its default
        chosen = str(folder)
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor())
        stack.enter_context(with_variable(CACHE, chosen))
        stack.enter_context(garbage_kept())
        stack.enter_context(with_attribute(async_compile, "AsyncCompile", _collecting(pool)))
        for settings, name, value in (
            (config, "cpp.vec_isa_ok", True),
            (config, "cpp_cache_precompile_headers", False),
            (of_autograd, "force_non_lazy_backward_lowering", True),
        ):
            if hasattr(settings, name):  # not every torch has all
                stack.enter_context(settings.patch({name: value}))
        yield


@contextmanager
def with_attribute(owner: object, name: str, value: object) -> Iterator[None]:
    """Give an object another attribute in the `with` block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def with_variable(name: str, value: str) -> Iterator[None]:
    """Give an environment variable another value in the `with` block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Leave Python's garbage where it is in the `with` block: looking for it takes a tenth of compiling."""
    was_collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collected:
            gc.enable()


def _collecting(pool: ThreadPoolExecutor) -> type:
    """A form of torch's `AsyncCompile`, of which each graph makes one, that waits for all of its kernels."""
    from torch._inductor.async_compile import AsyncCompile

    class KernelsTogether(AsyncCompile):
        def cpp_pybinding(self, argtypes: list[str], source_code: str) -> Any:
            return Kernel(argtypes, source_code)

        def wait(self, scope: dict[str, Any]) -> None:
            found = [(name, value) for name, value in scope.items() if isinstance(value, Kernel)]
            n_files = -(-len(found) // KERNELS_IN_A_FILE)
            for named in (found[i::n_files] for i in range(n_files)):
                built = in_one_file([kernel for _, kernel in named], pool)
                for i, (name, kernel) in enumerate(named):
                    alone = partial(super().cpp_pybinding, *kernel)
                    scope[name] = KernelToCome(scope, name, built, i, alone)
            super().wait(scope)

    return KernelsTogether


class KernelToCome:
    """A kernel that is being built, in whose place the function stands from its first call on."""

    def __init__(
        self,
        scope: dict[str, Any],
        name: str,
        built: Future[list[KernelFunction]],
        number: int,
        alone: Callable[[], Any],
    ) -> None:
        """A kernel of a file.

        Args:
            scope: Where it is called from.
            name: Its name there.
            built: The functions of its file.
            number: Its number among them.
            alone: Builds it as torch does, where kernels cannot share a file.
        """
        self.scope, self.name, self.built, self.number, self.alone = scope, name, built, number, alone

    def __call__(self, *arguments: Any) -> None:
        try:
            function = self.built.result()[self.number]
        except Exception as error:  # of many kinds: it is torch's own that is asked here
            logger.info("a kernel is built alone, for with others it fails: %s", error)
            function = self.alone()
            function = function.result() if hasattr(function, "result") else function
        self.scope[self.name] = function
        function(*arguments)


def in_one_file(kernels: Sequence[Kernel], pool: ThreadPoolExecutor) -> Future[list[KernelFunction]]:
    """The kernels' functions to come, of a file that is built in the pool unless the cache has it."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    class Together(CppPythonBindingsCodeCache):
        cache: ClassVar[dict[str, Any]] = {}
        entry_function = kernel_name(0)

    try:
        load = Together.load_async(joint_source(kernels, Together.suffix_template))
    except Exception as error:  # of many kinds: it is torch's own that is asked here
        failed: Future[list[KernelFunction]] = Future()
        failed.set_exception(error)
        return failed
    return pool.submit(functions_of, load, len(kernels))


def joint_source(kernels: Sequence[Kernel], binding: str) -> str:
    """One file of all kernels, each with its binding to Python in a namespace of its own.

    Args:
        kernels: Those of the file.
        binding: torch's template of a binding.
    """
    headers = dict.fromkeys(line for kernel in kernels for line in INCLUDE.findall(kernel.source))
    parts = [*headers, *OF_BINDINGS]
    for i, kernel in enumerate(kernels):
        name = kernel_name(i)
        arguments = ", ".join(
            f"parse_arg<{kind.replace('const ', '')}>(args, {n})"
            for n, kind in enumerate(kernel.argument_types)
        )
        call = binding.format(
            arg_len=len(kernel.argument_types),
            call_entry_func=f"{name}({arguments}); Py_RETURN_NONE;",
            entry_func=name,
            extra_parse_arg="",
        )
        body = INCLUDE.sub("", kernel.source)
        parts += [f"#define kernel {name}", body, "#undef kernel", f"namespace of_{name} {{", call, "}"]
    return "\n".join(parts)


def kernel_name(number: int) -> str:
    """The name of a kernel in its file, and of the module that binds it."""
    return f"kernel_{number}"


def functions_of(load: Callable[[], ModuleType], count: int) -> list[KernelFunction]:
    """The functions of a file's kernels: each is that of a module, which is found in the file by its name."""
    first = load()
    modules = [first]
    for i in range(1, count):
        spec = importlib.util.spec_from_file_location(f"{first.__name__}.{kernel_name(i)}", first.__file__)
        assert spec is not None
        assert spec.loader is not None
        modules.append(importlib.util.module_from_spec(spec))
        spec.loader.exec_module(modules[-1])
    return [getattr(module, kernel_name(i)) for i, module in enumerate(modules)]
