"""Building the C++ kernels of compiled graphs several to a file, while torch continues to compile.

torch's compiler gives each kernel a C++ file of its own, whose headers take several times as long to parse as its loops
take to compile; a precompiled header of 150 MB does not make up for that. The kernels and their compiler flags are
unchanged.
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

from clearformer.errors import first_line

logger = logging.getLogger(__name__)

KERNELS_IN_A_FILE = 12
"""The most kernels in a file; the same on any machine, because the cache finds files by their content."""

CACHE = "TORCHINDUCTOR_CACHE_DIR"
"""The environment variable that names the cache of torch's compiler."""

INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)
OF_BINDINGS = tuple(f"#include <{name}>" for name in ("Python.h", "sstream", "cstdlib", "cerrno"))
"""Headers that torch's bindings include; first in the file, so that the includes within a namespace have no effect."""

KernelFunction = Callable[..., None]
"""A kernel as a Python function of its tensors and numbers."""


class Kernel(NamedTuple):
    """The source of a C++ function named `kernel`, and the types of its arguments."""

    argument_types: list[str]
    source: str


@contextmanager
def kernels_together(folder: Path, ended: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Have torch's compiler build its C++ kernels several to a file, in the `with` block.

    The backward graph is compiled right after the forward graph, whose kernels are built meanwhile. torch's test
    programs, one for each instruction set, are skipped: a C++ compiler without the processor's instructions fails
    later, like one that does not work at all.

    Args:
        folder: The compiler's cache, for later processes, unless `CACHE` names another.
        ended: Whether a signal has come that ends the process; a kernel that fails then is not built by itself.
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
        stack.enter_context(with_attribute(async_compile, "AsyncCompile", _collecting(pool, ended)))
        for settings, name, value in (
            (config, "cpp.vec_isa_ok", True),
            (config, "cpp_cache_precompile_headers", False),
            (of_autograd, "force_non_lazy_backward_lowering", True),
        ):
            if hasattr(settings, name):  # older versions of torch lack some
                stack.enter_context(settings.patch({name: value}))
        yield


@contextmanager
def with_attribute(owner: object, name: str, value: object) -> Iterator[None]:
    """Replace an object's attribute in the `with` block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def with_variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable in the `with` block."""
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
    """Turn off garbage collection in the `with` block: it takes a tenth of the time of compiling."""
    was_collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collected:
            gc.enable()


def _collecting(pool: ThreadPoolExecutor, ended: Callable[[], bool]) -> type:
    """Return a subclass of torch's `AsyncCompile` that collects a graph's kernels and builds them together."""
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
                    scope[name] = KernelToCome(scope, name, built, i, alone, ended)
            super().wait(scope)

    return KernelsTogether


class KernelToCome:
    """A kernel that is being built; at its first call it replaces itself by the finished function."""

    def __init__(
        self,
        scope: dict[str, Any],
        name: str,
        built: Future[list[KernelFunction]],
        number: int,
        alone: Callable[[], Any],
        ended: Callable[[], bool] = lambda: False,
    ) -> None:
        """Stand in for one kernel.

        Args:
            scope: The namespace that it is called from.
            name: Its name there.
            built: The functions of its file.
            number: Its index among them.
            alone: Builds it as torch does, if building the shared file fails.
            ended: Whether a signal has ended the process meanwhile, and the compiler with it: then nothing is built.
        """
        self.scope, self.name, self.built, self.number, self.alone = scope, name, built, number, alone
        self.ended = ended

    def __call__(self, *arguments: Any) -> None:
        try:
            function = self.built.result()[self.number]
        except Exception as error:  # torch's private code may raise anything
            logger.info("building a kernel by itself, because it fails with others: %s", first_line(error))
            if self.ended():
                raise
            function = self.alone()
            function = function.result() if hasattr(function, "result") else function
        self.scope[self.name] = function
        function(*arguments)


def in_one_file(kernels: Sequence[Kernel], pool: ThreadPoolExecutor) -> Future[list[KernelFunction]]:
    """Start building the kernels in one file, unless it is cached, and return a future of their functions."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    class Together(CppPythonBindingsCodeCache):
        cache: ClassVar[dict[str, Any]] = {}
        entry_function = kernel_name(0)

    try:
        load = Together.load_async(joint_source(kernels, Together.suffix_template))
    except Exception as error:  # torch's private code may raise anything
        failed: Future[list[KernelFunction]] = Future()
        failed.set_exception(error)
        return failed
    return pool.submit(functions_of, load, len(kernels))


def joint_source(kernels: Sequence[Kernel], binding: str) -> str:
    """Return one C++ file of all kernels, each with a binding of torch's template in a namespace of its own."""
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
    """Return the name of a kernel in its file and of the module that binds it."""
    return f"kernel_{number}"


def functions_of(load: Callable[[], ModuleType], count: int) -> list[KernelFunction]:
    """Return the functions of a file's kernels, each from an extension module of its own in that file."""
    first = load()
    modules = [first]
    for i in range(1, count):
        spec = importlib.util.spec_from_file_location(f"{first.__name__}.{kernel_name(i)}", first.__file__)
        assert spec is not None
        assert spec.loader is not None
        modules.append(importlib.util.module_from_spec(spec))
        spec.loader.exec_module(modules[-1])
    return [getattr(module, kernel_name(i)) for i, module in enumerate(modules)]
