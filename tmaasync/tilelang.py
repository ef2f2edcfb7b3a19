"""Run tilelang functions on the CPU emulator: tilelang writes CUDA C++, which a `Kernel` runs.

tilelang's own host code would make the tensor maps and the launch; its lowered functions say how.
Reports name lines of the generated C++. Written for tilelang 0.1.15.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tmaasync import _arrays, _torch_cuda
from tmaasync._kinds import shown
from tmaasync._patches import Patches
from tmaasync._tested_versions import check_version
from tmaasync._tile.pointer import PackedArgument
from tmaasync.emulate import LIMITS
from tmaasync.errors import ArgumentError
from tmaasync.kernel import Kernel
from tmaasync.modes import DataType, Interleave, L2Promotion, OOBFill, Swizzle
from tmaasync.tensormap import TensorMapSpec

__all__ = ["on_cpu", "run", "source"]

_SIDES = ("blockIdx.x", "blockIdx.y", "blockIdx.z"), ("threadIdx.x", "threadIdx.y", "threadIdx.z")


def run(function: Any, *args: Any) -> None:
    """Lower a tilelang function for sm_90a, and launch its kernel on arrays in host memory.

    Args:
        function: A ``T.prim_func`` with one ``T.Kernel``.
        args: Its arguments: arrays in row-major order, and numbers.

    Raises:
        ArgumentError: The function is none of tilelang's, has several kernels, or the arguments
            are not as many as its parameters.
        EmulatedRace, EmulatedFault, EmulatedDeadlock, EmulatedTimeout: As for each `Kernel`.
    """
    check_version("tilelang", "0.1.15", __name__)
    _start(function, _lowered(function), args)


def _start(function: Any, lowered: _Lowered, args: Sequence[Any]) -> None:
    names = [one.name for one in function.params]
    if len(names) != len(args):
        rule = f"{lowered.kernel.name} takes {len(names)}"
        raise ArgumentError.broken("args", f"{len(args)} arguments", rule, "Pass one for each")
    call = _Call(lowered, dict(_named(function, args)), _symbols(function, args))
    grid, block = (tuple(call.number(lowered.extents[one]) for one in sides) for sides in _SIDES)
    given = [call.parameter(one) for one in lowered.parameters]
    lowered.kernel(grid, block, given, shared_mem=lowered.shared_bytes)


def source(function: Any) -> str:
    """Return the CUDA C++ of a tilelang function, whose lines reports name.

    Raises:
        ArgumentError: As in `run`.
    """
    return _lowered(function).text


# --- launches of unchanged code -----------------------------------------------------------------


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Let tilelang compile for the emulator inside the ``with``.

    ``@tilelang.jit`` and ``tilelang.compile`` compile for sm_90a, and what they return takes CPU
    tensors of torch; the device ``cuda`` of torch is the CPU. A kernel that was compiled inside
    runs on the CPU afterwards too. It applies to this thread or context alone.

    Raises:
        ImportError: tilelang is not installed.

    Warns:
        UserWarning: It is another release than this module was tested with.
    """
    with _PATCHES.applied(), _torch_cuda.redirected():
        yield


def _patch(patches: Patches) -> None:
    check_version("tilelang", "0.1.15", __name__)
    patches.replace(importlib.import_module("tilelang.jit"), "cached", _compile)
    _torch_cuda.patch(patches, LIMITS)


_PATCHES = Patches("tilelang", _patch)


def _compile(
    theirs: Callable[..., Any],
    func: Any,
    out_idx: int | Sequence[int] | None = None,
    *,
    pass_configs: Mapping[Any, Any] | None = None,
    **named: Any,
) -> _Compiled:
    del theirs, named  # the target, the host's code and flags of nvcc
    return _Compiled(func, out_idx, pass_configs or {})


class _Compiled:
    """What ``tilelang.compile`` returns, for the emulator."""

    def __init__(
        self, function: Any, results: int | Sequence[int] | None, configs: Mapping[Any, Any]
    ) -> None:
        count = len(function.params)
        numbers = [results] if isinstance(results, int) else results or ()
        self.prim_func = function
        settings = ((key, _hashable(value)) for key, value in configs.items())
        self._lowered = _lowered(function, tuple(settings))
        self._results = [number % count for number in numbers]

    def __call__(self, *args: Any) -> Any:
        """Launch the kernel; return the tensors that ``out_idx`` names."""
        count, given = len(self.prim_func.params), iter(args)
        if len(args) != count - len(self._results):
            rule = f"{self._lowered.kernel.name} takes {count - len(self._results)}"
            raise ArgumentError.broken(
                "args", f"{len(args)} arguments", rule, "Pass one for each but the results"
            )
        values = [None if at in self._results else next(given) for at in range(count)]
        call = _Call(self._lowered, {}, _symbols(self.prim_func, values))
        for at in self._results:
            values[at] = _tensor(self.prim_func.buffer_map[self.prim_func.params[at]], call)
        _start(self.prim_func, self._lowered, values)
        results = [values[at] for at in self._results]
        return results[0] if len(results) == 1 else results or None

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """Return the CUDA C++."""
        del kernel_only  # there is no other code
        return self._lowered.text

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{name}: inside on_cpu, a kernel of tilelang has none, because no GPU runs. Leave out "
            "benchmarks, or run them after the with."
        )


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _tensor(buffer: Any, call: _Call) -> Any:
    """Return a new tensor for a result."""
    torch = importlib.import_module("torch")
    dtype = importlib.import_module("tilelang.engine.param").KernelParam.from_buffer(buffer)
    return torch.empty([call.number(one) for one in buffer.shape], dtype=dtype.torch_dtype())


