"""A kernel of a CUDA source, compiled on first use and launched on GPU or host arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tmaasync._driver import PreparedLaunch
from tmaasync._kinds import check_flags, shown
from tmaasync._source.compile import Program, Source
from tmaasync._source.entries import expression_of
from tmaasync.errors import ArgumentError, ArrayTypeError
from tmaasync.kernel.arguments import views
from tmaasync.kernel.backends import Builds
from tmaasync.kernel.device import placement_of
from tmaasync.kernel.launch import Extents
from tmaasync.kernel.observed import SkippedLaunch, current_observer, see
from tmaasync.kernel.ranks import check_call
from tmaasync.kernel.recipe import LaunchRequest, Recipe
from tmaasync.kernel.repeated import RepeatedCalls, remember
from tmaasync.kernel.source import (
    DEBUG_OPTIONS,
    arch_without_device,
    check_names,
    default_name,
    from_the_call,
    is_debug,
    source_of,
)
from tmaasync.kernel.tracing import KernelTraces
from tmaasync.kernel.variables import Variable
from tmaasync.kernel.watch import budget_of

if TYPE_CHECKING:
    from tmaasync.emulate import EmulatedLaunch
    from tmaasync.trace import Trace


class Kernel:
    """One ``__global__`` function of a CUDA source.

    Args:
        source: The path of a ``.cu`` file, the bare name of a shipped one (``"copy.cu"``), or CUDA
            C++ text: with a line break or ``__global__``. Or the path or text of a PTX module.
        name: The function's name; by default the stem of the file, or a PTX module's only
            ``.entry``. In a namespace, or of a template: ``"layers::softmax<float, 128>"``.
        types: Type names that the host defines for the source, each with a tile (its `cuda_type`),
            an element type, or C++ text.
        constants: Constants that the host defines for the source, each a bool, int or float.
        include_dirs: Folders of your own headers. A source file's own folder is always searched.
        options: Additional NVRTC options. Sources are compiled as C++20 on both back ends;
            ``--std=c++17`` selects another standard for GPUs.
        arch: The architecture, such as ``"sm_90a"``. By default the one of the arrays, with
            the ``a`` if the source uses wgmma, setmaxnreg or multicast, or edits tensor maps. The
            CPU emulates ``sm_90a``, or here ``sm_100a``, ``sm_103a`` or ``sm_120a``.
        debug: Whether the headers check the arguments of their calls (``TMAASYNC_DEBUG`` is then
            1 in the source too). A broken rule ends the kernel: on a GPU with a line on stdout and
            the loss of the CUDA context, on the CPU with an `EmulatedFault`. On a GPU each launch
            waits for the kernel's end, and a barrier wait that takes too long raises `HangError`.
            By default the environment variable ``TMAASYNC_DEBUG``: off if it is ``0`` or not set.
        trace: Whether launches record a trace. By default those inside ``with trace.record()``;
            with True all, and `last_trace` is the last one outside of ``record``; with False none.
        budget_seconds: Maximum duration of a wait in a debug build on a GPU. By default the
            environment variable ``TMAASYNC_BUDGET_SECONDS``, else 1.
        names: What lies in dynamic shared memory, for reports, where the source has no struct of
            it: each name with its offset in bytes, as in ``{"tile": 0, "full[0]": 4096}``.

    The source can ``#include <tmaasync/tmaasync.cuh>``. A tile parameter is declared as
    ``const __grid_constant__ Tile tile``. ``extern "C" __device__ const int <name>_shared_bytes``
    in the source is the default dynamic shared memory of a launch. The kernel is compiled at the
    first launch, or by `compile`.
    """

    def __init__(  # noqa: PLR0913 - arguments of a compiler
        self,
        source: str | Path,
        name: str | None = None,
        *,
        types: Mapping[str, object] | None = None,
        constants: Mapping[str, bool | int | float] | None = None,
        include_dirs: Iterable[str | Path] = (),
        options: Iterable[str] = (),
        arch: str | None = None,
        debug: bool | None = None,
        trace: bool | None = None,
        budget_seconds: float | None = None,
        names: Mapping[str, int] | None = None,
    ) -> None:
        flags = {"debug": debug, "trace": trace}
        check_flags(**{name: value for name, value in flags.items() if value is not None})
        check_names(name=name, arch=arch)
        watches = is_debug(debug)
        text = source_of(
            source,
            types=types,
            constants=constants,
            include_dirs=include_dirs,
            options=options,
            names=names,
        )
        self.name = name if name is not None else default_name(text)
        if not text.is_ptx:
            more = DEBUG_OPTIONS if watches else ()
            expression = expression_of(text.text, self.name)
            text = replace(text, options=(*text.options, *more), expression=expression)
        budget = budget_of(budget_seconds) if watches or budget_seconds is not None else None
        self._begin(text, arch, budget if watches else None, trace)

    def _begin(self, source: Source, arch: str | None, budget: float | None, trace: Any) -> None:
        self._traces = KernelTraces(trace)
        self._recipe = Recipe(source, self.name, arch, budget, self._traces.collector_of)
        self._builds = Builds(self._recipe)
        self._repeated: RepeatedCalls = {}
        see(self._recipe)

    def __getstate__(self) -> tuple[Any, ...]:
        """Return what the kernel is made from, so that other processes can build it themselves."""
        recipe = self._recipe
        return self.name, recipe.source, recipe.arch, recipe.budget_seconds, self._traces.wanted

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.name, *made_from = state
        self._begin(*made_from)

    def __repr__(self) -> str:
        return f"<Kernel {self.name} of {self._recipe.source.name}>"

    @property
    def last_trace(self) -> Trace | None:
        """The trace of the last launch outside of ``with trace.record()``; needs ``trace=True``.

        Traces of launches inside ``record`` go to its result instead.
        """
        last: Trace | None = self._traces.last.trace
        return last

    def __call__(  # noqa: PLR0913 - arguments of a launch
        self,
        grid: Extents,
        block: Extents,
        args: Sequence[object],
        *,
        cluster: Extents | None = None,
        shared_mem: int | None = None,
        pdl: bool = False,
        cooperative: bool = False,
        stream: object = None,
        device: int | None = None,
    ) -> None:
        """Launch the kernel; the parameters extend the ones of CuPy's ``RawKernel``.

        Args:
            grid: Blocks along x, y, z; an int is x alone.
            block: Threads per block along x, y, z.
            args: One per kernel parameter: tiles of the type in ``types``, contiguous arrays of the
                pointer's element type (`Pointer` bypasses this check), numbers that fit the
                declared type, and NumPy scalars or bytes for structs.
            cluster: Blocks per cluster along x, y, z; must divide the grid, counted in blocks.
            shared_mem: Dynamic shared memory in bytes; by default the size that the source defines.
            pdl: Programmatic dependent launch: start before the stream's previous kernel ends. The
                kernel calls ``wait_for_previous_grids()`` before it reads that kernel's results.
            cooperative: Cooperative launch: all blocks are resident at once, so they may wait for
                one another, as in ``sync_grid()``. The grid size is checked before the launch.
            stream: A CuPy or torch stream, a handle, or anything with ``__cuda_stream__``; by
                default the current stream of the arrays' framework.
            device: The ordinal of the device; by default the arrays'. Arrays on other devices are
                accessed over NVLink, after `enable_peer_access`. Without arrays, the current
                device; inside `emulate.scheduled`, and on a machine without a GPU, the CPU.

        Raises:
            LaunchError: The extents or arguments do not fit the kernel or the device.
            StaleTileError: A tile's array was freed or moved.
            BackendError: No driver or device, one older than sm_90, or one without the wgmma or
                tcgen05 that the kernel needs.
            CompileError: The source does not compile.
            HangError: In a debug build on a GPU: a wait took too long, and the kernel was stopped.

        Warns:
            UntestedDeviceWarning: At the first kernel on a GPU that is not Hopper.
        """
        key: tuple[object, ...] = (grid, block)
        is_plain = cluster is shared_mem is device is None and pdl is cooperative is False
        if not (is_plain and (type(grid) is int is type(block) or _are_of_ints(grid, block))):
            # The key includes the types, because 1.0 equals 1 but is not a valid extent.
            options = (cluster, shared_mem, pdl, cooperative, device)
            key += (options, *map(type, (grid, block, *options)), *_types_in(grid, block, cluster))
        try:
            calls = self._repeated.get(key, ()) if current_observer() is None else ()
        except TypeError:  # extents in a list
            calls = ()
        for call in calls:
            if call(args, stream):
                return
        if self._traces.collector_of() is not None:
            check_call(self.name, args)
        launch = self.prepare(
            grid,
            block,
            args,
            cluster=cluster,
            shared_mem=shared_mem,
            pdl=pdl,
            cooperative=cooperative,
            stream=stream,
            device=device,
        )
        launch()
        if isinstance(launch, PreparedLaunch):
            seen = views(args)
            build = self._builds.on(placement_of(seen, device).device)
            remember(self._repeated, key, partial(build.repeated, launch, args, seen))

    def prepare(  # noqa: PLR0913 - as above
        self,
        grid: Extents,
        block: Extents,
        args: Sequence[object],
        *,
        cluster: Extents | None = None,
        shared_mem: int | None = None,
        pdl: bool = False,
        cooperative: bool = False,
        stream: object = None,
        device: int | None = None,
    ) -> PreparedLaunch | EmulatedLaunch | SkippedLaunch:
        """Check and pack a launch; calling the result is one driver call.

        In a debug build that call also waits for the kernel's end. Arguments and errors are the
        same as for `__call__`. The result keeps the arrays and the stream alive, and does not check
        again whether arrays were moved.
        """
        if current_observer() is not None and see(self._recipe):
            return SkippedLaunch()
        if not (pdl is cooperative is False):
            check_flags(pdl=pdl, cooperative=cooperative)
        try:
            seen = views(args)
        except ArrayTypeError as error:
            self._recipe.signature.explain(error, args)
            raise
        where, emulated = placement_of(seen, device)
        build = self._builds.on(where)
        request = LaunchRequest(grid, block, cluster, shared_mem, pdl, cooperative, emulated)
        with from_the_call():
            return build.prepare(request, args, seen, stream)

    def compile(self, arch: str | None = None) -> Program:
        """Compile, or take the result from the cache. Needs no GPU.

        With ``trace=True`` it compiles the traced build for GPUs.

        Args:
            arch: By default the kernel's own ``arch``, else ``sm_90a``, or ``sm_100a`` for a source
                that includes ``<tmaasync/tcgen05.cuh>``.

        Raises:
            CompileError: The source does not compile, or has no function of this name.
            BackendError: There is no NVRTC.
        """
        check_names(arch=arch)
        recipe = self._recipe
        arch = arch or recipe.arch or arch_without_device(recipe.source)
        with from_the_call():
            return recipe.program(arch, is_traced=bool(self._traces.wanted))

    def variable(self, name: str, *, device: int | Literal["cpu"] | None = None) -> Variable:
        """Return a ``__constant__`` or ``__device__`` variable of the kernel, to write or read.

        It is the equivalent of ``cudaMemcpyToSymbol`` and ``cudaMemcpyFromSymbol``. Each kernel has
        its own copy of the variable on each device: write every copy. The traced build on a GPU has
        its own copy too, which `write` also fills.

        Args:
            name: The variable's C++ name: ``"taps"``, ``"layers::table<float, 8>"``.
            device: The ordinal of a GPU, or ``"cpu"``. By default as for a launch without arrays.

        Raises:
            ArgumentError: The kernel uses no variable of this name; the message lists all names.
            CompileError: The source does not compile.
            BackendError: No driver, no device, or a device older than sm_90.
        """
        if not isinstance(name, str):
            rule, remedy = "it is a variable's name", "Pass a string"
            raise ArgumentError.broken("name", shown(name), rule, remedy)
        where = None if device == "cpu" else placement_of((), device).device
        with from_the_call():
            return self._builds.on(where).variable(name)


def _are_of_ints(grid: Any, block: Any) -> bool:
    return type(grid) is tuple is type(block) and {*map(type, grid + block)} == _INT


_INT = {int}


def _types_in(*extents: object) -> tuple[type, ...]:
    return tuple([type(size) for one in extents if isinstance(one, tuple) for size in one])
