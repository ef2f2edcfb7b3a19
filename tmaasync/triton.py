"""Run Triton kernels on the CPU emulator: Triton compiles them, without a GPU, and a `Kernel` runs.

Triton's own arguments of a launch are made here: pointers of scratch memory, and a tensor map with
sizes and strides for each tensor descriptor. They change with Triton's releases; written for 3.9.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import re
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tmaasync import _arrays, _torch_cuda
from tmaasync._arrays import ArrayView
from tmaasync._kinds import shown
from tmaasync._patches import Patches
from tmaasync._tested_versions import check_version
from tmaasync._tile.pointer import PackedArgument
from tmaasync.emulate import LIMITS
from tmaasync.errors import ArgumentError
from tmaasync.kernel import Kernel
from tmaasync.modes import DataType
from tmaasync.tensormap import Im2colSpec, TensorMapSpec

__all__ = ["TensorDescriptor", "launch", "on_cpu", "run"]

_SWIZZLES = ("none", "32B", "64B", "128B")
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
        ArgumentError: The kernel is none of Triton's.
        TypeError: As Triton raises it, for a missing argument.
        EmulatedRace, EmulatedFault, EmulatedDeadlock, EmulatedTimeout: As for each `Kernel`.
    """
    if not hasattr(kernel, "arg_names"):
        raise ArgumentError.broken(
            "kernel", shown(kernel), "it has no @triton.jit", "Pass the function below @triton.jit"
        )
    with on_cpu():
        kernel[grid](*args, **named)


# --- launches of unchanged code -----------------------------------------------------------------

_DEVICE = "tmaasync"  # what Triton caches these kernels under


@contextlib.contextmanager
def on_cpu(*, config: int = 0) -> Iterator[None]:
    """Run the launches of Triton kernels inside the ``with`` on this machine's CPU.

    ``kernel[grid](...)`` then takes NumPy arrays and CPU tensors of torch, Triton's driver
    describes the emulated device, and torch's device ``cuda`` means the CPU. It applies to this
    thread or context alone.

    Args:
        config: Number of the config that each ``@triton.autotune`` takes, counted after its
            ``early_config_prune``. Nothing is timed.

    Raises:
        ImportError: Triton is not installed.
        ArgumentError: A launched kernel has no config of that number.
    """
    with _PATCHES.applied(config), _torch_cuda.redirected():
        yield


def _patch(patches: Patches) -> None:
    check_version("triton", "3.9", __name__)
    from triton.compiler import CompiledKernel
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.driver import DriverConfig
    from triton.runtime.jit import JITFunction

    driver = DriverConfig.active
    active = property(lambda self: driver.fget(self) if patches.value is None else _driver())
    patches.set(DriverConfig, "active", active)
    patches.replace(JITFunction, "run", _run)
    patches.replace(Autotuner, "run", _run_config)
    patches.replace(CompiledKernel, "__getitem__", _launcher)
    patches.replace(CompiledKernel, "_init_handles", _read_usage)
    _torch_cuda.patch(patches, LIMITS)


_PATCHES = Patches("triton", _patch)  # with the number of the config


def _run(
    theirs: Callable[..., Any], kernel: Any, *args: Any, grid: Grid, warmup: bool, **named: Any
) -> Any:
    """Let Triton compile a kernel, and launch it."""
    args = tuple(map(_pointed, args))
    named = {name: _pointed(value) for name, value in named.items()}
    compiled = theirs(kernel, *args, grid=grid, warmup=True, **named)
    if warmup:
        return compiled
    *_, bind = kernel.device_caches[_DEVICE]
    bound = bind(*args, **named)[0]
    given = {name: _array(value) for name, value in bound.items()}
    sides = grid(given) if callable(grid) else grid
    types = compiled.src.signature.values()
    launch(compiled, sides, *_without_constants(types, bound.values()))
    return compiled


def _launcher(theirs: Callable[..., Any], compiled: Any, grid: Sequence[int]) -> Any:
    """Return what launches a compiled kernel on all arguments of its source."""
    del theirs  # of a GPU

    def launcher(*args: Any, stream: Any = None) -> None:
        types = compiled.src.signature.values()
        launch(compiled, grid, *_without_constants(types, map(_pointed, args)))

    return launcher


def _read_usage(theirs: Callable[..., Any], compiled: Any) -> None:
    """Set what a driver says of a loaded kernel, from the machine code that Triton assembled."""
    del theirs  # of a GPU
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = (knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name)
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    used = re.search(rf"Function {re.escape(compiled.name)}:\s+REG:(\d+) STACK:(\d+)", text)
    if used is None:
        raise RuntimeError(f"cuobjdump of Triton prints no registers of {compiled.name}: {text}")
    compiled.n_regs, compiled.n_spills = int(used[1]), int(used[2]) // 4
    compiled.n_max_threads = _threads(compiled)


