"""A kernel: CUDA source and typed tiles in, a launch on the caller's arrays out."""

from __future__ import annotations

import math
import numbers
import operator
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tmaasync import _arrays, _driver, emulate
from tmaasync._arrays import ArrayView
from tmaasync._compile import Entry, Parameter, Program, Source, compile_source
from tmaasync._driver import LaunchConfig, PreparedLaunch
from tmaasync._elements import ELEMENTS, element
from tmaasync._sources import find_kernel
from tmaasync._streams import stream_of
from tmaasync.copy_plan import CopyPlan
from tmaasync.emulate import EmulatedLaunch, EmulatedProgram, Extent
from tmaasync.errors import ArgumentError, ArrayTypeError, BackendError, LaunchError
from tmaasync.ragged import RaggedMap
from tmaasync.tile import (
    BulkTile,
    StridedTensor,
    TMATensorTile,
    TMATensorTileArray,
    TMATensorTileIm2col,
    TMATensorTileTemplate,
)

__all__ = ["Kernel", "wait_for_producers"]

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")
_NEEDS_SM_90A = re.compile(
    r"wgmma|setmaxnreg|(?:claim|release)_registers|tensormap[._]replace|replace_tensormap"
    r"|edit_in_(?:shared_mem|gmem)"
)
_FASTER_ON_SM_90A = re.compile(r"[Mm]ulticast")  # by the assembler's own advice
_PORTABLE_CLUSTER = 8
_MAX_CLUSTER = 16
_STATIC_SHARED_BYTES = 48 * 1024

_Extent = int | Sequence[int]


