"""Kernel builds for CUDA devices: compile and load a kernel, and prepare its launches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tmaasync import _driver
from tmaasync._arrays import stream_of
from tmaasync._driver import LaunchConfig, PreparedLaunch, Tracer
from tmaasync._forks import cached_property
from tmaasync._source.compile import Parameter
from tmaasync._source.symbols import Symbol, symbol_named
from tmaasync.errors import ArgumentError
from tmaasync.kernel.arguments import View, pack, placed
from tmaasync.kernel.backend import host_backend
from tmaasync.kernel.device import is_on_one_device
from tmaasync.kernel.launch import Loaded, extents, shared_bytes, wait_for_producers
from tmaasync.kernel.modules import Module, load_module, load_own_module
from tmaasync.kernel.ranks import RankArgument
from tmaasync.kernel.recipe import LaunchRequest, Recipe
from tmaasync.kernel.repeated import RepeatedCall, repeated_call
from tmaasync.kernel.signature import elements_of_variable
from tmaasync.kernel.source import arch_for, check_runs, source_of
from tmaasync.kernel.tracing import LaunchTracer, TracedBuild, tracing
from tmaasync.kernel.variables import Variable
from tmaasync.kernel.watch import STATE_NAME, HangWatch, UnawaitedLaunch, WatchedLaunch


def load_on_device(recipe: Recipe, device: int, is_traced: bool, is_own: bool = False) -> Loaded:
    """Compile a kernel, and load it on a device whose context is current.

    With ``is_own`` the module is not shared.
    """
    limits = _driver.require_device(device)
    arch = recipe.arch or arch_for(recipe.source, limits.compute_capability, limits.name)
    check_runs(arch, limits.compute_capability, limits.name)
    _driver.note_untested(device)
    program = recipe.program(arch, is_traced=is_traced)
    module = (load_own_module if is_own else load_module)(program.path, device)
    entry = program.entries[recipe.name]
    return Loaded(entry, module.function(entry.symbol), module, _watch(recipe, device, module))


def _watch(recipe: Recipe, device: int, module: Module) -> HangWatch | None:
    """Return the hang watch of a debug build whose kernel has waits; else None."""
    state = None if recipe.budget_seconds is None else module.global_address(STATE_NAME)
    if state is None or recipe.budget_seconds is None:
        return None
    names = host_backend().barrier_names(recipe.source, recipe.name)
    return HangWatch(recipe.source, recipe.name, names, state, device, recipe.budget_seconds)


class CudaBuild:
    """A kernel on one CUDA device; ``load`` loads it on first use."""

    def __init__(
        self,
        recipe: Recipe,
        device: int,
        load: Callable[..., Loaded] = load_on_device,
    ) -> None:
        """Store the arguments, without compiling."""
        self._recipe = recipe
        self._device = device
        self._load = load
        self._loaded: dict[bool, Loaded] = {}
        # Traced modules for launches with signals: one per launch that may be in flight.
        self._own: list[Loaded] = []
        self._spare: list[Loaded] = []
        self._written: dict[str, bytes] = {}  # last data written to variables, by symbol
        self._traced = TracedBuild(
            recipe.source,
            recipe.name,
            device,
            functools.partial(self.load, is_traced=True),
            recipe.collector_of,
            self._own_module,
            self._spare.append,
        )
        self._tracer = LaunchTracer(self._traced)

    def prepare(
        self, request: LaunchRequest, args: Sequence[object], seen: Sequence[View], stream: object
    ) -> PreparedLaunch:
        """Check and pack a launch; ``seen`` is the result of `views` for the arguments."""
        recipe, device = self._recipe, self._device
        recipe.signature.check(seen)
        arrays = list(placed(seen))
        handle = stream_of([view.framework for view in arrays], device, stream)
        loaded, config = self._allowed(request, handle)
        packed = pack(recipe.name, self._parameters, args, seen, device)
        if any(view.framework == "other" for view in arrays):
            with _driver.on_device(device):
                wait_for_producers(arrays, handle, device)
        signals = [one for one in args if isinstance(one, RankArgument)]
        tracer: Tracer = self._tracer
        if signals:
            tracer = tracing().rank_tracer(self._traced, signals, config)
        # Keep the stream alive too: a launch into a destroyed stream ends the process.
        keep = tuple(args), stream
        parts = (loaded.function, config, packed, keep, device, tracer)
        if loaded.watch is None:
            return PreparedLaunch(*parts)
        return (UnawaitedLaunch if signals else WatchedLaunch)(loaded.watch, *parts)

    def _own_module(self) -> Loaded:
        """Return an unused traced module; the device's context is current."""
        if self._spare:
            return self._spare.pop()
        loaded = self._load(self._recipe, self._device, is_traced=True, is_own=True)
        self._own.append(loaded)
        for symbol, data in self._written.items():
            self._upload(loaded, symbol, data)
        return loaded

    def repeated(
        self, launch: PreparedLaunch, args: Sequence[object], seen: Sequence[View]
    ) -> RepeatedCall | None:
        """Return the prepared launch as a call for later arguments of the same kinds, or None."""
        if type(launch) is not PreparedLaunch:  # a debug build waits for the kernel's end
            return None
        if not is_on_one_device(seen, self._device):  # peer allocations are checked in every call
            return None
        return repeated_call(launch, self._parameters, args, seen, self._device)

    @cached_property
    def _parameters(self) -> Sequence[Parameter]:
        return self._recipe.signature.typed(self.load().entry.parameters)

    def _allowed(self, request: LaunchRequest, stream: int) -> tuple[Loaded, LaunchConfig]:
        """Return the loaded kernel, and a checked launch configuration."""
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
                cooperative=request.cooperative,
            )
            loaded.allow(config, limits)
        return loaded, config

    def load(self, *, is_traced: bool = False) -> Loaded:
        """Load the function once; the device's context is current."""
        loaded = self._loaded.get(is_traced)
        if loaded is None:
            loaded = self._load(self._recipe, self._device, is_traced)
            self._loaded[is_traced] = loaded
            for symbol, data in self._written.items():
                self._upload(loaded, symbol, data)
        return loaded

    def variable(self, name: str) -> Variable:
        """Return a variable of the module."""
        if self._recipe.source.is_ptx:
            raise ArgumentError.broken(
                "name",
                f"{name!r}",
                "the source is a PTX module, whose variables only the CPU back end reads",
                'Pass device="cpu", or pass the values as an argument',
            )
        with _driver.on_device(self._device):
            module = self.load().module
            found = symbol_named(module.path, name, self._recipe.source.name)
            address = _address(module, found.symbol, name)
        memory = _VariableOnDevice(self, found, address)
        elements = elements_of_variable(self._recipe.source, name)
        return Variable(name, found.size_bytes, memory, elements)

    def read_variable(self, address: int, size_bytes: int) -> bytes:
        """Wait for the device's work, and return a variable's bytes."""
        _driver.synchronize_device(self._device)
        return _driver.download(self._device, address, size_bytes)

    def write_variable(self, symbol: str, data: bytes) -> None:
        """Wait for the device's work, and fill a variable in all modules, traced ones included."""
        _driver.synchronize_device(self._device)
        self._written[symbol] = data
        with _driver.on_device(self._device):
            for loaded in (*self._loaded.values(), *self._own):
                self._upload(loaded, symbol, data)

    def _upload(self, loaded: Loaded, symbol: str, data: bytes) -> None:
        _driver.upload(self._device, _address(loaded.module, symbol, symbol), data)