def _run_config(theirs: Callable[..., Any], tuner: Any, *args: Any, **named: Any) -> Any:
    """Launch one config of an autotuned kernel, and leave nothing in the cache of timings."""
    configs, number = tuner.configs, _PATCHES.value
    if tuner.early_config_prune:
        given = dict(zip(tuner.arg_names, args, strict=False))
        configs = tuner.early_config_prune(configs, given, **named)
    if number not in range(len(configs)):
        rule = f"{tuner.base_fn.__name__} has {len(configs)} configs"
        raise ArgumentError.broken("config", number, rule, "Pass a number from 0 on")
    if len(configs) > 1:
        _reset(tuner, dict(zip(tuner.arg_names, args, strict=False)) | named)
    one = copy.copy(tuner)
    one.configs = [configs[number]]
    result = theirs(one, *args, **named)
    tuner.best_config = one.best_config
    return result


_TUNED = weakref.WeakKeyDictionary[Any, set[Any]]()


def _reset(tuner: Any, given: Mapping[str, Any]) -> None:
    """Zero what a tuner's timings would have changed: before the first launch for a key."""
    key = tuple(given.get(name) for name in tuner.keys)
    keys = _TUNED.setdefault(tuner, set())
    if key not in keys:
        keys.add(key)
        for name in tuner.reset_to_zero:
            array = _array(given[name])
            array.zero_() if hasattr(array, "zero_") else array.fill(0)


class _Pointer:
    """An array with the two attributes by which Triton takes it for a pointer."""

    def __init__(self, array: Any) -> None:
        self.array, self.dtype = array, array.dtype

    def data_ptr(self) -> int:
        return _arrays.view(self.array).address


def _pointed(value: Any) -> Any:
    """Return an argument in a form that Triton knows."""
    if isinstance(value, TensorDescriptor):
        from triton.tools.tensor_descriptor import TensorDescriptor as Described

        seen = _arrays.view(value.base)
        strides = [stride // seen.element.itemsize for stride in seen.strides_bytes]
        base = _pointed(value.base)
        return Described(base, list(seen.shape), strides, list(value.block_shape))
    if type(value) is tuple:
        return tuple(map(_pointed, value))
    is_array = hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__")
    if isinstance(value, np.generic):
        return value.item()
    return _Pointer(value) if is_array and not hasattr(value, "data_ptr") else value


def _without_constants(types: Iterable[Any], values: Iterable[Any]) -> Iterator[Any]:
    """Yield the arguments that a compiled kernel takes, also the items of tuples."""
    for kind, value in zip(types, values, strict=True):
        if isinstance(kind, tuple):
            yield from _without_constants(kind, value)
        elif kind != "constexpr":
            yield _in_bytes(kind, value)


def _in_bytes(kind: str, value: Any) -> Any:
    """Return a number of 16 bits as its bytes, because PTX has no parameters of these types."""
    element = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}.get(kind)
    return value if element is None else np.array(value, element).tobytes()


class _Driver(SimpleNamespace):
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{name}: inside on_cpu, Triton's driver has none, because no GPU runs. Leave out "
            "benchmarks and facts of binaries, or run them after the with."
        )


@functools.cache
def _driver() -> Any:
    """Return the driver that Triton finds inside `on_cpu`: the emulated device's."""

    def target() -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def torch_device() -> Any:
        return importlib.import_module("torch").device("cpu")

    properties = {
        "max_shared_mem": LIMITS.shared_bytes,
        "max_num_regs": LIMITS.registers_per_block,
        "multiprocessor_count": LIMITS.sms,
        "warpSize": 32,
    }
    return _Driver(
        get_current_target=target,
        get_current_device=lambda: _DEVICE,
        get_current_stream=lambda device: 0,
        get_active_torch_device=torch_device,
        utils=SimpleNamespace(get_device_properties=lambda device: properties),
    )


