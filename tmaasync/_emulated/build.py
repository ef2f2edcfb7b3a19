"""Kernel builds for the emulator, and the arrays that their launches may access."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tmaasync import _arrays, emulate
from tmaasync._arrays import ArrayView, stream_of
from tmaasync._driver import LaunchConfig, PreparedLaunch
from tmaasync._forks import cached_property
from tmaasync._kinds import shown
from tmaasync._source.compile import Parameter, option_values
from tmaasync._source.program import entries_of, required_block
from tmaasync._source.symbols import Symbol, symbol_named
from tmaasync._tile.argument import KernelArgument
from tmaasync._tile.array import TMATensorTileArray
from tmaasync._tile.pointer import PackedArgument, Pointer
from tmaasync.emulate import EmulatedLaunch, Extent
from tmaasync.emulate.chips import Chip
from tmaasync.emulate.chips.current import chip_named
from tmaasync.emulate.chips.occupancy import max_resident_clusters
from tmaasync.emulate.frontend.ptx import target_of
from tmaasync.emulate.launch.queued import StreamQueue
from tmaasync.errors import ArgumentError, ArrayTypeError, LaunchError
from tmaasync.kernel.arguments import Placed, View, pack, require_all_current
from tmaasync.kernel.launch import (
    check_extents,
    check_launch_bounds,
    check_resident,
    check_static_shared,
    cluster_of,
    extents,
    shared_bytes,
)
from tmaasync.kernel.ranks import RankArgument
from tmaasync.kernel.recipe import LaunchRequest, Recipe
from tmaasync.kernel.signature import elements_of_variable
from tmaasync.kernel.variables import Variable


class EmulatedBuild:
    """A kernel on the emulator; grids run one by one, and only `emulate.devices` has streams."""

    def __init__(self, recipe: Recipe, chip: Chip) -> None:
        """Store the recipe, without compiling; without an architecture of its own it has a chip.

        Raises:
            ArgumentError: The kernel is for an architecture that the emulator lacks, or for two.
        """
        self._recipe, self._chip = recipe, _chip_of(recipe) or chip

    @cached_property
    def _program(self) -> emulate.EmulatedProgram:
        return emulate.build(self._recipe.source, self._recipe.name, self._chip)

    @cached_property
    def _parameters(self) -> Sequence[Parameter]:
        source = self._recipe.source
        if source.is_ptx:
            return entries_of(source.text, "", "", "")[self._recipe.name].parameters
        return self._recipe.signature.typed(self._program.parameters)

    def variable(self, name: str) -> Variable:
        """Return a variable of the library."""
        program = self._program
        found = symbol_named(program.path, name, self._recipe.source.name)
        memory = _VariableOnHost(name, found, program.address_of(found.address))
        elements = elements_of_variable(self._recipe.source, name)
        return Variable(name, found.size_bytes, memory, elements)

    def repeated(
        self, launch: PreparedLaunch, args: Sequence[object], seen: Sequence[View]
    ) -> None:
        del launch, args, seen  # a launch takes far longer than its checks

    def prepare(
        self, request: LaunchRequest, args: Sequence[object], seen: Sequence[View], stream: object
    ) -> EmulatedLaunch:
        """Check and pack a launch; ``seen`` is the result of `views` for the arguments."""
        self._recipe.signature.check(seen)
        self._recipe.signature.refuse_references()
        recipe, program, limits = self._recipe, self._program, self._chip.device
        device, stream = request.emulated_device, emulated_stream(stream)
        config = LaunchConfig(
            grid=extents("grid", request.grid),
            block=extents("block", request.block),
            cluster=cluster_of(recipe.name, request.cluster, program.cluster),
            shared_bytes=shared_bytes(program.shared_bytes, request.shared_mem, limits),
            pdl=request.pdl,
            stream=0,
            cooperative=request.cooperative,
        )
        check_extents(config, limits)
        check_launch_bounds(recipe.name, program.max_threads, config)
        _check_block(recipe, config)
        check_static_shared(recipe.name, config, program.static_bytes, limits)
        if config.cooperative:
            clusters = max_resident_clusters(
                self._chip, config, program.registers, program.static_bytes
            )
            resident = clusters * math.prod(config.cluster or (1,))
            check_resident(recipe.name, config, resident, limits)
        packed = pack(recipe.name, self._parameters, args, seen)
        ranks = {one.rank for one in args if isinstance(one, RankArgument)}
        return EmulatedLaunch(
            program,
            config,
            packed,
            tuple(args),
            _arrays_of(seen),
            recipe.collector_of,
            None if device is None else StreamQueue(device, stream),
            ranks.pop() if len(ranks) == 1 else None,
            functools.partial(require_all_current, seen),
        )


def emulated_stream(stream: object) -> Any:
    """Return the stream of a launch: inside `emulate.devices` any value with a hash; else 0.

    Raises:
        ArrayTypeError: ``stream`` is no stream.
    """
    if emulate.current_world() is None:
        return stream_of((), None, stream)
    try:
        hash(stream)
    except TypeError:
        rule = "a stream of an emulated device is a value with a hash"
        raise ArrayTypeError.broken(
            "stream", shown(stream), rule, "Pass an int or a name"
        ) from None
    return 0 if stream is None else stream


def _chip_of(recipe: Recipe) -> Chip | None:
    """Return the chip of a kernel: the one that it names, or a module's target; else None."""
    named = [("arch", recipe.arch)] if recipe.arch is not None else []
    if recipe.source.is_ptx and not named:
        return target_of(recipe.source.text)
    given = option_values(("--gpu-architecture", "-arch"), recipe.source.options)
    named += [(f"options: {option}", arch) for option, arch in given]
    chip: Chip | None = None
    for argument, arch in named:
        found = chip_named(argument, arch)
        if chip not in (None, found):
            rule = f"the kernel is for {chip.arch} too, and runs on one chip"
            raise ArgumentError.broken(argument, f"{arch!r}", rule, "Name one architecture")
        chip = found
    return chip