class Kernel:
    """One ``extern "C" __global__`` function of a CUDA source.

    Args:
        source: The path of a ``.cu`` file, the bare name of a shipped one (``"copy.cu"``), or CUDA
            C++ text (anything with a line break).
        name: The function's name; by default the stem of the file.
        types: Names that the source leaves to the host, each with a tile (its `cuda_type`), an
            element type, or C++ text.
        constants: Names that the source leaves to the host, each with a bool, int or float.
        include_dirs: Folders with headers of your own. A file's own folder is searched anyhow.
        options: Further NVRTC options.
        arch: The architecture to compile for, such as ``"sm_90a"``. By default that of the arrays'
            device, with the ``a`` where the source uses wgmma, setmaxnreg or multicast, or edits
            tensor maps.

    The source sees ``#include <tmaasync/tmaasync.cuh>``. A parameter that is a tile is declared
    ``const __grid_constant__ Tile tile``. If the source defines
    ``extern "C" __device__ const int <name>_shared_bytes``, that much dynamic shared memory is
    given to every launch that does not ask otherwise.

    Compiling happens at the first launch, or by `compile`.
    """

    def __init__(
        self,
        source: str | Path,
        name: str | None = None,
        *,
        types: Mapping[str, object] | None = None,
        constants: Mapping[str, bool | int | float] | None = None,
        include_dirs: Iterable[str | Path] = (),
        options: Iterable[str] = (),
        arch: str | None = None,
    ) -> None:
        """Read the source; nothing is compiled yet."""
        text, label, folders = _read(source)
        self.name = name if name is not None else Path(label).stem
        self._source = Source(
            text=text,
            name=label,
            include_dirs=(*folders, *map(Path, include_dirs)),
            options=tuple(options),
            preamble=_preamble(types or {}, constants or {}),
        )
        self._arch = arch
        self._loaded: dict[int, _Loaded] = {}
        self._emulated: EmulatedProgram | None = None

    def __repr__(self) -> str:
        return f"<Kernel {self.name} of {self._source.name}>"

    def __call__(
        self,
        grid: _Extent,
        block: _Extent,
        args: Sequence[object],
        *,
        cluster: _Extent | None = None,
        shared_mem: int | None = None,
        pdl: bool = False,
        stream: object = None,
    ) -> None:
        """Launch. The parameters are those of CuPy's ``RawKernel``, plus what it lacks.

        Args:
            grid: Blocks along x, y, z; an int is x alone.
            block: Threads of a block along x, y, z.
            args: One per kernel parameter: tiles, device arrays (passed as pointers), numbers, and
                NumPy scalars or bytes for structs.
            cluster: Blocks of a cluster along x, y, z; the grid, counted in blocks, is a multiple.
            shared_mem: Dynamic shared memory in bytes; by default what the source says it needs.
            pdl: Programmatic dependent launch: start before the kernel ahead in the stream has
                ended. The kernel calls ``wait_for_previous_grids()`` before it reads its results.
            stream: A CuPy or torch stream, a handle, or anything with ``__cuda_stream__``; by
                default the current stream of the arrays' framework.

        Raises:
            LaunchError: The extents or arguments do not fit the kernel or the device.
            StaleTileError: The array behind a tile was freed or moved.
            BackendError: No driver, no device, or a device older than sm_90.
            CompileError: The source does not compile.
        """
        self.prepare(
            grid,
            block,
            args,
            cluster=cluster,
            shared_mem=shared_mem,
            pdl=pdl,
            stream=stream,
        )()

    def prepare(
        self,
        grid: _Extent,
        block: _Extent,
        args: Sequence[object],
        *,
        cluster: _Extent | None = None,
        shared_mem: int | None = None,
        pdl: bool = False,
        stream: object = None,
    ) -> PreparedLaunch | EmulatedLaunch:
        """Check and pack a launch; calling the result is one driver call.

        Takes and raises what a call does. The result keeps the arrays alive; it does not look again
        whether they were moved.
        """
        views = _views(args)
        placed = list(_placed(views))
        device = _common_device(placed)
        if device is None:
            return self._prepare_on_host(
                grid, block, args, views, cluster=cluster, shared_mem=shared_mem
            )
        limits = _driver.require_device(device)
        with _driver.on_device(device):
            loaded = self._load(device, limits.compute_capability)
            config = LaunchConfig(
                grid=_extents("grid", grid),
                block=_extents("block", block),
                cluster=None if cluster is None else _extents("cluster", cluster),
                shared_bytes=_shared_bytes(
                    loaded.entry.shared_bytes, shared_mem, limits.shared_bytes
                ),
                pdl=pdl,
                stream=stream_of([view.framework for view in placed], device, stream),
            )
            packed = _pack(self.name, loaded.entry.parameters, args, views)
            loaded.allow(config, limits.threads_per_block)
            wait_for_producers(placed, config.stream)
            return PreparedLaunch(loaded.function, config, packed, tuple(args))

    def _prepare_on_host(
        self,
        grid: _Extent,
        block: _Extent,
        args: Sequence[object],
        views: Sequence[_View],
        *,
        cluster: _Extent | None,
        shared_mem: int | None,
    ) -> EmulatedLaunch:
        """A launch on the CPU, where there are no streams and grids run one after the other."""
        if self._emulated is None:
            self._emulated = emulate.build(self._source, self.name)
        program, limits = self._emulated, emulate.LIMITS
        config = LaunchConfig(
            grid=_extents("grid", grid),
            block=_extents("block", block),
            cluster=None if cluster is None else _extents("cluster", cluster),
            shared_bytes=_shared_bytes(program.shared_bytes, shared_mem, limits.shared_bytes),
            pdl=False,
            stream=0,
        )
        _check_extents(config, limits.threads_per_block)
        packed = _pack(self.name, program.parameters, args, views)
        return EmulatedLaunch(program, config, packed, tuple(args), _extents_of(args, views))

    def compile(self, arch: str | None = None) -> Program:
        """Compile, or take the result from the cache. Needs no GPU.

        Args:
            arch: By default the kernel's own, else ``sm_90`` or ``sm_90a`` as the source needs.

        Raises:
            CompileError: The source does not compile, or has no function of this name.
            BackendError: There is no NVRTC.
        """
        return self._program(arch or self._arch or self._arch_for((9, 0)))

    # --- from source to function --------------------------------------------------------------

    def _arch_for(self, capability: tuple[int, int]) -> str:
        major, minor = capability
        special = _NEEDS_SM_90A.search(self._source.text)
        if special is None:
            is_faster = capability == (9, 0) and _FASTER_ON_SM_90A.search(self._source.whole_text)
            return f"sm_{major}{minor}{'a' if is_faster else ''}"
        if capability != (9, 0):
            raise BackendError(
                f"{self._source.name} uses {special.group()}, which only sm_90a has; this "
                f"device is sm_{major}{minor}. Run it on an H100 or H200."
            )
        return "sm_90a"

    def _program(self, arch: str) -> Program:
        program = compile_source(self._source, arch)
        if self.name not in program.entries:
            known = ", ".join(program.entries) or "none"
            raise ArgumentError(
                f'name is {self.name!r}; {self._source.name} has no extern "C" __global__ function '
                f"of that name. It has: {known}."
            )
        return program

    def _load(self, device: int, capability: tuple[int, int]) -> _Loaded:
        """The function on this device, whose context is current."""
        loaded = self._loaded.get(device)
        if loaded is None:
            program = self._program(self._arch or self._arch_for(capability))
            module = _cupy().RawModule(path=str(program.path))
            with _cupy().cuda.Device(device):
                function = int(module.get_function(self.name).kernel.ptr)
            loaded = _Loaded(program.entries[self.name], function, module)
            self._loaded[device] = loaded
        return loaded