class _Lowered(NamedTuple):
    kernel: Kernel
    text: str
    parameters: Sequence[Any]  # variables
    extents: Mapping[str, Any]
    maps: Mapping[str, Sequence[Any]]  # the arguments of cuTensorMapEncodeTiled, by name
    shared_bytes: int


@functools.lru_cache(maxsize=256)
def _lowered(function: Any, configs: tuple[tuple[Any, Any], ...] = ()) -> _Lowered:
    if not hasattr(function, "buffer_map"):
        rule, remedy = "it is no T.prim_func", "Pass what @T.prim_func made"
        raise ArgumentError.broken("function", shown(function), rule, remedy)
    import tilelang

    target = tilelang.tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    settings = importlib.import_module("tilelang.transform.pass_config").normalize_pass_configs
    with tilelang.tvm.transform.PassContext(opt_level=3, config=settings(dict(configs))), target:
        found = tilelang.lower(
            function, target=target, enable_host_codegen=False, enable_device_compile=False
        )
    kernels = [*found.device_mod.functions.items()]
    if len(kernels) != 1:
        rule = f"it has {len(kernels)} kernels"
        raise ArgumentError.broken("function", shown(function), rule, "Pass each by itself")
    ((name, device),) = kernels
    (host,) = found.host_mod.functions.values()
    root = Path(tilelang.__file__).parent
    folders = (root / "src", root / "3rdparty/cutlass/include")
    text = f"#include <cuda.h>\n{found.kernel_source}"
    extents = dict.fromkeys((*_SIDES[0], *_SIDES[1]), 1)
    maps = host.attrs.get("tma_descriptor_args", {})
    return _Lowered(
        Kernel(text, name.name_hint, include_dirs=folders),
        text,
        device.params,
        {**extents, **dict(device.attrs["thread_extent"])},
        {key.name: [*value] for key, value in maps.items()},
        int(device.attrs.get("dyn_shared_memory_buf", 0)),
    )


# --- arguments ----------------------------------------------------------------------------------


def _named(function: Any, args: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for parameter, value in zip(function.params, args, strict=True):
        buffer = function.buffer_map.get(parameter)
        yield (parameter.name if buffer is None else buffer.data.name), value


def _symbols(function: Any, args: Sequence[Any]) -> dict[Any, int]:
    """Return the values of the sizes that the arrays have at run time."""
    pairs = [*zip(function.params, args, strict=True)]
    buffers = [(function.buffer_map.get(one), value) for one, value in pairs]
    sides = [
        each
        for buffer, value in buffers
        if buffer is not None and value is not None
        for each in zip(buffer.shape, value.shape, strict=True)
    ]
    numbers = [pair for pair in pairs if function.buffer_map.get(pair[0]) is None]
    known = (pair for pair in (*numbers, *sides) if pair[1] is not None)
    return {one: value for one, value in known if hasattr(one, "name")}


class _Call:
    """The parameters of one launch."""

    def __init__(
        self, lowered: _Lowered, values: Mapping[str, Any], symbols: Mapping[Any, int]
    ) -> None:
        self._maps = lowered.maps
        self._values = values
        self._symbols = {one.name: value for one, value in symbols.items()}

    def number(self, expression: Any) -> int:
        """Return the value of a size."""
        if isinstance(expression, int):
            return expression
        from tilelang import tvm

        found: list[Any] = []
        visit = lambda one: found.append(one) if isinstance(one, tvm.tirx.Var) else None  # noqa: E731
        tvm.tirx.stmt_functor.post_order_visit(expression, visit)
        known = {one: tvm.tirx.const(self._symbols[one.name], one.dtype) for one in found}
        value = tvm.tirx.stmt_functor.substitute(expression, known)
        return int(tvm.arith.Analyzer().simplify(value))

    def parameter(self, variable: Any) -> Any:
        """Return the argument for a parameter of the kernel."""
        name = variable.name
        if name in self._maps:
            return self._map(self._maps[name])
        value = self._values.get(name, self._symbols.get(name))
        return value.detach() if getattr(value, "requires_grad", False) else value

    def _map(self, given: Sequence[Any]) -> PackedArgument:
        """Return a tensor map, from the arguments of ``cuTensorMapEncodeTiled``."""
        dtype, rank = (int(one) for one in given[2:4])
        array = self._values[given[4].name]
        view = _arrays.view(array)
        numbers = [self.number(one) for one in given[5:]]
        sides, strides, box, steps = (
            tuple(numbers[rank * at : rank * (at + 1)][::-1]) for at in range(4)
        )
        interleave, swizzle, promotion, fill = numbers[4 * rank : 4 * rank + 4]
        spec = TensorMapSpec(
            view.address,
            DataType(dtype),
            sides,
            strides[:-1],
            box,
            element_strides=steps,
            interleave=Interleave(interleave),
            swizzle=Swizzle(swizzle),
            l2_promotion=L2Promotion(promotion),
            oob_fill=OOBFill(fill),
        )
        return PackedArgument(spec.encode(), [(given[4].name, view)])