def _check_block(recipe: Recipe, config: LaunchConfig) -> None:
    """Check a block against ``.reqntid`` of a module, as the driver does on a GPU."""
    if not recipe.source.is_ptx:
        return
    required = required_block(recipe.source.text, recipe.name)
    if required not in (None, config.block):
        rule = f"{recipe.name} is declared with .reqntid {', '.join(map(str, required))}"
        raise LaunchError.broken("block", config.block, rule, f"Pass {required}")


class _VariableOnHost(NamedTuple):
    name: str
    symbol: Symbol
    address: int

    def read(self) -> bytes:
        return ctypes.string_at(self.address, self.symbol.size_bytes)

    def write(self, data: bytes) -> None:
        if not self.symbol.is_writable:
            raise ArgumentError.broken(
                self.name, "const", "the compiler uses its value", "Declare it without const"
            )
        ctypes.memmove(self.address, data, len(data))


# --- the arrays that the launch may access -----------------------------------------------------


def _arrays_of(seen: Sequence[View]) -> list[Iterable[Extent]]:
    """Return the extents of each argument's arrays."""
    return [() if view is None else _extents_of(view) for view in seen]


class _ExtentsOfTiles:
    """Extents that each launch reads again, since the host may assign other tiles in between."""

    def __init__(self, tiles: TMATensorTileArray) -> None:
        self._tiles = tiles

    def __iter__(self) -> Iterator[Extent]:
        return iter((_extent(self._tiles), *_numbered(self._tiles)))


def _extents_of(view: Placed) -> Iterable[Extent]:
    if isinstance(view, TMATensorTileArray):
        return _ExtentsOfTiles(view)
    if isinstance(view, PackedArgument):
        return tuple(_extent(one)._replace(name=name) for name, one in view.arrays)
    members = tuple(view.members()) if isinstance(view, KernelArgument) else (view,)
    return tuple(map(_extent, members) if len(members) == 1 else _numbered(members))


def _numbered(members: Iterable[Placed]) -> Iterator[Extent]:
    return (_extent(one)._replace(member=number) for number, one in enumerate(members))


def _extent(view: Placed) -> Extent:
    low, high = view.byte_bounds
    first, end, may_hold = low - view.address, high - view.address, _is_of_pointers(view)
    array = view if isinstance(view, ArrayView) else view.array_view
    if array is None or array.address != view.address:
        return Extent(view.address, first, end, may_hold_pointers=may_hold)
    return Extent(
        view.address,
        first,
        end,
        array.shape,
        array.strides_bytes,
        array.element.itemsize,
        may_hold,
        is_read_only=_is_read_only(view),
    )


def _is_read_only(view: Placed) -> bool:
    """Return whether an array is read only now; a tile's may have been writable before."""
    if isinstance(view, ArrayView):
        return view.read_only
    return not isinstance(view, Pointer) and _arrays.view(view.array).read_only


def _is_of_pointers(view: Placed) -> bool:
    """Return whether elements may hold pointers: 8-byte integers, structs, bytes or tensor maps."""
    if not isinstance(view, ArrayView):
        return isinstance(view, TMATensorTileArray)
    dtype = view.element.dtype
    return dtype.kind == "V" or (dtype.kind in "iu" and dtype.itemsize in (1, 8))