class _Loaded:
    """A function on one device, and what it was already allowed to do."""

    __slots__ = ("_checked", "_module", "_shared_bytes", "entry", "function")

    def __init__(self, entry: Entry, function: int, module: object) -> None:
        self.entry = entry
        self.function = _driver.function_handle(function)
        self._module = module
        self._shared_bytes = _STATIC_SHARED_BYTES
        self._checked: set[LaunchConfig] = set()

    def allow(self, config: LaunchConfig, threads_per_block: int) -> None:
        """Check the extents, and opt in to large shared memory and large clusters, once each."""
        if config in self._checked:
            return
        _check_extents(config, threads_per_block)
        if config.shared_bytes > self._shared_bytes:
            _driver.allow_shared_bytes(self.function, config.shared_bytes)
            self._shared_bytes = config.shared_bytes
        if config.cluster is not None and math.prod(config.cluster) > _PORTABLE_CLUSTER:
            _driver.allow_large_clusters(self.function)
        self._checked.add(config)


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise BackendError(
            "launching on device arrays needs CuPy. Install it with: pip install "
            "'tmaasync[cuda13]'."
        ) from error
    return cupy


# --- the source -------------------------------------------------------------------------------


def _read(source: str | Path) -> tuple[str, str, tuple[Path, ...]]:
    if isinstance(source, str) and "\n" in source:
        return source, "kernel.cu", ()
    path = find_kernel(source)
    return path.read_text(), path.name, (path.parent,)


def _preamble(types: Mapping[str, object], constants: Mapping[str, bool | int | float]) -> str:
    lines = [
        f"using {_identifier('types', name)} = {_cuda_type(name, types[name])};" for name in types
    ]
    for name, value in constants.items():
        lines.append(f"constexpr {_constant(_identifier('constants', name), value)};")
    headers = "#include <tmaasync/tmaasync.cuh>\n#include <tmaasync/types.cuh>\n" if types else ""
    return headers + "".join(f"{line}\n" for line in lines)


def _identifier(argument: str, name: str) -> str:
    if not _IDENTIFIER.match(name):
        raise ArgumentError(
            f"{argument} has the name {name!r}; it must be a C++ identifier. "
            "Use letters, digits and underscores."
        )
    return name


