"""Run Numba-CUDA kernels on the CPU emulator: Numba compiles them, without a GPU.

Numba passes an array as its address, size, shape and strides. Written for numba-cuda 0.30.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._kinds import shown
from tmaasync._patches import Patches
from tmaasync._source.program import entries_of
from tmaasync._tested_versions import check_version
from tmaasync._tile.pointer import PackedArgument
from tmaasync.errors import ArgumentError, ArrayTypeError
from tmaasync.kernel import Kernel

__all__ = ["on_cpu", "run"]

_CAPABILITY = (9, 0)
_OPTIONS = ("debug", "fastmath", "opt")  # of @cuda.jit, which cuda.compile takes too


def run(kernel: Any, grid: Any, block: Any, *args: Any, shared_mem: int = 0) -> None:
    """Launch a kernel of Numba on arrays in host memory.

    Args:
        kernel: A function with ``@cuda.jit``.
        grid: Blocks along x, y and z; an int is x alone.
        block: Threads per block along x, y and z.
        args: The kernel's arguments: arrays, numbers, tuples of them.
        shared_mem: Dynamic shared memory in bytes.

    Raises:
        ArgumentError: The kernel is none of Numba's, or an argument has a type that is not
            supported.
        EmulatedRace, EmulatedFault, EmulatedDeadlock, EmulatedTimeout: As for each `Kernel`.
    """
    if not hasattr(kernel, "typeof_pyval") or not hasattr(kernel, "py_func"):
        rule, remedy = "it has no @cuda.jit", "Pass the function below @cuda.jit"
        raise ArgumentError.broken("kernel", shown(kernel), rule, remedy)
    check_version("numba-cuda", "0.30", __name__)
    compiled = _compiled(kernel, tuple(map(kernel.typeof_pyval, args)))
    given = [
        one
        for name, kind, value in zip(compiled.names, compiled.kinds, args, strict=True)
        for one in _expanded(name, kind, value)
    ]
    compiled.kernel(grid, block, given, shared_mem=shared_mem)


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Run the launches of Numba-CUDA kernels inside the ``with`` on this machine's CPU.

    ``kernel[grid, block](...)`` takes NumPy arrays and CPU tensors of torch. It applies to this
    thread or context alone.

    Raises:
        ImportError: numba-cuda is not installed.
    """
    with _PATCHES.applied():
        yield


def _patch(patches: Patches) -> None:
    from numba.cuda.dispatcher import CUDADispatcher

    patches.replace(CUDADispatcher, "call", _call)


_PATCHES = Patches("numba", _patch)


def _call(theirs: Callable[..., Any], kernel: Any, args: Sequence[Any], launch_config: Any) -> None:
    del theirs  # of a GPU
    sides = (launch_config.griddim, launch_config.blockdim)
    run(kernel, *sides, *args, shared_mem=launch_config.sharedmem)


# --- compilation --------------------------------------------------------------------------------


class _Compiled(NamedTuple):
    kernel: Kernel
    names: Sequence[str]
    kinds: Sequence[Any]  # Numba's types of the arguments


@functools.lru_cache(maxsize=256)
def _compiled(kernel: Any, kinds: tuple[Any, ...]) -> _Compiled:
    from numba import cuda, void

    names = list(inspect.signature(kernel.py_func).parameters)
    if len(names) != len(kinds):
        rule = f"{kernel.py_func.__name__} takes {len(names)}"
        raise ArgumentError.broken("args", f"{len(kinds)} arguments", rule, "Pass one for each")
    options = {
        name: kernel.targetoptions[name] for name in _OPTIONS if kernel.targetoptions.get(name)
    }
    if "debug" not in options:
        options["lineinfo"] = True
    with _device_functions():
        text, _ = cuda.compile(
            kernel.py_func,
            void(*kinds),
            cc=_CAPABILITY,
            device=False,
            abi="numba",
            output="ptx",
            **options,
        )
    (symbol,) = entries_of(text, "", "", "")
    name = kernel.py_func.__name__
    return _Compiled(Kernel(text.replace(symbol, name), name), names, kinds)


@contextlib.contextmanager
def _device_functions() -> Iterator[None]:
    """Let Numba compile functions with ``device=True`` for sm_90 where it asks for the GPU."""
    from numba.cuda import dispatcher

    theirs = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=_CAPABILITY)
    try:
        yield
    finally:
        dispatcher.get_current_device = theirs


# --- arguments ----------------------------------------------------------------------------------


def _expanded(name: str, kind: Any, value: Any) -> Iterator[Any]:
    """Yield the parameters of an argument: of an array its address, size, shape and strides."""
    from numba import types
    from numba.np.numpy_support import as_dtype

    if isinstance(kind, types.Array):
        array = np.asarray(value.detach() if hasattr(value, "detach") else value)
        yield from (0, 0, array.size, array.itemsize)
        yield PackedArgument(array.ctypes.data.to_bytes(8, "little"), [(name, _view(array))])
        yield from (*array.shape, *array.strides)
    elif isinstance(kind, types.BaseTuple):
        for number, (one, item) in enumerate(zip(kind, value, strict=True)):
            yield from _expanded(f"{name}[{number}]", one, item)
    elif isinstance(kind, types.Complex):
        part = kind.underlying_float
        yield from _expanded(name, part, value.real)
        yield from _expanded(name, part, value.imag)
    elif isinstance(kind, types.Number | types.Boolean):
        yield PackedArgument(np.array(value, as_dtype(kind)).tobytes())
    else:
        rule = f"{kind} is none of Numba's types that the CPU takes: arrays, numbers and tuples"
        raise ArgumentError.broken(name, shown(value), rule, "Pass its members")


def _view(array: np.ndarray[Any, Any]) -> ArrayView:
    """Return the view of an array; of complex numbers and structs the view of their bytes."""
    try:
        return _arrays.view(array)
    except ArrayTypeError:
        if not array.flags.c_contiguous:
            raise
        return _arrays.view(array.reshape(-1).view(np.uint8))
