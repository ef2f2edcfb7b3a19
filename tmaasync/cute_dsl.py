"""Run CuTe DSL functions on the CPU emulator: CuTe DSL compiles them, without a GPU.

The code for the host that CuTe DSL has compiled runs unchanged. It makes tensor maps and
parameters, and calls functions of the CUDA runtime by name; here they are functions of Python, and
a launch is one of a `Kernel`. Written for CuTe DSL 4.8.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._kinds import shown
from tmaasync._patches import Patches
from tmaasync._source.program import entries_of
from tmaasync._tested_versions import check_version
from tmaasync._tile.pointer import PackedArgument
from tmaasync.emulate import LIMITS
from tmaasync.emulate.chips import SM_90A
from tmaasync.errors import ArgumentError, TensorMapError
from tmaasync.kernel import Kernel
from tmaasync.modes import DataType, Interleave, L2Promotion, OOBFill, Swizzle
from tmaasync.tensormap import TENSOR_MAP_BYTES, Im2colSpec, TensorMapSpec
from tmaasync.tensormap.encoding import decode, encode

__all__ = ["on_cpu", "run"]


def run(function: Any, *args: Any, **named: Any) -> None:
    """Call a function with ``@cute.jit``, or a result of ``cute.compile``, on the CPU.

    Args:
        function: The function, which launches kernels.
        args: Its arguments. An array of NumPy or a CPU tensor of torch stands for
            ``from_dlpack(array, assumed_align=16)``.
        named: More arguments by name.

    Raises:
        ArgumentError: The function is none of CuTe DSL's, or calls something that the CPU lacks.
        EmulatedRace, EmulatedFault, EmulatedDeadlock, EmulatedTimeout: As for each `Kernel`.
    """
    if not (hasattr(function, "__wrapped__") or hasattr(function, "execution_args")):
        rule = "it has no @cute.jit, and cute.compile has not made it"
        remedy = "Pass the function below @cute.jit, or what cute.compile returned"
        raise ArgumentError.broken("function", shown(function), rule, remedy)
    with on_cpu():
        function(*map(_wrapped, args), **{name: _wrapped(one) for name, one in named.items()})


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Run the launches of CuTe DSL inside the ``with`` on this machine's CPU.

    Functions with ``@cute.jit`` are compiled for sm_90a with line tables, and ``from_dlpack`` takes
    arrays in host memory for global memory. It applies to this thread or context alone, but for the
    architecture and the compiled code that CuTe DSL keeps.

    Raises:
        ImportError: CuTe DSL is not installed.

    Warns:
        UserWarning: It is another release than this module was tested with.
    """
    with _PATCHES.applied():
        yield


def _patch(patches: Patches) -> None:
    check_version("nvidia-cutlass-dsl", "4.8", __name__)
    _patch_classes(patches)
    _patch_compiler(patches)


_PATCHES = Patches("cute_dsl", _patch)


def _patch_classes(patches: Patches) -> None:
    from cutlass.base_dsl.jit_executor import JitCompiledFunction
    from cutlass.cute.runtime import _Tensor
    from cutlass.utils import HardwareInfo

    replace = patches.replace
    replace(JitCompiledFunction, "__call__", _call)
    replace(JitCompiledFunction, "run_compiled_program", _run_compiled)
    replace(_Tensor, "__init__", _make_tensor)
    replace(HardwareInfo, "__init__", lambda *args: None)
    replace(
        HardwareInfo,
        "get_max_active_clusters",
        lambda _, info, size: SM_90A.max_active_clusters(size),
    )
    replace(HardwareInfo, "get_device_multiprocessor_count", lambda *args: LIMITS.sms)


def _patch_compiler(patches: Patches) -> None:
    """Let CuTe DSL compile for sm_90a, with line tables, and keep the PTX."""
    from cutlass.cutlass_dsl import CuTeDSL

    dsl = CuTeDSL._get_dsl()
    folder = patches.undo.enter_context(tempfile.TemporaryDirectory(prefix="tmaasync-cute-dsl-"))
    settings = {
        "_arch": "sm_90a",
        "keep_ptx": True,
        "lineinfo": True,
        "dump_dir": folder,
    }
    for name, value in settings.items():
        patches.set(dsl.envar, name, value)
    warn = dsl.print_warning  # a method; the PTX that is kept turns the cache off, with a warning
    patches.set(
        dsl,
        "print_warning",
        lambda text: None if text.startswith("Cache is disabled") else warn(text),
    )