_ELEMENT_TYPES = {element.name: element.cuda_type for element in ELEMENTS}


def _cuda_type(name: str, value: object) -> str:
    if isinstance(value, (*_TILES, TMATensorTileTemplate)):
        return value.cuda_type
    if isinstance(value, str):
        return _ELEMENT_TYPES.get(value, value)
    try:
        return element(value).cuda_type
    except ArrayTypeError as error:
        raise ArgumentError(
            f"types[{name!r}] is {value!r}; it must be a tile, an element type or C++ text. "
            "Pass what create_tma_tile returned, numpy.float16, or 'MyType<4>'."
        ) from error


def _constant(name: str, value: object) -> str:
    if isinstance(value, bool | np.bool_):
        return f"bool {name} = {'true' if value else 'false'}"
    if isinstance(value, numbers.Integral):
        number = int(value)
        if -(2**31) <= number < 2**31:
            return f"int {name} = {number}"
        if -(2**63) < number < 2**63:
            return f"long long {name} = {number}ll"
    elif isinstance(value, numbers.Real) and math.isfinite(value):
        return f"float {name} = {float(value)!r}f"
    raise ArgumentError(
        f"constants[{name!r}] is {value!r}; it must be a bool, a finite float, or an int of "
        "64 bits. Pass other things as kernel arguments or through types."
    )


def wait_for_producers(placed: Iterable[_Placed], stream: int) -> None:
    """Order a stream behind the work that makes arrays of frameworks whose stream we cannot ask.

    By the stream protocols of DLPack and of ``__cuda_array_interface__`` (version 3).
    """
    for view in placed:
        if view.framework == "other" and view.device is not None:
            owner: Any = view.array if isinstance(view, _TILES) else view.owner
            if hasattr(owner, "__dlpack__"):
                owner.__dlpack__(stream=stream or _LEGACY_DEFAULT_STREAM)
            elif (theirs := owner.__cuda_array_interface__.get("stream")) is not None:
                _driver.wait_for(stream, theirs)


# What DLPack calls the default stream, whose handle is 0.
_LEGACY_DEFAULT_STREAM = 1


# --- arguments --------------------------------------------------------------------------------

_PlacedTile = (
    TMATensorTile | TMATensorTileIm2col | BulkTile | StridedTensor | RaggedMap | CopyPlan
)
_Placed = ArrayView | _PlacedTile
_Tile = _PlacedTile | TMATensorTileArray
_View = _Placed | TMATensorTileArray | None


def _views(args: Sequence[object]) -> list[_View]:
    """Per argument: the tile, the view of the array, or None for a number or bytes."""
    if not isinstance(args, tuple | list):
        raise LaunchError(
            f"args is {type(args).__name__}; it must be a tuple or list, one item per parameter. "
            "Write (value,) for a single one."
        )
    return [_view(index, arg) for index, arg in enumerate(args)]


def _placed(views: Iterable[_View]) -> Iterator[_Placed]:
    """What lies on a device; of an array of tiles every tile."""
    for view in views:
        if isinstance(view, TMATensorTileArray):
            yield from view
        elif view is not None:
            yield view


_TILES = (
    TMATensorTile,
    TMATensorTileIm2col,
    BulkTile,
    StridedTensor,
    RaggedMap,
    TMATensorTileArray,
    CopyPlan,
)
_PLAIN = (int, float, bytes, np.generic)


def _view(index: int, arg: object) -> _View:
    if isinstance(arg, _TILES):
        if not arg.is_current:
            arg.check_alive(f"args[{index}]")
        return arg
    if isinstance(arg, TMATensorTileTemplate):
        raise LaunchError(
            f"args[{index}] is {_brief(arg)}, a template that no array fills; a launch needs the "
            "tensor map of an array. Pass template.bind(array)."
        )
    if isinstance(arg, _PLAIN) or (isinstance(arg, np.ndarray) and _is_struct(arg)):
        return None
    return _arrays.view(arg, argument=f"args[{index}]")


