"""A kernel on one back end: compiled for it, loaded, and its launches prepared."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tmaasync import _driver, emulate
from tmaasync._compile import Program, Source, compile_source
from tmaasync._driver import LaunchConfig, PreparedLaunch
from tmaasync._streams import stream_of
from tmaasync.emulate import EmulatedLaunch
from tmaasync.errors import ArgumentError, BackendError
from tmaasync.kernel.arguments import View, extents_of, pack, placed
from tmaasync.kernel.hangs import barrier_names
from tmaasync.kernel.launch import (
    Extents,
    Loaded,
    check_extents,
    check_launch_bounds,
    extents,
    shared_bytes,
    wait_for_producers,
)
from tmaasync.kernel.signature import Signature, signature_of
from tmaasync.kernel.source import arch_for, check_runs, source_of
from tmaasync.kernel.traced import TRACE_OPTIONS, ChipTracer
from tmaasync.kernel.watch import STATE_NAME, HangWatch, WatchedLaunch
from tmaasync.trace.collector import CollectorOf

__all__ = [
    "CudaBuild",
    "EmulatedBuild",
    "LaunchRequest",
    "Recipe",
    "build_on",
    "load_on_device",
    "max_active_clusters",
]

_MAX_FORMS = 1024


@dataclass(frozen=True)
class Recipe:
    """Everything that both back ends build a kernel from.

    Attributes:
        source: Text, preamble and options.
        name: The entry function.
        arch: What to compile for; None for what the device and the source need.
        budget_seconds: How long a wait may take; None in a release build.
        collector_of: Says who takes the trace of a launch, when it is made.
    """

    source: Source
    name: str
    arch: str | None
    budget_seconds: float | None
    collector_of: CollectorOf

    @functools.cached_property
    def signature(self) -> Signature:
        """The parameters as the source declares them."""
        return signature_of(self.source, self.name)

    def program(self, arch: str, *, is_traced: bool = False) -> Program:
        """Compile for a GPU, or take the result from the cache."""
        source = self.source
        if is_traced:
            source = replace(source, options=(*source.options, *TRACE_OPTIONS))
        program = compile_source(source, arch)
        if self.name not in program.entries:
            known = ", ".join(program.entries) or "none"
            raise ArgumentError(
                f'name is {self.name!r}; {source.name} has no extern "C" __global__ function '
                f"of that name. It has: {known}."
            )
        return program


class LaunchRequest(NamedTuple):
    """The arguments of `Kernel.prepare`, without the kernel's own."""

    grid: Extents
    block: Extents
    cluster: Extents | None
    shared_mem: int | None
    pdl: bool


def build_on(device: int | None, recipe: Recipe) -> CudaBuild | EmulatedBuild:
    """Return the build for arrays on this device; None for host memory."""
    return EmulatedBuild(recipe) if device is None else CudaBuild(recipe, device)


# --- on a GPU ---------------------------------------------------------------------------------


class _Form(NamedTuple):
    """A launch, all but its arguments."""

    loaded: Loaded
    config: LaunchConfig
    tracer: ChipTracer


def load_on_device(recipe: Recipe, device: int, is_traced: bool) -> Loaded:
    """Compile a kernel, and load it on a device whose context is current."""
    limits = _driver.require_device(device)
    arch = recipe.arch or arch_for(recipe.source, limits.compute_capability, limits.name)
    check_runs(arch, limits.compute_capability, limits.name)
    _driver.note_untested(device)
    program = recipe.program(arch, is_traced=is_traced)
    module = _cupy().RawModule(path=str(program.path))
    with _cupy().cuda.Device(device):
        function = int(module.get_function(recipe.name).kernel.ptr)
        watch = _watch(recipe, device, module)
    return Loaded(program.entries[recipe.name], function, module, watch)


def _watch(recipe: Recipe, device: int, module: Any) -> HangWatch | None:
    """Return the watch of a debug build whose kernel has waits."""
    if recipe.budget_seconds is None:
        return None
    try:
        state = int(module.get_global(STATE_NAME).ptr)
    except _cupy().cuda.driver.CUDADriverError:
        return None
    names = barrier_names(recipe.source, recipe.name)
    return HangWatch(recipe.source, recipe.name, names, state, device, recipe.budget_seconds)


