"""Direct calls of a kernel like earlier ones: they launch, or are refused, as a first call is."""

from __future__ import annotations

import functools
import inspect
import itertools
import struct
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_arrays import Cupy, CupyArray, Tensor, Torch
from fake_driver import Driver

from tmaasync import Kernel, LaunchError, Pointer, create_tma_tile
from tmaasync.errors import TMAError
from tmaasync.kernel import kernel as kernel_module
from tmaasync.kernel import repeated
from tmaasync.kernel.observed import observe
from tmaasync.tile import StridedTensor, TMATensorTileArray

SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
extern "C" __global__ void mixed(
    const __grid_constant__ Tile tile, float* out, const float* in, int count, float scale
) {
    if (count < 0) tile.prefetch_descriptor();
}
"""
SIZES = (128, 8, 8, 4, 4)
SHAPE = (32, 64)


class Library:
    """Makes arrays of CuPy or of torch, over memory of the host."""

    def __init__(self, name: str) -> None:
        self.is_torch = name == "torch"
        self.stream = 5 if self.is_torch else 7

    def over(self, array: Any, device: int = 0) -> Any:
        if self.is_torch:
            return Tensor(array, device=f"cuda:{device}")
        made = CupyArray(array)
        made.data.device_id = device
        return made

    def array(
        self, shape: tuple[int, ...] = SHAPE, dtype: Any = np.float32, device: int = 0
    ) -> Any:
        return self.over(np.zeros(shape, dtype), device)


class Machine:
    """A driver with two devices, and kernels that were compiled for it."""

    def __init__(self, library: Library, use_driver: Callable[[object], None]) -> None:
        self.library = library
        self.driver = Driver(2, argument_sizes=SIZES)
        use_driver(self.driver)
        self.tile = create_tma_tile(library.array(), (8, 32))
        self.torch: Any = sys.modules["torch"]

    def kernel(self) -> Kernel:
        return Kernel(SOURCE, "mixed", types={"Tile": self.tile})

    def arguments(self) -> list[Any]:
        library = self.library
        return [self.tile, library.array(), library.array((7,)), 3, 0.5]

    def launched(self, call: Callable[[], None]) -> Any:
        """What a call passes to the driver, or the error that it raises."""
        self.driver.launched.clear()
        self.driver.launch_configs.clear()
        try:
            call()
        except TMAError as error:
            return type(error), str(error)
        (launch,), (config,) = self.driver.launched, self.driver.launch_configs
        return launch, config.gridDimX, config.blockDimX, config.sharedMemBytes, config.numAttrs


LIBRARIES = ("cupy", "torch", "torch without guards")


@pytest.fixture(params=LIBRARIES)
def machine(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    use_driver: Callable[[object], None],
) -> Machine:
    monkeypatch.setitem(sys.modules, "cupy", Cupy() if request.param == "cupy" else None)
    monkeypatch.setitem(
        sys.modules, "torch", Torch(has_guards=request.param != "torch without guards")
    )
    return Machine(Library(request.param.split()[0]), use_driver)


def test_a_call_like_an_earlier_one_is_not_checked_again(
    machine: Machine, prepared: list[object]
) -> None:
    kernel, library = machine.kernel(), machine.library
    kernel((4, 2), 32, machine.arguments())
    for number in range(1, 4):
        out, source = library.array((number, 5)), library.array((number,))
        tile = create_tma_tile(library.array(), (8, 32))
        kernel((4, 2), 32, (tile, out, source, number, number / 2))
        ((stream, _, packed),) = machine.driver.launched[number:]
        assert stream == library.stream
        assert packed == [
            tile.descriptor,
            struct.pack("<Q", out.array.ctypes.data),
            struct.pack("<Q", source.array.ctypes.data),
            struct.pack("<i", number),
            struct.pack("<f", number / 2),
        ]
        native = machine.driver.launch_configs[number]
        assert (native.gridDimX, native.gridDimY, native.blockDimX) == (4, 2, 32)
    assert len(prepared) == 1


def changed(machine: Machine) -> dict[str, tuple[int, Any]]:
    """Arguments that take the place of another one: by their name, at a position."""
    library = machine.library
    whole = np.zeros((64, 64), np.float32)
    moved = library.array()
    stale = create_tma_tile(moved, (8, 32))
    if library.is_torch:
        moved.is_freed = True
    else:
        moved.data.ptr += 1 << 20
    negated = Tensor(np.zeros(4, np.float32), device="cuda:0", is_negated=True)
    nested = Tensor(np.zeros(4, np.float32), device="cuda:0")
    nested.is_nested = True
    freed = Tensor(np.zeros(4, np.float32), device="cuda:0")
    freed.is_freed = True
    needing = Tensor(np.zeros(4, np.float32), device="cuda:0", requires_grad=True)
    freed_alike = Tensor(np.zeros(SHAPE, np.float32), device="cuda:0")
    freed_alike.is_freed = True
    return {
        "another tile of the same layout": (0, create_tma_tile(library.array(), (8, 32))),
        "a tile of another layout": (0, create_tma_tile(library.array((16, 64)), (8, 32))),
        "a tile of another type": (0, create_tma_tile(library.array(), (16, 32))),
        "a tile on another device": (0, create_tma_tile(library.array(device=1), (8, 32))),
        "a tile whose array was moved": (0, stale),
        "an array in place of a tile": (0, library.array()),
        "a tile in place of an array": (1, machine.tile),
        "another shape": (1, library.array((3, 5, 2))),
        "an empty array": (1, library.array((0, 4))),
        "another type": (1, library.array((4,), np.int32)),
        "an array that is not contiguous": (1, library.over(whole[:, :8])),
        "an array on another device": (1, library.array(device=1)),
        "an array of the host": (2, np.zeros(4, np.float32)),
        "a negated tensor": (1, negated),
        "a nested tensor": (1, nested),
        "a tensor whose memory is gone": (1, freed),
        "one of the same shape": (1, freed_alike),
        "a tensor that requires grad": (1, needing),
        "a pointer": (1, Pointer(library.over(whole[:, :8]))),
        "a strided tensor": (1, StridedTensor(library.array())),
        "an array of another library": (2, CupyArray(np.zeros(4, np.float32))),
        "a number in place of an array": (1, 1 << 40),
        "a large int": (3, 2**32 - 1),
        "a negative int": (3, -(2**31)),
        "an int that is too large": (3, 2**32),
        "an int that is too small": (3, -(2**31) - 1),
        "a float in place of an int": (3, 1.5),
        "a bool": (3, True),
        "a NumPy int": (3, np.int32(9)),
        "a NumPy int of another size": (3, np.int64(9)),
        "an int in place of a float": (4, 2),
        "a NumPy float": (4, np.float32(0.25)),
        "a NumPy float of another size": (4, np.float64(0.25)),
        "bytes": (3, b"\1\0\0\0"),
        "None": (3, None),
    }


@pytest.mark.parametrize("before", ["as it was", "the same"])
def test_what_differs_is_launched_or_refused_as_in_a_first_call(
    machine: Machine, before: str
) -> None:
    for name, (position, value) in changed(machine).items():
        arguments = machine.arguments()
        kernel = machine.kernel()
        kernel(2, 32, arguments)
        arguments[position] = value
        call = functools.partial(kernel, 2, 32, tuple(arguments))
        if before == "the same":  # so that this is the call that is repeated, if it is accepted
            machine.launched(call)
        first = functools.partial(machine.kernel(), 2, 32, tuple(arguments))

        assert machine.launched(call) == machine.launched(first), name


OPTIONS: dict[str, Any] = {
    "cluster": 2,
    "shared_mem": 1 << 10,
    "pdl": True,
    "cooperative": True,
    "stream": 11,
    "device": 0,
}


def test_every_option_of_a_launch_makes_it_another_one(machine: Machine) -> None:
    """An option that is new in `Kernel` has to be in the key of repeated calls, and here."""
    parameters = inspect.signature(Kernel.__call__).parameters.values()
    assert OPTIONS.keys() == {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    kernel = machine.kernel()
    each: list[dict[str, Any]] = [{name: value} for name, value in OPTIONS.items()]
    for given in ({}, *each):
        for _ in range(2):
            machine.driver.launch_configs.clear()
            kernel(2, 32, machine.arguments(), **given)
            (native,) = machine.driver.launch_configs
            attributes = [int(one.id) for one in native.attrs]
            assert len(attributes) == len(given.keys() & {"cluster", "pdl", "cooperative"}), given
            assert int(native.hStream) == given.get("stream", machine.library.stream)
            assert native.sharedMemBytes == given.get("shared_mem", 0)


@pytest.mark.sampled(11)
@pytest.mark.parametrize(
    ("machine", "options"),
    list(
        zip(
            itertools.cycle(LIBRARIES),
            [
                {"stream": 11},
                {"device": 0},
                {"device": 1},
                {"cooperative": True},
                {"cooperative": 1},
                {"pdl": True},
                {"shared_mem": 64 << 10},
                {"shared_mem": 1 << 20},
                {"cluster": 2},
                {"cluster": 3},
                {"grid": 1.0},
                {"grid": (2.0, 1)},
                {"grid": (True, 1)},
                {"pdl": 0},
                {"shared_mem": 0.0},
                {"grid": [2, 1]},
                {"block": 0},
                {"block": 2048},
                {"stream": "none"},
                {"args": ()},
                {"args": "text"},
                {"args": None},
            ],
        )
    ),
    indirect=["machine"],
    ids=str,
)
def test_a_launch_of_another_kind_is_made_or_refused_as_a_first_one(
    machine: Machine, options: dict[str, Any]
) -> None:
    given = {"grid": 2, "block": 32, "args": machine.arguments(), **options}
    kernel, other = machine.kernel(), machine.kernel()
    for grid in (1, 2, (1, 1), (2, 1)):
        kernel(grid, 32, machine.arguments())
        kernel(grid, 32, machine.arguments(), shared_mem=0)
    if "args" not in options:
        given["args"] = machine.arguments()
    first = machine.launched(lambda: other(**given))
    for _ in range(3):
        assert machine.launched(lambda: kernel(**given)) == first


def test_a_call_of_a_mix_of_libraries_needs_one_stream(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if machine.library.is_torch:
        monkeypatch.setitem(sys.modules, "cupy", Cupy())
    machine.torch.stream = 7
    kernel, arguments = machine.kernel(), machine.arguments()
    arguments[1] = Tensor(np.zeros(4, np.float32), device="cuda:0")
    arguments[2] = CupyArray(np.zeros(4, np.float32))
    for _ in range(2):
        kernel(2, 32, arguments)
    assert [stream for stream, *_ in machine.driver.launched] == [7, 7]

    machine.torch.stream = 6
    with pytest.raises(LaunchError, match="one launch runs on one stream"):
        kernel(2, 32, arguments)


def test_where_tensors_may_have_tangents_all_is_checked(
    machine: Machine, prepared: list[object]
) -> None:
    mode = machine.torch.autograd.forward_ad
    kernel, arguments = machine.kernel(), machine.arguments()
    for mode._current_level, checked in ((-1, 1), (-1, 1), (0, 1 + machine.library.is_torch)):
        kernel(2, 32, arguments)
        assert len(prepared) == checked


def test_alternating_calls_are_all_remembered(machine: Machine, prepared: list[object]) -> None:
    kernel = machine.kernel()
    tiles = [
        create_tma_tile(machine.library.array((rows, 64), device=device), (8, 32))
        for rows, device in ((16, 0), (32, 0), (32, 1), (64, 1))
    ]
    for _ in range(3):
        for tile in tiles:
            out, source = (machine.library.array(device=tile.device or 0) for _ in range(2))
            kernel(2, 32, (tile, out, source, 3, 0.5))
            assert machine.driver.launched[-1][1:] == (
                tile.device,
                [
                    tile.descriptor,
                    *(struct.pack("<Q", one.array.ctypes.data) for one in (out, source)),
                    *(struct.pack("<i", 3), struct.pack("<f", 0.5)),
                ],
            )
    assert len(prepared) == len(tiles)


def test_ints_of_either_sign_are_remembered(machine: Machine, prepared: list[object]) -> None:
    kernel, arguments = machine.kernel(), machine.arguments()
    for _ in range(3):
        for number in (7, -7, 2**31 - 1, -(2**31)):
            arguments[3] = number
            kernel(2, 32, arguments)
            packed = machine.driver.launched[-1][2]
            assert packed[3] == struct.pack("<i", number)
    assert len(prepared) == 1


def test_an_int_beyond_the_declared_type_is_refused_in_repeated_calls_too(machine: Machine) -> None:
    kernel, arguments = machine.kernel(), machine.arguments()
    for number in (7, 2**31, 7, 2**32 - 1, -(2**31) - 1):
        arguments[3] = number
        if number == 7:
            kernel(2, 32, arguments)
            continue
        with pytest.raises(LaunchError, match=rf"args\[3\] is {number}; .* signed integer"):
            kernel(2, 32, arguments)
    assert len(machine.driver.launched) == 2


def test_no_more_is_kept_than_there_is_room_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated, "_MAX_REQUESTS", 3)
    kernel = machine.kernel()
    for grid in range(1, 8):
        kernel(grid, 32, machine.arguments())
        assert len(kernel._repeated) <= 3
    for rows in range(8, 80, 8):
        tile = create_tma_tile(machine.library.array((rows, 64)), (8, 32))
        kernel(1, 32, [tile, *machine.arguments()[1:]])
    assert {len(calls) for calls in kernel._repeated.values()} <= {1, repeated._MAX_CALLS}


def test_no_array_is_kept_alive(machine: Machine) -> None:
    kernel, arguments = machine.kernel(), machine.arguments()
    for _ in range(2):
        kernel(2, 32, arguments)
    arrays = [weakref.ref(one) for one in (arguments[1], arguments[2])]
    del arguments
    assert [one() for one in arrays] == [None, None]


def test_pointers_and_strided_tensors_are_repeated_where_only_the_address_differs(
    machine: Machine, prepared: list[object]
) -> None:
    machine.driver._argument_sizes = (8, 32)
    source = (
        "#include <tmaasync/tmaasync.cuh>\nusing namespace tmaasync;\n"
        'extern "C" __global__ void strided(float* out, const __grid_constant__ In in) {}\n'
    )

    def arguments(rows: int = 4, dtype: Any = np.float32) -> tuple[Any, Any, Any, Any]:
        out, array = machine.library.array((4,)), machine.library.array((rows, 8), dtype)
        return Pointer(out), StridedTensor(array), out, array

    kernel = Kernel(source, "strided", types={"In": arguments()[1]})
    for _ in range(3):
        pointer, tensor, *arrays = arguments()
        kernel(1, 32, (pointer, tensor))
        assert machine.driver.launched[-1][2] == [pointer.argument, tensor.argument]
    assert len(prepared) == 1

    pointer, tensor, *arrays = arguments(rows=5)
    kernel(1, 32, (pointer, tensor))
    assert machine.driver.launched[-1][2] == [pointer.argument, tensor.argument]
    for array in arrays:
        if machine.library.is_torch:
            array.is_freed = True
        else:
            array.data.ptr += 16
    for args, what in [((pointer, arguments()[1]), 0), ((arguments()[0], tensor), 1)]:
        with pytest.raises(TMAError, match=rf"args\[{what}\].*freed, resized or moved"):
            kernel(1, 32, args)
    with pytest.raises(LaunchError, match="was built with In"):
        kernel(1, 32, arguments(dtype=np.int32)[:2])


def test_arrays_of_tiles_are_looked_at_in_each_call(
    machine: Machine, use_driver: Callable[[object], None]
) -> None:
    use_driver(Driver(argument_sizes=(16,)))
    arrays = [machine.library.array() for _ in range(2)]
    tiles = TMATensorTileArray([create_tma_tile(array, (8, 32)) for array in arrays])
    source = (
        "#include <tmaasync/tmaasync.cuh>\nusing namespace tmaasync;\n"
        'extern "C" __global__ void several(const __grid_constant__ Tiles tiles) {}\n'
    )
    kernel = Kernel(source, "several", types={"Tiles": tiles})
    kernel(1, 32, (tiles,))
    if machine.library.is_torch:
        arrays[1].is_freed = True
    else:
        arrays[1].data.ptr = 0
    with pytest.raises(TMAError, match=r"args\[0\]\[1\].*freed, resized or moved"):
        kernel(1, 32, (tiles,))


def test_an_observer_sees_every_call_and_may_skip_it(machine: Machine) -> None:
    kernel = machine.kernel()
    kernel(2, 32, machine.arguments())
    with observe(launches=False) as observer:
        kernel(2, 32, machine.arguments())
    assert len(observer.kernels) == len(machine.driver.launched) == 1
    with observe() as observer:
        kernel(2, 32, machine.arguments())
    assert len(observer.kernels) == 1
    assert len(machine.driver.launched) == 2


def test_a_repeated_call_costs_few_calls_of_python(machine: Machine) -> None:
    """Each takes 0.05 us or more; a call that checks everything makes 85 of them and more.

    The eleven are the call, two that look at the tile, one for each array or one for all tensors,
    the stream's, and four to pack and launch.
    """
    kernel, arguments = machine.kernel(), machine.arguments()
    kernel(2, 32, arguments)
    package = str(Path(kernel_module.__file__).parents[1])
    called: list[str] = []

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        kernel(2, 32, arguments)
    finally:
        sys.setprofile(None)
    assert len(called) <= 11, called
