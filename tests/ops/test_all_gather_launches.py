"""What operations of several GPUs ask of the driver: all is prepared before the first launch."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from arrays_in_memory import aligned
from fake_arrays import CupyArray
from fake_driver import Driver

from tmaasync import ArgumentError, enable_peer_access, ops
from tmaasync.kernel import backend_of
from tmaasync.ops._call_cache import forget

GEMM_ARGUMENTS = (*[128] * 4, 16, 16, 160, 76, 8, 4, 4, 4)
SCALED_GATHER_ARGUMENTS = (*[128] * 5, 8, *[16] * 3, 128, 8, 8, 8, 160, 76, 8, 4, 4, 4)
SCALED_SCATTER_ARGUMENTS = (*[128] * 5, 16, 8, 8, 160, 76, 8, 8, 8, 4, 4, 4)
GATHER_ARGUMENTS = (*[128] * 9, 160, 76, 8)
ALL_TO_ALL_ARGUMENTS = (*[512] * 9, 8, 8, 160, 76, 8, 64, 16)
GPUS = 2


def fake_cupy() -> Any:
    """Return a CuPy whose arrays are NumPy arrays, each made on the current device."""
    current = [0]

    class Device:
        def __init__(self, ordinal: int) -> None:
            self.ordinal = ordinal

        def __enter__(self) -> None:
            current.append(self.ordinal)

        def __exit__(self, *_: object) -> None:
            current.pop()

    cupy: Any = ModuleType("cupy")
    streams = [SimpleNamespace(ptr=70 + device) for device in range(GPUS)]
    cupy.cuda = SimpleNamespace(
        Device=Device,
        get_current_stream=lambda device=None: streams[current[-1] if device is None else device],
        Stream=SimpleNamespace(from_external=lambda stream: nullcontext()),
        runtime=SimpleNamespace(CUDARuntimeError=RuntimeError),
    )
    function = SimpleNamespace(kernel=SimpleNamespace(ptr=99))
    cupy.RawModule = lambda path: SimpleNamespace(get_function=lambda name: function)
    cupy.empty = lambda shape, dtype: CupyArray(aligned(shape, dtype, fill=0xFF), current[-1])
    return cupy


def columns_on(device: int, dtype: Any, *shape: int) -> Any:
    """Return a matrix whose columns are contiguous."""
    return CupyArray(aligned(shape[::-1], dtype).T, device)


def on(device: int, *shape: int) -> Any:
    return CupyArray(aligned(shape, np.float16, fill=0xFF), device)


@pytest.fixture
def driver(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    use_driver: Callable[[object], None],
) -> Iterator[Driver]:
    found = Driver(devices=GPUS, argument_sizes=request.param)
    use_driver(found)
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    enable_peer_access(range(GPUS))
    yield found
    for device in range(GPUS):
        backend_of(device).kept.clear()
    forget()
    gc.collect()  # what a traceback kept alive frees its memory of this driver


def launches_of(driver: Driver, call: Callable[[], object]) -> list[tuple[int, int | None]]:
    """Return the stream and the device of each launch, and check that nothing else was done."""
    driver.done.clear()
    driver.launched.clear()
    call()
    assert driver.done == []
    return [(stream, device) for stream, device, _ in driver.launched]


@pytest.mark.usefixtures("overlapped")
@pytest.mark.parametrize("driver", [GEMM_ARGUMENTS], indirect=True)
def test_a_repeated_matmul_launches_once_a_rank_and_does_nothing_else(driver: Driver) -> None:
    a, b = [on(0, 96, 64), on(1, 40, 64)], [on(0, 64, 128), on(1, 64, 72)]
    out = [on(0, 136, 128), on(1, 136, 72)]
    ops.all_gather_matmul(a, b, out=out)
    first = driver.launched[-2:]

    again = launches_of(driver, lambda: ops.all_gather_matmul(a, b, out=out))

    assert again == [(70, 0), (71, 1)]
    assert [arguments for *_, arguments in driver.launched] == [own for *_, own in first]
    moved = [on(0, 96, 64), on(1, 40, 64)]
    launches_of(driver, lambda: ops.all_gather_matmul(moved, b, out=out))
    for (*_, arguments), array in zip(driver.launched, moved, strict=True):
        assert [int.from_bytes(one[:8], "little") for one in arguments[:2]] == [array.data.ptr] * 2


@pytest.mark.parametrize(
    ("driver", "call"),
    [
        (SCALED_GATHER_ARGUMENTS, ops.all_gather_scaled_matmul),
        (SCALED_SCATTER_ARGUMENTS, ops.scaled_matmul_reduce_scatter),
    ],
    indirect=["driver"],
    ids=["gather", "scatter"],
)
def test_a_repeated_scaled_matmul_launches_with_the_operands_and_scales_of_the_call(
    driver: Driver, call: Any
) -> None:
    gathers = call is ops.all_gather_scaled_matmul

    def operands() -> list[Any]:
        return [
            [CupyArray(aligned((96, 256), np.uint8), device) for device in range(GPUS)],
            *(
                [columns_on(device, dtype, *shape) for device in range(GPUS)]
                for dtype, shape in (
                    (np.uint8, (256, 128)),
                    (np.float32, (96, 2)),
                    (np.float32, (2, 1)),
                )
            ),
        ]

    names = {"a_dtype": "float8_e4m3fn", "b_dtype": "float8_e4m3fn"}
    rows = 192 if gathers else 48
    out = [CupyArray(aligned((rows, 128), np.float32), device) for device in range(GPUS)]
    given, moved = operands(), operands()
    call(*given, out=out, **names)
    assert launches_of(driver, lambda: call(*given, out=out, **names)) == [(70, 0), (71, 1)]
    launches_of(driver, lambda: call(*moved, out=out, **names))
    for rank, (*_, arguments) in enumerate(driver.launched):
        starts = [int.from_bytes(one[:8], "little") for one in arguments[:6]]
        a, b, scale_a, scale_b = (one[rank].data.ptr for one in moved)
        to = out[rank].data.ptr
        wanted = [a, a, b, scale_b, to, scale_a] if gathers else [a, b, scale_a, scale_b, to]
        assert starts[: len(wanted)] == wanted
    with pytest.raises(ArgumentError, match="the kernel multiplies float8"):
        call(*given, out=out)


@pytest.mark.parametrize("driver", [GATHER_ARGUMENTS], indirect=True)
def test_a_repeated_gather_stores_into_the_outputs_of_the_call(driver: Driver) -> None:
    own = [on(0, 96, 64), on(1, 40, 64)]
    ops.all_gather(own, out=[on(0, 136, 64), on(1, 136, 64)])
    out = [on(0, 136, 64), on(1, 136, 64)]

    assert launches_of(driver, lambda: ops.all_gather(own, out=out)) == [(70, 0), (71, 1)]

    for (*_, arguments), array, row in zip(driver.launched, own, (0, 96), strict=True):
        addresses = [int.from_bytes(one[:8], "little") for one in arguments[:3]]
        assert addresses == [array.data.ptr, *(one.data.ptr + row * 128 for one in out)]


@pytest.mark.parametrize("driver", [ALL_TO_ALL_ARGUMENTS], indirect=True)
def test_a_repeated_all_to_all_moves_the_arrays_of_the_call(driver: Driver) -> None:
    counts, ends = ([CupyArray(np.ones(size, np.int32), device) for device in range(GPUS)]
                    for size in (4, 2))  # fmt: skip
    tokens = [on(0, 96, 64), on(1, 40, 64)]
    out = [on(0, 100, 64), on(1, 200, 64)]
    ops.all_to_all(tokens, counts, out, ends=ends)
    first = [arguments for *_, arguments in driver.launched[-2:]]

    assert launches_of(
        driver, lambda: ops.all_to_all(tokens, counts, out, ends=ends)
    ) == [(70, 0), (71, 1)]  # fmt: skip
    assert [arguments for *_, arguments in driver.launched] == first
    moved = [on(0, 96, 64), on(1, 40, 64)]
    launches_of(driver, lambda: ops.all_to_all(moved, counts, out, ends=ends))
    for (*_, arguments), before, new, old in zip(
        driver.launched, first, moved, tokens, strict=True
    ):
        address, last = (int.from_bytes(one[0][:8], "little") for one in (arguments, before))
        assert address - last == new.data.ptr - old.data.ptr
        assert arguments[1:] == before[1:]


@pytest.mark.usefixtures("overlapped")
@pytest.mark.parametrize("driver", [GEMM_ARGUMENTS], indirect=True)
def test_a_repeated_call_notices_other_streams_arrays_and_layouts(driver: Driver) -> None:
    a, b = ([on(device, 64, 64) for device in range(GPUS)] for _ in range(2))
    out = [on(device, 128, 64) for device in range(GPUS)]
    for _ in range(2):
        ops.all_gather_matmul(a, b, out=out)
    other = [8, 9]
    ops.all_gather_matmul(a, b, out=out, streams=other)  # a workspace of its own

    assert launches_of(driver, lambda: ops.all_gather_matmul(a, b, out=out)) == [(70, 0), (71, 1)]
    assert launches_of(
        driver, lambda: ops.all_gather_matmul(a, b, out=out, streams=other)
    ) == [(8, 0), (9, 1)]  # fmt: skip
    with pytest.raises(ArgumentError, match=r"streams is \[8\]; a has 2 arrays"):
        ops.all_gather_matmul(a, b, out=out, streams=[8])
    wide = [on(device, 64, 72) for device in range(GPUS)]
    with pytest.raises(ArgumentError, match="a has 72 columns"):
        ops.all_gather_matmul(wide, b, out=out)


@pytest.mark.parametrize("depth", [64, 72])  # rows of 72 elements do not start on lines
@pytest.mark.parametrize("driver", [GEMM_ARGUMENTS], indirect=True)
def test_ranks_that_share_a_gpu_need_streams_and_share_its_sms(driver: Driver, depth: int) -> None:
    a, b = ([on(0, *shape) for _ in range(2)] for shape in ((4096, depth), (depth, 1024)))
    out = [on(0, 8192, 1024), on(0, 8192, 1024)]
    with pytest.raises(ArgumentError, match=r"a\[1\] is .*rank 0 has the same device and stream"):
        ops.all_gather_matmul(a, b, out=out)
    assert driver.launched == []

    ops.all_gather_matmul(a, b, out=out, streams=[8, 9])

    assert [(stream, device) for stream, device, _ in driver.launched] == [(8, 0), (9, 0)]
    grids = [config.gridDimX for config in driver.launch_configs[-2:]]
    assert sum(grids) <= 132
    assert [config.numAttrs for config in driver.launch_configs[-2:]] == [0, 0]  # no clusters
