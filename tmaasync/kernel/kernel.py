"""One function of a CUDA source: compiled when first needed, launched on arrays of either kind."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tmaasync import _driver, emulate
from tmaasync._compile import Program, compile_source
from tmaasync._driver import LaunchConfig, PreparedLaunch
from tmaasync._streams import stream_of
from tmaasync.emulate import EmulatedLaunch, EmulatedProgram
from tmaasync.errors import ArgumentError, BackendError
from tmaasync.kernel.arguments import View, common_device, extents_of, pack, placed, views
from tmaasync.kernel.launch import (
    Extents,
    Loaded,
    check_extents,
    extents,
    shared_bytes,
    wait_for_producers,
)
from tmaasync.kernel.source import DEBUG_OPTIONS, arch_for, is_debug, source_of
from tmaasync.kernel.traced import TRACE_OPTIONS, ChipTracer
from tmaasync.kernel.watch import STATE_NAME, HangWatch, WatchedLaunch, budget_of
from tmaasync.trace import Collector, Trace, current_collector
from tmaasync.trace.collector import CollectorOf

__all__ = ["Kernel"]


_MAX_FORMS = 1024


class _Form(NamedTuple):
    """A launch, all but its arguments."""

    loaded: Loaded
    config: LaunchConfig
    tracer: ChipTracer


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
        debug: Whether to have the headers check what their calls are given (``TMAASYNC_DEBUG`` is
            then 1 in the source too). A broken rule ends the kernel: on a GPU with a line on
            stdout and the loss of the CUDA context, on the CPU with an `EmulatedFault`. On a GPU a
            launch then waits for the kernel's end, and a wait on a barrier that takes too long
            becomes a `HangError`. By default what the environment's ``TMAASYNC_DEBUG`` says, which
            is off unless set and not ``0``.
        trace: Whether launches leave a trace. By default those inside ``with trace.record()`` do;
            with True all do, and `last_trace` has that of the last one outside of it; with False
            none does.
        budget_seconds: How long a wait may take in a debug build on a GPU. By default what the
            environment's ``TMAASYNC_BUDGET_SECONDS`` says, else 1.

    The source sees ``#include <tmaasync/tmaasync.cuh>``. A parameter that is a tile is declared
    ``const __grid_constant__ Tile tile``. If the source defines
    ``extern "C" __device__ const int <name>_shared_bytes``, that much dynamic shared memory is
    given to every launch that does not ask otherwise.

    Compiling happens at the first launch, or by `compile`.
    """

    def __init__(  # noqa: PLR0913 - what a compiler takes
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
    ) -> None:
        """Read the source; nothing is compiled yet."""
        watches = is_debug(debug)
        self._source = source_of(
            source,
            types=types,
            constants=constants,
            include_dirs=include_dirs,
            options=(*options, *(DEBUG_OPTIONS if watches else ())),
        )
        self.name = name if name is not None else Path(self._source.name).stem
        self._arch = arch
        self._trace = trace
        self._own_traces = Collector(latest=1)
        self._budget_seconds = budget_of(budget_seconds) if watches else None
        self._loaded: dict[tuple[int, bool], Loaded] = {}
        self._forms: dict[tuple[Any, ...], _Form] = {}
        self._emulated: EmulatedProgram | None = None

    def __repr__(self) -> str:
        return f"<Kernel {self.name} of {self._source.name}>"

    @property
    def last_trace(self) -> Trace | None:
        """Of the last launch outside of ``with trace.record()``, if the kernel has ``trace=True``.

        The other launches of a traced kernel are in what ``record`` gives.
        """
        launches = self._own_traces.launches
        return launches[-1] if launches else None

    def __call__(
        self,
        grid: Extents,
        block: Extents,
        args: Sequence[object],
        *,
        cluster: Extents | None = None,
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
            HangError: In a debug build, on a GPU: a wait took too long, and the kernel was stopped.
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
        grid: Extents,
        block: Extents,
        args: Sequence[object],
        *,
        cluster: Extents | None = None,
        shared_mem: int | None = None,
        pdl: bool = False,
        stream: object = None,
    ) -> PreparedLaunch | EmulatedLaunch:
        """Check and pack a launch; calling the result is one driver call.

        In a debug build it waits for the kernel's end besides. Takes and raises what a call does.
        The result keeps the arrays alive; it does not look again whether they were moved.
        """
        seen = views(args)
        places = list(placed(seen))
        device = common_device(places)
        if device is None:
            return self._prepare_on_host(
                grid, block, args, seen, cluster=cluster, shared_mem=shared_mem
            )
        handle = stream_of([view.framework for view in places], device, stream)
        form = self._form(device, grid, block, cluster, shared_mem, pdl, handle)
        loaded = form.loaded
        packed = pack(self.name, loaded.entry.parameters, args, seen)
        if any(view.framework == "other" for view in places):
            with _driver.on_device(device):
                wait_for_producers(places, handle)
        parts = (loaded.function, form.config, packed, tuple(args), device, form.tracer)
        if loaded.watch is None:
            return PreparedLaunch(*parts)
        return WatchedLaunch(loaded.watch, *parts)

    def _form(self, device: int, *given: Any) -> _Form:
        """A launch on a device, all but its arguments; checked when it is first asked for."""
        key = (device, *given, *map(type, given[:2]))  # 1.0 is no extent, though it equals 1
        try:
            return self._forms[key]
        except KeyError:
            if len(self._forms) >= _MAX_FORMS:
                self._forms.clear()
            form = self._forms[key] = self._new_form(device, *given)
        except TypeError:  # extents in a list
            form = self._new_form(device, *given)
        return form

    def _new_form(
        self,
        device: int,
        grid: Extents,
        block: Extents,
        cluster: Extents | None,
        shared_mem: int | None,
        pdl: bool,
        stream: int,
    ) -> _Form:
        limits = _driver.require_device(device)
        with _driver.on_device(device):
            loaded = self._load(device, limits.compute_capability)
            config = LaunchConfig(
                grid=extents("grid", grid),
                block=extents("block", block),
                cluster=None if cluster is None else extents("cluster", cluster),
                shared_bytes=shared_bytes(
                    loaded.entry.shared_bytes, shared_mem, limits.shared_bytes
                ),
                pdl=pdl,
                stream=stream,
            )
            loaded.allow(config, limits.threads_per_block)
        load = functools.partial(self._load, device, limits.compute_capability, is_traced=True)
        tracer = ChipTracer(self._source, self.name, device, load, self._collector_of)
        return _Form(loaded, config, tracer)

    def _prepare_on_host(
        self,
        grid: Extents,
        block: Extents,
        args: Sequence[object],
        seen: Sequence[View],
        *,
        cluster: Extents | None,
        shared_mem: int | None,
    ) -> EmulatedLaunch:
        """A launch on the CPU, where there are no streams and grids run one after the other."""
        if self._emulated is None:
            # The build that the launch is going to run: there is one that reports accesses.
            races = emulate.current_schedule().races
            self._emulated = emulate.build(self._source, self.name, races=races)
        program, limits = self._emulated, emulate.LIMITS
        config = LaunchConfig(
            grid=extents("grid", grid),
            block=extents("block", block),
            cluster=None if cluster is None else extents("cluster", cluster),
            shared_bytes=shared_bytes(program.shared_bytes, shared_mem, limits.shared_bytes),
            pdl=False,
            stream=0,
        )
        check_extents(config, limits.threads_per_block)
        packed = pack(self.name, program.parameters, args, seen)
        return EmulatedLaunch(
            program, config, packed, tuple(args), extents_of(args, seen), self._collector_of
        )

    def compile(self, arch: str | None = None) -> Program:
        """Compile, or take the result from the cache. Needs no GPU.

        With ``trace=True`` the build is the one that leaves a trace on a GPU.

        Args:
            arch: By default the kernel's own, else ``sm_90`` or ``sm_90a`` as the source needs.

        Raises:
            CompileError: The source does not compile, or has no function of this name.
            BackendError: There is no NVRTC.
        """
        arch = arch or self._arch or arch_for(self._source, (9, 0))
        return self._program(arch, is_traced=bool(self._trace))

    # --- who wants traces ---------------------------------------------------------------------

    @property
    def _collector_of(self) -> CollectorOf:
        """Says who takes the trace of a launch, when it is made."""
        if self._trace is None:
            return current_collector
        return self._current_or_own if self._trace else _nobody

    def _current_or_own(self) -> Collector:
        current = current_collector()
        return self._own_traces if current is None else current

    # --- from source to function --------------------------------------------------------------

    def _program(self, arch: str, *, is_traced: bool = False) -> Program:
        source = self._source
        if is_traced:
            source = replace(source, options=(*source.options, *TRACE_OPTIONS))
        program = compile_source(source, arch)
        if self.name not in program.entries:
            known = ", ".join(program.entries) or "none"
            raise ArgumentError(
                f'name is {self.name!r}; {self._source.name} has no extern "C" __global__ function '
                f"of that name. It has: {known}."
            )
        return program

    def _load(self, device: int, capability: tuple[int, int], *, is_traced: bool = False) -> Loaded:
        """The function on this device, whose context is current."""
        loaded = self._loaded.get((device, is_traced))
        if loaded is None:
            arch = self._arch or arch_for(self._source, capability)
            program = self._program(arch, is_traced=is_traced)
            module = _cupy().RawModule(path=str(program.path))
            with _cupy().cuda.Device(device):
                function = int(module.get_function(self.name).kernel.ptr)
                watch = self._watch(module, device)
            loaded = Loaded(program.entries[self.name], function, module, watch)
            self._loaded[device, is_traced] = loaded
        return loaded

    def _watch(self, module: Any, device: int) -> HangWatch | None:
        """Of a debug build whose kernel has waits."""
        if self._budget_seconds is None:
            return None
        try:
            state = int(module.get_global(STATE_NAME).ptr)
        except _cupy().cuda.driver.CUDADriverError:
            return None
        return HangWatch(self._source, self.name, state, device, self._budget_seconds)


def _nobody() -> None:
    """Who takes traces of a kernel that leaves none."""


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise BackendError(
            "launching on device arrays needs CuPy. Install it with: pip install "
            "'tmaasync[cuda13]'."
        ) from error
    return cupy