def _is_struct(array: np.ndarray[Any, Any]) -> bool:
    return array.size == 1 and array.dtype.names is not None


def _common_device(placed: Iterable[_Placed]) -> int | None:
    """The arrays' device; None for host memory, where the emulator runs the kernel."""
    devices = {view.device for view in placed}
    if len(devices) == 1:
        return next(iter(devices))
    if devices:
        names = ", ".join(
            "host memory" if device is None else f"device {device}"
            for device in sorted(devices, key=str)
        )
        raise LaunchError(
            f"args lie on {names}; one launch takes one device. Move them to one device."
        )
    current = _driver.current_device()
    return 0 if current is None else current


def _extents_of(args: Sequence[object], views: Sequence[_View]) -> list[tuple[Extent, ...]] | None:
    """Where each argument's arrays lie; None if an argument may hide pointers to others."""
    hidden = (arg for arg, view in zip(args, views, strict=True) if view is None)
    if any(map(_may_hide_pointers, hidden)):
        return None
    if any(isinstance(view, TMATensorTileArray) and view.is_aimed_elsewhere for view in views):
        return None
    return [() if view is None else _extents_behind(view) for view in views]


def _extents_behind(view: _Placed | TMATensorTileArray) -> tuple[Extent, ...]:
    if not isinstance(view, TMATensorTileArray):
        return (_extent(view),)
    low, high = view.memory_bounds
    return (Extent(low, 0, high - low), *map(_extent, view))


def _extent(view: _Placed) -> Extent:
    low, high = view.byte_bounds
    # Of a tile what its first word says: a ragged map starts below its array.
    address = (
        view.address
        if isinstance(view, ArrayView)
        else int.from_bytes(view.descriptor[:8], "little")
    )
    return Extent(address, low - address, high - address)


_MIN_POINTER = 1 << 32