def launch(compiled: Any, grid: Sequence[int], *args: Any) -> None:
    """Launch a kernel that Triton has compiled, on arrays in host memory.

    Args:
        compiled: The result of ``triton.compile``: its PTX and its metadata.
        grid: Programs along x, y and z.
        args: The arguments that are no ``tl.constexpr``.

    Raises:
        ArgumentError: A tensor descriptor has a form that is not supported.
        EmulatedRace, EmulatedFault, EmulatedDeadlock, EmulatedTimeout: As for each `Kernel`.
    """
    text, facts = compiled.asm["ptx"], compiled.metadata
    sides = (*grid, 1, 1)[:3]
    blocks = (sides[0] * facts.num_ctas, *sides[1:])
    metas = iter(getattr(facts, "tensordesc_meta", None) or ())
    names = [*_names(compiled.src.signature)] if hasattr(compiled, "src") else []
    if len(names) != len(args):
        names = [f"args[{position}]" for position in range(len(args))]
    expanded = [one for pair in zip(names, args, strict=True) for one in _expanded(*pair, metas)]
    programs = int(np.prod(blocks))
    scratch = [
        _scratch(programs * facts.global_scratch_size, facts.global_scratch_align),
        _scratch(programs * facts.profile_scratch_size, facts.profile_scratch_align),
    ]
    given = (*expanded, *scratch)
    _kernel(text, facts.name)(blocks, _threads(compiled), given, shared_mem=facts.shared)


def _threads(compiled: Any) -> int:
    """Return the threads of a block: in a warp-specialised kernel more than num_warps asks for."""
    found = _BLOCK.search(compiled.asm["ptx"])
    return int(found[1]) if found else 32 * int(compiled.metadata.num_warps)


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


def _is_descriptor(value: Any) -> bool:
    return hasattr(value, "block_shape") and hasattr(value, "base")


def _array(value: Any) -> Any:
    """Return the array of a pointer; a tensor of torch without its gradient."""
    value = value.array if isinstance(value, _Pointer) else value
    if hasattr(value, "data_ptr") and hasattr(value, "base"):
        value = value.base  # of triton.reinterpret, an array of another type
    return value.detach() if getattr(value, "requires_grad", False) else value


def _names(signature: Mapping[Any, Any]) -> Iterator[str]:
    """Yield the names of the arguments that a compiled kernel takes, also of items of tuples."""
    for name, kind in signature.items():
        if isinstance(kind, tuple):
            yield from _names({f"{name}[{at}]": one for at, one in enumerate(kind)})
        elif kind != "constexpr":
            yield str(name)


def _expanded(name: str, arg: Any, metas: Iterator[Any]) -> Iterator[Any]:
    """Yield the parameters of an argument: of a descriptor the map, its sizes and its strides."""
    if not _is_descriptor(arg):
        array = _array(arg)
        is_array = hasattr(array, "__dlpack__") or hasattr(array, "__array_interface__")
        yield _address(name, _arrays.view(array)) if is_array else array
        return
    view, meta = _arrays.view(_array(arg.base)), next(metas, None)
    shape = tuple(getattr(arg, "shape", view.shape))
    own = (stride // view.element.itemsize for stride in view.strides_bytes)
    strides = tuple(getattr(arg, "strides", own))
    if meta is None:  # Triton reads and writes by addresses
        yield _address(name, view)
        yield from (*shape, *strides, arg.padding == "nan", arg.round_f32_to_tf32)
    else:
        yield PackedArgument(_map(arg, view, shape, strides, meta).encode(), [(name, view)])
    yield from shape
    yield from strides


def _address(name: str, view: ArrayView) -> PackedArgument:
    return PackedArgument(view.address.to_bytes(8, "little"), [(name, view)])


def _map(
    arg: Any, view: ArrayView, shape: tuple[int, ...], strides: tuple[int, ...], meta: Any
) -> TensorMapSpec | Im2colSpec:
    """Return the tensor map of a descriptor, as Triton's driver makes it."""
    if meta["fp4_padded"]:
        remedy = "Launch it on a GPU"
        raise ArgumentError.broken("args", shown(arg), "packed fp4 needs Blackwell", remedy)
    is_rounded = getattr(arg, "round_f32_to_tf32", False)
    data_type = DataType.TFLOAT32 if is_rounded else view.element.data_type
    strides_bytes = tuple(stride * view.element.itemsize for stride in strides[:-1])
    swizzle: Any = _SWIZZLES[meta["swizzle"]]
    fill: Any = getattr(arg, "padding", "zero")
    modes: Any = {"swizzle": swizzle, "l2_promotion": "128B", "oob_fill": fill}
    if not meta["is_im2col"]:
        box = meta["block_size"]
        return TensorMapSpec(view.address, data_type, shape, strides_bytes, box, **modes)
    pixels, channels = meta["block_size"]
    return Im2colSpec(
        view.address,
        data_type,
        shape,
        strides_bytes,
        arg.pixel_box_lower_corner,
        arg.pixel_box_upper_corner,
        channels,
        pixels,
        element_strides=arg.element_strides or (),
        **modes,
    )