# --- arrays ------------------------------------------------------------------------------------

_HOST, _GPU = 1, 2  # DLDeviceType of DLPack
_TENSORS: weakref.WeakSet[Any] = weakref.WeakSet()


def _wrapped(value: Any) -> Any:
    """Return CuTe DSL's tensor for an array, and other arguments as they are."""
    if hasattr(value, "__c_pointers__") or not hasattr(value, "__dlpack__"):
        return value
    from cutlass.cute.runtime import from_dlpack

    return from_dlpack(_detached(value), assumed_align=16)


def _detached(array: Any) -> Any:
    return array.detach() if getattr(array, "requires_grad", False) else array


def _make_tensor(theirs: Any, tensor: Any, array: Any, *args: Any, **named: Any) -> None:
    """Make a tensor in global memory from an array in host memory."""
    theirs(tensor, array, *args, **named)
    python = ctypes.pythonapi
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    python.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    try:
        address = python.PyCapsule_GetPointer(tensor._dlpack_data, b"dltensor")
    except (TypeError, ValueError):  # no capsule, or one of an array on a GPU
        return
    device = ctypes.c_int32.from_address(address + ctypes.sizeof(ctypes.c_void_p))
    if device.value == _HOST:
        device.value = _GPU
        tensor._tmaasync_view = _arrays.view(array)
        _TENSORS.add(tensor)


def _arrays_of(function: Any, pointers: Sequence[int]) -> list[tuple[str, ArrayView]]:
    """Return the arrays of a call by name: each argument's first word is its address."""
    views = {one._tmaasync_view.address: one._tmaasync_view for one in _TENSORS}
    names = list(function.execution_args.signature.parameters)
    if len(names) != len(pointers):
        names = [f"args[{position}]" for position in range(len(pointers))]
    first = [ctypes.c_uint64.from_address(pointer).value for pointer in pointers]
    named = {
        views[word].address: name for word, name in zip(first, names, strict=True) if word in views
    }
    return [(named.get(address, "an array"), view) for address, view in views.items()]


# --- calls of compiled functions ----------------------------------------------------------------


def _call(theirs: Callable[..., Any], function: Any, *args: Any, **named: Any) -> Any:
    """Let CuTe DSL check and pack the arguments, past what a GPU has run."""
    executor, function._default_executor = function._default_executor, None
    try:
        return theirs(function, *args, **named)
    finally:
        function._default_executor = executor


def _run_compiled(theirs: Callable[..., Any], function: Any, packed: Sequence[Any]) -> None:
    del theirs
    pointers = [int(getattr(one, "value", one)) for one in packed]
    host = _HOSTS.get(function)
    if host is None:
        host = _HOSTS[function] = _Host(function)
    host.call(pointers, _arrays_of(function, pointers))


_HOSTS: weakref.WeakKeyDictionary[Any, _Host] = weakref.WeakKeyDictionary()
_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
_NOT_SUPPORTED = 801  # cudaErrorNotSupported
_CLUSTER, _COOPERATIVE, _PDL = 4, 2, 6  # cudaLaunchAttributeID


