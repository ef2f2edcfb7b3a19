"""Timelines: rows that hide nothing, and texts that neither overlap nor leave the picture."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from chip_notes import Chip

from tmaasync import ArgumentError, Swizzle, create_tma_tile, emulate, ops
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.tiles import gemm_kernel
from tmaasync.trace import Activity, Lane, LaneSpan, StageState, Trace, plot, record
from tmaasync.trace.pipelines import Pipeline, Stage, StageSpan
from tmaasync.trace.rows import Bar, Row, lane_rows, stage_rows

backend_agg = pytest.importorskip("matplotlib.backends.backend_agg")
to_hex = pytest.importorskip("matplotlib.colors").to_hex


def lane(*spans: tuple[Activity, int, int, str], loads: tuple[int, ...] = ()) -> Lane:
    return Lane(
        block=(0, 0, 0),
        warps=(4,),
        spans=tuple(LaneSpan(*span) for span in spans),
        loads=tuple((time, number) for number, time in enumerate(loads)),
    )


def rows_of(one: Lane, begin: int = 0, end: int = 100) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {}
    for row in lane_rows(one, begin, end):
        rows.setdefault(row.name, []).append(row)
    return rows


# --- rows -------------------------------------------------------------------------------------


def test_wgmma_and_stores_that_overlap_have_rows_of_their_own() -> None:
    rows = rows_of(
        lane(
            (Activity.COMPUTING, 10, 40, "wgmma"),
            (Activity.STORING, 5, 90, "epilogue[0][0]"),
            (Activity.STORING, 20, 60, "epilogue[0][1]"),
            (Activity.WAITING_FULL, 30, 50, "full[1]"),
            loads=(12, 70),
        )
    )

    assert list(rows) == ["waits", "wgmma", "stores", "", "loads"]
    (wgmma,), (stores,), (more,) = rows["wgmma"], rows["stores"], rows[""]
    assert wgmma.bars == (Bar(10, 40, Activity.COMPUTING),)
    assert stores.bars == (Bar(5, 90, Activity.STORING, ("epilogue[0][0]", "[0][0]")),)
    assert more.bars == (Bar(20, 60, Activity.STORING, ("epilogue[0][1]", "[0][1]")),)
    assert rows["loads"][0].loads == ((12, 0), (70, 1))


def test_a_wait_within_another_is_drawn_over_it_and_each_is_labelled_once() -> None:
    (row,) = rows_of(
        lane(
            (Activity.WAITING_FULL, 0, 100, "full[0]"),
            (Activity.WAITING_NAMED, 20, 30, "named barrier 1"),
        )
    )["waits"]

    assert row.bars == (
        Bar(0, 20, Activity.WAITING_FULL),
        Bar(20, 30, Activity.WAITING_NAMED, ("named barrier 1",)),
        Bar(30, 100, Activity.WAITING_FULL, ("full[0]", "[0]")),
    )


def test_many_stores_in_flight_share_the_last_row() -> None:
    stores = [(Activity.STORING, 10 * index, 100, f"out[{index}]") for index in range(8)]

    rows = list(lane_rows(lane(*stores), 0, 100))

    assert [row.name for row in rows] == ["stores", "", "", ""]
    assert [len(row.bars) for row in rows] == [1, 1, 1, 5]
    for row in rows:
        for bar, following in itertools.pairwise(row.bars):
            assert bar.end <= following.begin


def test_a_part_of_the_time_has_only_its_bars() -> None:
    spans = ((Activity.WAITING, 0, 10, "waits"), (Activity.COMPUTING, 15, 40, "wgmma"))

    (row,) = lane_rows(lane(*spans, loads=(9, 45)), 20, 30)

    assert (row.name, row.bars) == ("wgmma", (Bar(20, 30, Activity.COMPUTING),))


def test_a_stage_is_empty_where_nothing_is_in_it() -> None:
    spans = (StageSpan(StageState.FILLING, 10, 30, 0), StageSpan(StageState.READING, 30, 50, 0))
    stage = Stage(full=64, empty=None, buffers=(0,), spans=spans)
    pipeline = Pipeline(name="full", block=(0, 0, 0), stages=(stage,))

    ((barrier, row),) = stage_rows([pipeline], 20, 60)

    assert (barrier, row.lane) == (64, "full")
    assert row.bars == (
        Bar(20, 30, StageState.FILLING, ("phase 0", "0")),
        Bar(30, 50, StageState.READING),
        Bar(50, 60, StageState.EMPTY),
    )


# --- traces -----------------------------------------------------------------------------------


def recorded(launch: Any, policy: Any = "round_robin", seed: int = 0) -> Trace:
    with emulate.scheduled(policy, seed=seed), record() as kept:
        launch()
    (trace,) = kept.launches
    return trace


def matmul(config: TileConfig, size: int = 256) -> Trace:
    """A persistent GEMM whose stores overlap the next tile's wgmma."""
    a = np.ones((size, 512), ml_dtypes.bfloat16)
    operands = [
        create_tma_tile(a, (rows, 64), swizzle=Swizzle.B128)
        for rows in (config.block_m, config.block_n)
    ]
    c = create_tma_tile(np.zeros((size, size), np.float32), (64, 32), swizzle=Swizzle.B128)
    types = [tile.cuda_type for tile in (*operands, c)]
    kernel = gemm_kernel(types, False, True, config)
    threads = 128 * (1 + config.block_m // 64)
    return recorded(lambda: kernel(1, threads, (*operands, c, size, size, 512, 1)), "random")


def attention() -> Trace:
    q, k, v = (np.ones((1, 256, 2, 64), ml_dtypes.bfloat16) for _ in range(3))
    return recorded(lambda: ops.attention(q, k, v, causal=True))


def copy() -> Trace:
    return recorded(lambda: ops.copy(np.ones((512, 256), np.float32)[:, :200]))


def chip() -> Trace:
    """A trace of the GPU: a producer, a consumer that multiplies, and stores."""
    one = Chip(warps=8, room=256)
    for stage in (0, 1):
        one(10, "init", 0, barrier=4096 + 8 * stage, amount=1, number=1)
    for tile in range(8):
        barrier, start = 4096 + 8 * (tile % 2), 100 + 100 * tile
        one(start, "expect", 0, number=1, amount=1024, barrier=barrier)
        one(start + 5, "load", 0, shared=1024 * (tile % 2), barrier=barrier)
        for thread in range(128, 256, 32):
            one(
                start + 60,
                "wait",
                thread,
                began_ns=start + 20,
                parity=tile // 2 % 2,
                barrier=barrier,
            )
            one(start + 65, "mma_commit", thread)
            one(start + 90, "mma_wait", thread, began_ns=start + 70, number=0)
        one(start + 92, "store", 128, shared=8192, amount=512)
        one(start + 93, "store_commit", 128)
        one(start + 150, "store_wait_read", 128, began_ns=start + 100, number=0)
    return one.trace()


TRACES = {
    "cooperative gemm": lambda: matmul(TileConfig(2, 128)),
    "narrow gemm": lambda: matmul(TileConfig(1, 128), size=128),
    "attention": attention,
    "copy": copy,
    "GPU": chip,
}


@pytest.fixture(scope="module", params=TRACES)
def trace(request: pytest.FixtureRequest) -> Trace:
    made: Trace = TRACES[request.param]()
    return made


# --- pictures ---------------------------------------------------------------------------------


def boxes(figure: Any) -> list[tuple[str, Any]]:
    """Every text that is shown, with its box in pixels."""
    canvas = backend_agg.FigureCanvasAgg(figure)
    canvas.draw()
    texts = list(figure.texts)
    for axes in figure.axes:
        texts += [*axes.texts, axes.xaxis.label]
        texts += [*axes.get_yticklabels()]
        legend = axes.get_legend()
        texts += legend.get_texts() if legend else []
    # The first panel shares the axis of the second and shows no numbers.
    low, high = figure.axes[1].get_xlim()
    ticks = zip(figure.axes[1].get_xticks(), figure.axes[1].get_xticklabels(), strict=True)
    texts += [label for number, label in ticks if low <= number <= high]
    renderer = canvas.get_renderer()
    return [
        (text.get_text(), text.get_window_extent(renderer))
        for text in texts
        if text.get_text() and text.get_visible()
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("part", "inches"), [(1, 16), (3, 16), (1, 8)])
def test_no_text_overlaps_another_or_is_clipped(trace: Trace, part: int, inches: int) -> None:
    between = None if part == 1 else (trace.end // 3, 2 * trace.end // 3)
    figure = plot(trace, between=between, width=inches)
    width, height = figure.get_size_inches() * figure.dpi

    found = boxes(figure)

    for text, box in found:
        assert 0 <= box.x0 < box.x1 <= width, text
        assert 0 <= box.y0 < box.y1 <= height, text
    for (text, box), (other, its_box) in itertools.combinations(found, 2):
        assert not box.padded(-0.5).overlaps(its_box.padded(-0.5)), (text, other)


def test_a_label_lies_within_its_bar(trace: Trace) -> None:
    figure = plot(trace)
    labelled = boxes(figure)
    for axes in figure.axes:
        bars = [
            path.get_extents(bars.get_transform())
            for bars in axes.collections
            for path in bars.get_paths()
        ]
        inside = {text.get_text() for text in axes.texts if text.get_position()[0] > 0}
        for text, box in labelled:
            if text in inside and box.x0 > axes.bbox.x0:
                assert any(bar.x0 <= box.x0 and box.x1 <= bar.x1 for bar in bars), text


@pytest.mark.sampled(2)
def test_no_arrow_crosses_a_legend_or_a_name(trace: Trace) -> None:
    figure = plot(trace)
    texts = boxes(figure)
    legends = [legend for axes in figure.axes if (legend := axes.get_legend())]
    left = figure.axes[0].bbox.x0
    boxes_there = [legend.get_window_extent() for legend in legends]
    boxes_there += [box for _, box in texts if box.x1 <= left]
    arrows: list[Any] = [one for one in figure.axes[1].patches if hasattr(one, "coords1")]

    assert legends
    for arrow in arrows:
        begin, end = arrow.coords1.transform(arrow.xy1), arrow.coords2.transform(arrow.xy2)
        for x, y in np.linspace(begin, end, 200):
            assert not any(box.contains(x, y) for box in boxes_there)


@pytest.mark.parametrize(
    ("name", "caption"),
    [
        ("copy", "order and dependencies are real; durations are not"),
        ("GPU", "Measured on the GPU, by the cycle counter of the SM"),
    ],
)
def test_the_caption_says_what_the_clock_is(name: str, caption: str) -> None:
    assert caption in plot(TRACES[name]()).texts[1].get_text()


def test_a_dark_picture_has_light_ink(tmp_path: Path) -> None:
    figure = plot(copy(), tmp_path / "dark.png", dark=True)

    assert to_hex(figure.get_facecolor()) == "#131416"
    assert figure.texts[0].get_color() == "#e6edf3"
    head = (tmp_path / "dark.png").read_bytes()[:8]
    assert head == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("width", [7, 201])
def test_a_width_out_of_range_is_refused(width: int) -> None:
    with pytest.raises(ArgumentError, match=rf"width is {width}; it must be from 8 to 200 inches"):
        plot(chip(), width=width)


@pytest.mark.slow
def test_long_names_are_cut(tmp_path: Path) -> None:
    trace = copy()
    object.__setattr__(trace, "kernel_name", "a_kernel" * 60)
    object.__setattr__(trace, "name_of", lambda offset: f"{'barrier_' * 40}{offset}")

    figure = plot(trace, tmp_path / "long.svg")

    width = figure.get_size_inches()[0] * figure.dpi
    for text, box in boxes(figure):
        assert 0 <= box.x0 < box.x1 <= width, text