class CudaBuild:
    """A kernel on one CUDA device, where ``load`` brings it when it is first needed."""

    def __init__(
        self,
        recipe: Recipe,
        device: int,
        load: Callable[[Recipe, int, bool], Loaded] = load_on_device,
    ) -> None:
        """Compile nothing yet."""
        self._recipe = recipe
        self._device = device
        self._load = load
        self._loaded: dict[bool, Loaded] = {}
        self._forms: dict[tuple[Any, ...], _Form] = {}

    def prepare(
        self, request: LaunchRequest, args: Sequence[object], seen: Sequence[View], stream: object
    ) -> PreparedLaunch:
        """Check and pack a launch; ``seen`` is what `views` made of the arguments."""
        recipe, device = self._recipe, self._device
        recipe.signature.check(seen)
        arrays = list(placed(seen))
        handle = stream_of([view.framework for view in arrays], device, stream)
        form = self._form(request, handle)
        loaded = form.loaded
        packed = pack(recipe.name, loaded.entry.parameters, args, seen)
        if any(view.framework == "other" for view in arrays):
            with _driver.on_device(device):
                wait_for_producers(arrays, handle)
        parts = (loaded.function, form.config, packed, tuple(args), device, form.tracer)
        if loaded.watch is None:
            return PreparedLaunch(*parts)
        return WatchedLaunch(loaded.watch, *parts)

    def _form(self, request: LaunchRequest, stream: int) -> _Form:
        """Return a launch but for its arguments; it is checked when it is first asked for."""
        # 1.0 is no extent, though it equals 1.
        key = (request, stream, type(request.grid), type(request.block))
        try:
            return self._forms[key]
        except KeyError:
            if len(self._forms) >= _MAX_FORMS:
                self._forms.clear()
            form = self._forms[key] = self._new_form(request, stream)
        except TypeError:  # extents in a list
            form = self._new_form(request, stream)
        return form

    def _new_form(self, request: LaunchRequest, stream: int) -> _Form:
        limits = _driver.require_device(self._device)
        with _driver.on_device(self._device):
            loaded = self.load()
            config = LaunchConfig(
                grid=extents("grid", request.grid),
                block=extents("block", request.block),
                cluster=None if request.cluster is None else extents("cluster", request.cluster),
                shared_bytes=shared_bytes(loaded.entry.shared_bytes, request.shared_mem, limits),
                pdl=request.pdl,
                stream=stream,
            )
            loaded.allow(config, limits)
        recipe = self._recipe
        load = functools.partial(self.load, is_traced=True)
        tracer = ChipTracer(recipe.source, recipe.name, self._device, load, recipe.collector_of)
        return _Form(loaded, config, tracer)

    def load(self, *, is_traced: bool = False) -> Loaded:
        """Load the function once; the device's context is current."""
        loaded = self._loaded.get(is_traced)
        if loaded is None:
            loaded = self._load(self._recipe, self._device, is_traced)
            self._loaded[is_traced] = loaded
        return loaded


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise BackendError(
            "launching on device arrays needs CuPy. Install it with: pip install "
            "'tmaasync[cuda13]'."
        ) from error
    return cupy


# --- on the CPU -------------------------------------------------------------------------------


class EmulatedBuild:
    """A kernel on the emulator: there are no streams, and grids run one after the other."""

    def __init__(self, recipe: Recipe) -> None:
        """Compile nothing yet."""
        self._recipe = recipe

    @functools.cached_property
    def _program(self) -> emulate.EmulatedProgram:
        return emulate.build(self._recipe.source, self._recipe.name)

    def prepare(
        self, request: LaunchRequest, args: Sequence[object], seen: Sequence[View], stream: object
    ) -> EmulatedLaunch:
        """Check and pack a launch; ``seen`` is what `views` made of the arguments."""
        del stream
        self._recipe.signature.check(seen)
        recipe, program, limits = self._recipe, self._program, emulate.LIMITS
        config = LaunchConfig(
            grid=extents("grid", request.grid),
            block=extents("block", request.block),
            cluster=None if request.cluster is None else extents("cluster", request.cluster),
            shared_bytes=shared_bytes(program.shared_bytes, request.shared_mem, limits),
            pdl=request.pdl,
            stream=0,
        )
        check_extents(config, limits)
        check_launch_bounds(recipe.name, program.max_threads, config)
        packed = pack(recipe.name, program.parameters, args, seen)
        return EmulatedLaunch(
            program, config, packed, tuple(args), extents_of(seen), recipe.collector_of
        )


# --- occupancy --------------------------------------------------------------------------------

_PROBE = """
extern "C" __global__ void probe() {}
"""


@functools.cache
def max_active_clusters(device: int, size: int) -> int:
    """Ask the driver how many clusters of ``size`` blocks run at once, one block per SM.

    A cluster lies within one GPC, and how many SMs these have differs from chip to chip.
    """
    recipe = Recipe(source_of(_PROBE), "probe", None, None, lambda: None)
    with _driver.on_device(device):
        limits = _driver.require_device(device)
        loaded = CudaBuild(recipe, device).load()
        shared = limits.shared_bytes  # so that no two blocks share an SM
        config = LaunchConfig((size, 1, 1), (1, 1, 1), (size, 1, 1), shared, False, 0)
        loaded.allow(config, limits)
        return _driver.max_active_clusters(loaded.function, config)