class _Config(ctypes.Structure):
    """The extents and attributes of a launch, ``cudaLaunchConfig_t``."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint64),
        ("stream", _POINTER),
        ("attributes", _POINTER),
        ("attribute_count", ctypes.c_uint32),
    )


class _Attribute(ctypes.Structure):
    """One ``cudaLaunchAttribute``."""

    _fields_ = (("kind", _INT), ("padding", _INT), ("values", ctypes.c_uint32 * 16))


_Extents = tuple[Sequence[int], Sequence[int]]


class _Entry(NamedTuple):
    kernel: Kernel
    sizes: Sequence[int]  # bytes of its parameters


class _Host:
    """The code for the host of one compiled function, with the CUDA runtime replaced."""

    def __init__(self, function: Any) -> None:
        text = getattr(function, "__ptx__", None)
        if text is None or getattr(function, "ir_module", None) is None:
            rule = "CuTe DSL has kept no PTX of it, or compiled it for TVM FFI"
            remedy = "Call cute.compile inside tmaasync.cute_dsl.on_cpu(), without --enable-tvm-ffi"
            raise ArgumentError.broken("function", function.function_name, rule, remedy)
        self._name = function.function_name
        self._entries = _entries(text)
        self._arrays: Sequence[tuple[str, ArrayView]] = ()
        self._error: BaseException | None = None
        self._handles: list[str] = []
        self._functions = [*self._runtime(function.ir_module)]
        from cutlass._mlir.execution_engine import ExecutionEngine

        self._engine = ExecutionEngine(function.ir_module, opt_level=2, shared_libs=[])
        for name, one in self._functions:
            self._engine.raw_register_runtime(name, ctypes.cast(one, _POINTER))
        self._load()

    def call(self, pointers: Sequence[int], arrays: Sequence[tuple[str, ArrayView]]) -> None:
        """Run the code for the host on packed arguments."""
        self._arrays = arrays
        self._invoke(f"_mlir_ciface_{self._name}", pointers)

    def _load(self) -> None:
        """Let the code ask for its kernels, as it does once on each device."""
        library, device = ctypes.c_void_p(1), ctypes.c_int32(0)
        holder = ctypes.pointer(library)
        addresses = [ctypes.addressof(one) for one in (holder, device)]
        self._invoke("cuda_load_to_device", addresses)

    def _invoke(self, symbol: str, pointers: Sequence[int]) -> None:
        result, self._error = ctypes.c_int32(0), None
        packed = (_POINTER * (len(pointers) + 1))(*pointers, ctypes.addressof(result))
        ctypes.CFUNCTYPE(None, _POINTER)(self._engine.raw_lookup(symbol))(packed)
        error, self._error = self._error, None
        if error is not None:
            raise error
        if result.value:
            rule = f"its code for the host ended with CUDA's error {result.value}"
            raise ArgumentError.broken("function", self._name, rule, "Pass arrays that it takes")

    # --- the CUDA runtime ---------------------------------------------------------------------

    def _runtime(self, module: Any) -> Iterator[tuple[str, Any]]:
        """Yield the functions that the code calls, by name."""
        known: dict[str, tuple[Callable[..., None], Sequence[Any]]] = {
            "_cudaLibraryGetKernel": (self._get_kernel, (_POINTER,) * 3),
            "_cudaLaunchKernelEx": (self._launch, (_POINTER,) * 3),
            "_cudaLaunchKernel": (self._launch_plain, (_POINTER, *(_INT,) * 6, _POINTER, _LONG)),
            "_cuTensorMapEncodeTiled": (
                _encode,
                (_POINTER, *(_INT,) * 2, *(_POINTER,) * 5, *(_INT,) * 4),
            ),
            "_cudaDeviceGetAttribute": (_device_attribute, (_POINTER, _INT)),
            "_cudaGetDevice": (_zero, (_POINTER,)),
            "_cuKernelGetAttribute": (_zero, (_POINTER,)),
            "_cudaKernelSetAttributeForDevice": (_nothing, ()),
            "_cudaFuncSetAttribute": (_nothing, ()),
        }
        for name in re.findall(r"llvm\.func @(_cu\w+)\([^\n{]*\n", _declarations(module)):
            function, kinds = known.get(name, (functools.partial(self._refuse, name), ()))
            yield name, ctypes.CFUNCTYPE(_INT, *kinds)(self._guarded(function))

    def _guarded(self, function: Callable[..., None]) -> Callable[..., int]:
        """Return a function that keeps its exception for the end of the call."""

        def guarded(*args: Any) -> int:
            try:
                function(*args)
            except BaseException as error:  # Ctrl-C too, which must not end inside foreign code
                self._error = self._error or error
                return _NOT_SUPPORTED
            return 0

        return guarded

    def _refuse(self, name: str) -> None:
        rule = f"its code for the host calls {name.removeprefix('_')}, which the CPU lacks"
        remedy = "Call it outside of the function, or launch the PTX with tmaasync.Kernel"
        raise ArgumentError.broken("function", self._name, rule, remedy)

    def _get_kernel(self, result: int, library: int, name: int) -> None:
        del library
        self._handles.append(ctypes.string_at(name).decode())
        _POINTER.from_address(result).value = len(self._handles)

    def _launch(self, address: int, handle: int, parameters: int) -> None:
        config = _Config.from_address(address)
        attributes = (_Attribute * config.attribute_count).from_address(config.attributes or 0)
        values = {one.kind: one.values for one in attributes}
        given = tuple(values[_CLUSTER][:3]) if _CLUSTER in values else (1, 1, 1)
        self._start(
            handle,
            parameters,
            (tuple(config.grid), tuple(config.block)),
            shared_mem=config.shared_bytes,
            cluster=None if given == (1, 1, 1) else given,
            pdl=bool(_PDL in values and values[_PDL][0]),
            cooperative=bool(_COOPERATIVE in values and values[_COOPERATIVE][0]),
        )

    def _launch_plain(self, handle: int, *given: Any) -> None:
        *sides, parameters, shared_bytes = given
        extents = (tuple(sides[:3]), tuple(sides[3:]))
        self._start(handle, parameters, extents, shared_mem=shared_bytes)

    def _start(self, handle: int, parameters: int, extents: _Extents, **options: Any) -> None:
        entry = self._entries[self._handles[handle - 1]]
        addresses = (_POINTER * len(entry.sizes)).from_address(parameters)
        packed = (ctypes.string_at(*one) for one in zip(addresses, entry.sizes, strict=True))
        given = [PackedArgument(_completed(one), self._within(one)) for one in packed]
        grid, block = extents
        entry.kernel(grid, block, given, **options)

    def _within(self, data: bytes) -> list[tuple[str, ArrayView]]:
        """Return the arrays whose addresses are words of a parameter."""
        words = memoryview(data[: len(data) // 8 * 8]).cast("Q")
        return [
            (name, view)
            for name, view in self._arrays
            if any(low <= word < high for low, high in (view.byte_bounds,) for word in words)
        ]


def _declarations(module: Any) -> str:
    """Return the start of a module's text, which declares the functions of the runtime."""
    return str(module).split("kernels_binary", 1)[0]


