"""Run Triton kernels on the CPU emulator: Triton compiles them, without a GPU, and a `Kernel` runs.

Triton's own arguments of a launch are made here: pointers of scratch memory, and a tensor map with
sizes and strides for each tensor descriptor. They change with Triton's releases; written for 3.9.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays
from tmaasync._kinds import shown
from tmaasync.errors import ArgumentError
from tmaasync.kernel import Kernel
from tmaasync.tile import create_tma_tile

__all__ = ["TensorDescriptor", "launch", "run"]

_TYPES = {
    **{f"{sign}{bits}": f"{sign[0]}{bits}" for sign in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"fp{bits}" for bits in (16, 32, 64)},
    "bfloat16": "bf16",
    "bool": "i1",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
}
_SWIZZLES = ("none", "32B", "64B", "128B")
_ALIGNED_BYTES = 16  # what Triton specialises on, of addresses and of integers
_BLOCK = re.compile(r"^\.reqntid (\d+)", re.MULTILINE)

Grid = Sequence[int] | Callable[[Mapping[str, Any]], Sequence[int]]


class TensorDescriptor(NamedTuple):
    """An array and the block that a kernel loads or stores: a tensor descriptor for any array.

    Triton's own ``TensorDescriptor`` takes torch tensors, and is accepted too.
    """

    base: Any
    block_shape: Sequence[int]


def run(kernel: Any, grid: Grid, *args: Any, **named: Any) -> None:
    """Compile a Triton kernel for sm_90a, and launch it on arrays in host memory.

    Args:
        kernel: A function with ``@triton.jit``.
        grid: Programs along x, y and z, or a function of the arguments by name.
        args: The kernel's arguments: arrays, tensor descriptors, numbers.
        named: More arguments by name, ``tl.constexpr`` among them, and Triton's options, such as
            ``num_warps``.

    Raises:
        ArgumentError: The kernel is none of Triton's, or an argument is missing.
        EmulatedError: As for each launch of a `Kernel`.
    """
    names = getattr(kernel, "arg_names", None)
    if names is None:
        raise ArgumentError.broken(
            "kernel", shown(kernel), "it has no @triton.jit", "Pass the function below @triton.jit"
        )
    given = dict(zip(names, args, strict=False))
    given |= {name: value for name, value in named.items() if name in names}
    if missing := [name for name in names if name not in given]:
        raise ArgumentError(f"{', '.join(missing)}: the kernel takes them. Pass a value for each.")
    options = {name: value for name, value in named.items() if name not in names}
    sides = grid(given) if callable(grid) else grid
    constants = {one.name for one in kernel.params if one.is_constexpr}
    compiled = _compiled(kernel, given, constants, options)
    launch(compiled, sides, *(given[name] for name in names if name not in constants))


def _compiled(
    kernel: Any, given: Mapping[str, Any], constants: set[str], options: Mapping[str, Any]
) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = list(kernel.arg_names)
    types = {name: "constexpr" if name in constants else _type(name, given[name]) for name in names}
    values = {(names.index(name),): given[name] for name in constants}
    aligned = {
        (at,): [["tt.divisibility", _ALIGNED_BYTES]]
        for at, name in enumerate(names)
        if name not in constants and _is_aligned(given[name])
    }
    source = ASTSource(kernel, types, values, aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=dict(options))


def _type(name: str, value: Any) -> str:
    """Return Triton's type of an argument."""
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64" if value < 2**63 else "u64"
    if isinstance(value, float):
        return "fp32"
    is_descriptor = _is_descriptor(value)
    view = _arrays.view(value.base if is_descriptor else value, argument=name)
    element = _TYPES.get(view.element.name)
    if element is None:
        raise ArgumentError.broken(
            name,
            f"an array of {view.element}",
            "Triton has no type for its elements",
            "Convert the array",
        )
    block = ", ".join(map(str, value.block_shape)) if is_descriptor else ""
    return f"tensordesc<{element}[{block}]>" if is_descriptor else f"*{element}"


def _is_descriptor(value: Any) -> bool:
    return hasattr(value, "block_shape") and hasattr(value, "base")


def _is_aligned(value: Any) -> bool:
    if isinstance(value, int):
        return value % _ALIGNED_BYTES == 0 and not isinstance(value, bool)
    if isinstance(value, float) or _is_descriptor(value):
        return False
    return _arrays.view(value).address % _ALIGNED_BYTES == 0


def launch(compiled: Any, grid: Sequence[int], *args: Any) -> None:
    """Launch a kernel that Triton has compiled, on arrays in host memory.

    Args:
        compiled: The result of ``triton.compile``: its PTX and its metadata.
        grid: Programs along x, y and z.
        args: The arguments that are no ``tl.constexpr``.

    Raises:
        ArgumentError: A tensor descriptor has a form that is not supported.
        EmulatedError: As for each launch of a `Kernel`.
    """
    text, facts = compiled.asm["ptx"], compiled.metadata
    found = _BLOCK.search(text)  # more than num_warps asks for in a warp-specialised kernel
    threads = int(found[1]) if found else 32 * facts.num_warps
    sides = (*grid, 1, 1)[:3]
    blocks = (sides[0] * facts.num_ctas, *sides[1:])
    metas = iter(facts.tensordesc_meta or ())
    expanded = [one for arg in args for one in _expanded(arg, metas)]
    programs = int(np.prod(blocks))
    scratch = [
        _scratch(programs * facts.global_scratch_size, facts.global_scratch_align),
        _scratch(programs * facts.profile_scratch_size, facts.profile_scratch_align),
    ]
    _kernel(text, facts.name)(blocks, threads, (*expanded, *scratch), shared_mem=facts.shared)


@functools.lru_cache(maxsize=256)
def _kernel(text: str, name: str) -> Kernel:
    return Kernel(text, name)


def _scratch(size_bytes: int, alignment: int) -> Any:
    """Return memory of a launch, or a null pointer."""
    if not size_bytes:
        return 0
    memory = np.zeros(size_bytes + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + size_bytes]


def _expanded(arg: Any, metas: Iterator[Any]) -> Iterator[Any]:
    """Yield the parameters of an argument: of a descriptor the map, its sizes and its strides."""
    if not _is_descriptor(arg):
        yield arg
        return
    view, meta = _arrays.view(arg.base), next(metas)
    is_other = meta["fp4_padded"] or meta["is_im2col"]
    if is_other or tuple(getattr(arg, "shape", view.shape)) != view.shape:
        rule = "it is of a whole array in tiles, neither im2col nor of packed fp4"
        raise ArgumentError.broken("args", shown(arg), rule, "Describe the whole array")
    fill: Any = getattr(arg, "padding", "zero")
    swizzle: Any = _SWIZZLES[meta["swizzle"]]
    box = meta["block_size"]
    yield create_tma_tile(arg.base, box, box_shape=box, swizzle=swizzle, oob_fill=fill)
    yield from view.shape
    yield from (stride // view.element.itemsize for stride in view.strides_bytes)