def _may_hide_pointers(arg: object) -> bool:
    if isinstance(arg, int):
        return arg >= _MIN_POINTER
    raw = arg if isinstance(arg, bytes) else np.asarray(arg).tobytes()
    words = np.frombuffer(raw[: len(raw) // 8 * 8], np.uint64)
    return bool(((words >= _MIN_POINTER) & (words < 1 << 47)).any())


def _pack(
    kernel: str, parameters: Sequence[Parameter], args: Sequence[object], views: Sequence[_View]
) -> list[bytes]:
    if len(parameters) != len(args):
        raise LaunchError(
            f"args has {len(args)} items; {kernel} takes {len(parameters)}: "
            f"{', '.join(map(_describe, parameters))}."
        )
    packed = []
    for index, (parameter, arg, view) in enumerate(zip(parameters, args, views, strict=True)):
        data = _bytes_of(parameter, arg, view)
        if data is None or len(data) != parameter.size_bytes:
            raise _misfit(index, parameter, arg, data)
        packed.append(data)
    return packed


def _describe(parameter: Parameter) -> str:
    if parameter.is_struct:
        return f"a struct of {parameter.size_bytes} bytes"
    kinds = {"f": "floating-point number", "u": "integer or pointer", "s": "integer", "b": "value"}
    return f"a {parameter.size_bytes}-byte {kinds.get(parameter.kind, 'value')}"


def _misfit(index: int, parameter: Parameter, arg: object, data: bytes | None) -> LaunchError:
    size = "" if data is None else f" of {len(data)} bytes"
    return LaunchError(
        f"args[{index}] is {_brief(arg)}{size}; the kernel takes {_describe(parameter)} there. "
        f"{_remedy(parameter)}"
    )


def _brief(arg: object) -> str:
    text = repr(arg)
    return text if len(text) <= 60 and "\n" not in text else f"a {type(arg).__name__}"


def _remedy(parameter: Parameter) -> str:
    if parameter.is_struct:
        return "Pass a tile, or bytes or a NumPy structured scalar of that size."
    if parameter.kind == "f":
        return "Pass a float, or a NumPy scalar of that size."
    return "Pass an int in range, a NumPy scalar of that size, or an array where it is a pointer."


def _bytes_of(parameter: Parameter, arg: object, view: _View) -> bytes | None:
    if isinstance(view, _TILES):
        return _tile_bytes(parameter, view) if parameter.is_struct else None
    if view is not None:
        is_pointer = parameter.kind in "ub" and parameter.size_bytes == 8
        return view.address.to_bytes(8, "little") if is_pointer else None
    if isinstance(arg, np.generic):  # before int and float: numpy.float64 is a float too
        floating = np.issubdtype(arg.dtype, np.inexact)
        agrees = parameter.kind == "b" or floating == (parameter.kind == "f") or parameter.is_struct
        return arg.tobytes() if agrees else None
    if isinstance(arg, bytes | np.ndarray):
        data = arg if isinstance(arg, bytes) else arg.tobytes()
        return data if parameter.is_struct else None
    return _number(parameter, arg)


_MAP_BYTES = 128


def _tile_bytes(parameter: Parameter, tile: _Tile) -> bytes:
    """What a tile passes: to a parameter of a map's size the map alone."""
    if isinstance(tile, BulkTile | TMATensorTileArray) or parameter.size_bytes != _MAP_BYTES:
        return tile.argument
    return tile.descriptor


_FLOATS = {4: struct.Struct("<f"), 8: struct.Struct("<d")}


def _number(parameter: Parameter, arg: object) -> bytes | None:
    size = parameter.size_bytes
    if parameter.is_struct:
        return None
    if parameter.kind == "f":
        return _FLOATS[size].pack(arg) if size in _FLOATS else None
    if isinstance(arg, int) and -(1 << (8 * size - 1)) <= arg < 1 << 8 * size:
        return (arg % (1 << 8 * size)).to_bytes(size, "little")
    return None


# --- grid, shared memory, stream --------------------------------------------------------------


def _extents(argument: str, value: _Extent) -> tuple[int, int, int]:
    if type(value) is int and value > 0:
        return value, 1, 1
    try:
        extents = tuple(map(operator.index, value if isinstance(value, Sequence) else (value,)))
    except TypeError:
        extents = ()
    if not 1 <= len(extents) <= 3 or min(extents) < 1:
        raise LaunchError(
            f"{argument} is {value!r}; it must be one to three positive ints (x, y, z). "
            "An empty array has no tiles: skip the launch."
        )
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def _check_extents(config: LaunchConfig, threads_per_block: int) -> None:
    threads = math.prod(config.block)
    if threads > threads_per_block:
        raise LaunchError(
            f"block is {config.block}, {threads} threads; the device allows {threads_per_block}. "
            "Use a smaller block."
        )
    if config.cluster is None:
        return
    blocks = math.prod(config.cluster)
    if blocks > _MAX_CLUSTER:
        raise LaunchError(
            f"cluster is {config.cluster}, {blocks} blocks; the hardware allows "
            f"{_PORTABLE_CLUSTER}, "
            f"or {_MAX_CLUSTER} where the GPU has room. Use a smaller cluster."
        )
    if any(whole % part for whole, part in zip(config.grid, config.cluster, strict=True)):
        rounded = tuple(
            -(-whole // part) * part
            for whole, part in zip(config.grid, config.cluster, strict=True)
        )
        raise LaunchError(
            f"grid is {config.grid}; it counts blocks and must be a multiple of cluster "
            f"{config.cluster}. Use {rounded}."
        )


def _shared_bytes(needed: int | None, asked: int | None, limit: int) -> int:
    shared = asked if asked is not None else needed or 0
    if not 0 <= shared <= limit:
        raise LaunchError(
            f"shared_mem is {shared} bytes; a block of this device has {limit}. "
            "Use fewer stages or smaller tiles."
        )
    return shared