_TYPES = re.compile(r"_(?:tensorptr|TiledM|CopyAtom|Thr|ptr|object_at|\d+$).*")


def _entries(text: str) -> dict[str, _Entry]:
    """Return the kernels of a module by their names there; reports use short names."""
    entries = entries_of(text, "", "", "")
    short = {name: _TYPES.sub("", name).removeprefix("kernel_cutlass_") for name in entries}
    found = {}
    for name, entry in entries.items():
        is_unique = [*short.values()].count(short[name]) == 1 and short[name].isidentifier()
        own = short[name] if is_unique else name
        sizes = [one.size_bytes for one in entry.parameters]
        found[name] = _Entry(Kernel(text.replace(name, own), own), sizes)
    return found


def _encode(  # noqa: PLR0913 - the driver's signature
    result: int,
    dtype: int,
    rank: int,
    address: int,
    sides: int,
    strides: int,
    box: int,
    element_strides: int,
    *modes: int,
) -> None:
    """Write a tensor map, as ``cuTensorMapEncodeTiled`` does."""

    def outermost_first(kind: Any, count: int, at: int) -> tuple[int, ...]:
        return tuple((kind * count).from_address(at))[::-1] if count else ()

    interleave, swizzle, promotion, fill = modes
    spec = TensorMapSpec(
        address,
        DataType(dtype),
        outermost_first(ctypes.c_uint64, rank, sides),
        outermost_first(ctypes.c_uint64, rank - 1, strides),
        outermost_first(ctypes.c_uint32, rank, box),
        element_strides=outermost_first(ctypes.c_uint32, rank, element_strides),
        interleave=Interleave(interleave),
        swizzle=Swizzle(swizzle),
        l2_promotion=L2Promotion(promotion),
        oob_fill=OOBFill(fill),
    )
    ctypes.memmove(result, spec.encode(), 128)


_MAP_VERSION = 1 << 65  # a bit that CuTe DSL sets, and the driver does not


def _completed(data: bytes) -> bytes:
    """Return a parameter; of a tensor map CuTe DSL writes 64 bytes, and the rest is undefined."""
    if len(data) != TENSOR_MAP_BYTES:
        return data
    bits = int.from_bytes(data[: TENSOR_MAP_BYTES // 2], "little") & ~_MAP_VERSION
    try:
        fields = decode(bits.to_bytes(TENSOR_MAP_BYTES, "little"))
    except TensorMapError:
        return data
    return encode(Im2colSpec(**fields[1]) if fields[0] else TensorMapSpec(**fields[1]))


_ATTRIBUTES = {16: LIMITS.sms, 97: LIMITS.shared_bytes}  # cudaDeviceAttr


def _device_attribute(result: int, attribute: int) -> None:
    if attribute not in _ATTRIBUTES:
        rule = f"its code for the host asks for cudaDeviceAttr {attribute}, which the CPU lacks"
        raise ArgumentError.broken("function", "it", rule, "Pass the number as an argument")
    _INT.from_address(result).value = _ATTRIBUTES[attribute]


def _zero(result: int) -> None:
    _INT.from_address(result).value = 0


def _nothing() -> None:
    pass