class _VariableOnDevice(NamedTuple):
    build: CudaBuild
    symbol: Symbol
    address: int

    def read(self) -> bytes:
        return self.build.read_variable(self.address, self.symbol.size_bytes)

    def write(self, data: bytes) -> None:
        self.build.write_variable(self.symbol.symbol, data)


def _address(module: Module, symbol: str, name: str) -> int:
    address = module.global_address(symbol)
    if address is None:
        raise ArgumentError.broken(
            "name",
            f"{name!r}",
            "the driver does not find this variable, which is static",
            "Declare it without static and outside of unnamed namespaces",
        )
    return address


# --- occupancy --------------------------------------------------------------------------------

_PROBE = """
extern "C" __global__ void probe() {}
"""


@functools.cache
def max_active_clusters(device: int, size: int) -> int:
    """Ask the driver for the max active clusters of ``size`` blocks, one block per SM.

    A cluster lies within one GPC, and the number of SMs per GPC differs from chip to chip.
    """
    recipe = Recipe(source_of(_PROBE), "probe", None, None, lambda: None)
    with _driver.on_device(device):
        limits = _driver.require_device(device)
        loaded = CudaBuild(recipe, device).load()
        shared = limits.shared_bytes  # so that no two blocks share an SM
        config = LaunchConfig((size, 1, 1), (1, 1, 1), (size, 1, 1), shared, False, 0)
        loaded.allow(config, limits)
        return _driver.max_active_clusters(loaded.function, config)
