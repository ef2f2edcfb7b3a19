"""Run every shipped, example and cookbook kernel under many schedules; nothing may be reported.

    python tools/search_false_alarms.py [--seeds 200] [--cases matmul 05_multicast] [--record]

Each launch is repeated on the same memory with every seed, alternately under the policies
``random`` and ``adversarial``, and all of it is searched for races. Launches of several devices are
repeated together. A launch that already raises in its first run is a defect that the page shows,
and is not repeated. Prints one line per case, and each report; exits with 1 if there is one.
``--record`` puts each case into the results file when it is done.
`make false-alarms` runs it: some hours on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tmaasync import emulate, ops
from tmaasync.emulate.launch.repeated import RepeatedLaunch, exploring
from tmaasync.emulate.launch.schedule import Policy
from tmaasync.errors import TMAError
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._operation import tile_configs

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("tests", "tests/helpers", "benchmarks")]

# Only now are their folders on the path.
from documents.test_documents import blocks  # noqa: E402
from emulate import test_blackwell_copies as copies  # noqa: E402
from emulate import test_blackwell_tiles as tiles  # noqa: E402
from emulate import test_cluster_launch_control as clc  # noqa: E402
from emulate.planted.kernels import KERNELS, builder_of  # noqa: E402
from emulate.tcgen05 import gemms, test_gemm, test_memory_forms  # noqa: E402
from emulate.tcgen05 import test_cluster_launch_scheduler as launched  # noqa: E402
from emulate.tcgen05 import test_pair_gemm as pairs  # noqa: E402
from parity import stream_k, test_stream_k  # noqa: E402
from parity.backends import Emulate  # noqa: E402
from planted_choices import choices  # noqa: E402
from result_files import RESULTS, Section, circumstances_on_cpu, write_part  # noqa: E402

Case = tuple[str, Callable[[], Any]]
RNG = np.random.default_rng(0)


def drawn(*shape: int, dtype: Any = ml_dtypes.bfloat16) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


# --- the cases ------------------------------------------------------------------------------------


def operations() -> Iterator[Case]:
    """Yield small calls of every operation."""
    yield from _matmuls()
    yield from _groups()
    yield from _attentions()
    yield "conv2d", lambda: ops.conv2d(drawn(2, 9, 9, 32), drawn(48, 3, 3, 32), padding=1)
    yield from _copies()


def _matmuls() -> Iterator[Case]:
    a, b = drawn(200, 136), drawn(136, 72)
    yield "matmul", lambda: ops.matmul(a, b)
    yield "matmul transposed", lambda: ops.matmul(a.T, drawn(200, 72), activation="relu")
    yield "matmul split-K", lambda: ops.matmul(drawn(64, 2048), drawn(2048, 64))
    yield "matmul split-K over the grid", split_over_grid
    yield "matmul of several tiles", lambda: ops.matmul(drawn(400, 128), drawn(128, 520))
    yield "matmul of a batch", lambda: ops.matmul(drawn(3, 100, 72), drawn(3, 72, 136))
    yield "matmul int8", lambda: ops.matmul(np.ones((150, 96), np.int8), np.ones((96, 72), np.int8))
    float8 = ml_dtypes.float8_e4m3fn
    yield (
        "matmul float8",
        lambda: ops.matmul(drawn(96, 256, dtype=float8), drawn(64, 256, dtype=float8).T),
    )
    scales = np.ones((200, 2), np.float32), np.ones((1, 2), np.float32)
    yield (
        "scaled_matmul",
        lambda: ops.scaled_matmul(
            drawn(200, 256, dtype=float8), drawn(128, 256, dtype=float8).T, scales[0], scales[1].T
        ),
    )


def _groups() -> Iterator[Case]:
    ends = np.array([60, 60, 200], np.int32)
    yield (
        "grouped_matmul",
        lambda: ops.grouped_matmul(drawn(200, 136), drawn(3, 136, 64), ends),
    )
    yield (
        "k_grouped_matmul",
        lambda: ops.k_grouped_matmul(drawn(200, 136).T, drawn(200, 72), ends),
    )


def _attentions() -> Iterator[Case]:
    q, k = drawn(1, 100, 4, 64), drawn(1, 250, 2, 64)
    yield "attention", lambda: ops.attention(q, k, k)
    yield "attention causal", lambda: ops.attention(q, k, k, causal=True, return_lse=True)
    yield "attention window", lambda: ops.attention(q, k, k, window=(70, 20))
    yield (
        "attention split-KV",
        lambda: ops.attention(drawn(1, 1, 2, 64), drawn(1, 1500, 2, 64), drawn(1, 1500, 2, 64)),
    )
    packed = drawn(120, 2, 64)
    yield (
        "varlen_attention",
        lambda: ops.varlen_attention(
            packed, packed, packed, np.array([0, 30, 30, 120], np.int32), causal=True
        ),
    )
    pages, table = drawn(9, 16, 2, 64), np.array([[4, 0, 7], [8, 2, 1]], np.int32)
    yield (
        "varlen_attention paged",
        lambda: ops.varlen_attention(
            packed, pages, pages, [0, 30, 120], [0, 40, 85], page_table=table
        ),
    )
    # The deterministic form starts from counters that are zero, and a repeated launch finds them as
    # the one before left them.
    yield from (("attention float8", float8_attention), ("attention_backward", backward))
    yield "varlen_attention_backward", varlen_backward


def _copies() -> Iterator[Case]:
    total = np.zeros((70, 64), np.float32)
    for name, count in (("", ()), (" of a stack", (3,))):
        addends = drawn(*count, 70, 64, dtype=np.float32)
        yield f"reduce_add{name}", functools.partial(ops.reduce_add, total, addends)
    yield "copy", lambda: ops.copy(drawn(300, 40, dtype=np.float32))
    yield "copy of a view", lambda: ops.copy(drawn(70, 96, dtype=np.float32)[4:, 8:72])
    yield "copy of bytes", lambda: ops.copy(np.arange(9999, dtype=np.uint8))
    padded = drawn(3, 40, 64, dtype=np.float32)
    yield "ragged_store", lambda: ops.ragged_store(padded, [40, 0, 17])
    yield "ragged_load", lambda: ops.ragged_load(padded[0], cu_seqlens=[0, 15, 15, 40])


def split_over_grid() -> None:
    config = TileConfig(1, 64, split_k=3, over_grid=True)
    with tile_configs(lambda _: config):
        ops.matmul(drawn(100, 512), drawn(512, 72))


def float8_attention() -> None:
    float8 = ml_dtypes.float8_e4m3fn
    packed, ends = drawn(120, 2, 64, dtype=float8), np.array([0, 30, 30, 120], np.int32)
    ops.varlen_attention(packed, packed, packed, ends)
    keys = drawn(1, 700, 2, 64, dtype=float8)
    ops.attention(drawn(1, 1, 2, 64, dtype=float8), keys, keys)


def backward(length: int = 150, kv_heads: int = 1) -> None:
    q, k = drawn(1, length, 2 * kv_heads, 64), drawn(1, length, kv_heads, 64)
    out, lse = ops.attention(q, k, k, causal=True, return_lse=True)
    ops.attention_backward(drawn(*q.shape), q, k, k, out, lse, causal=True)


def varlen_backward() -> None:
    packed, ends = drawn(170, 2, 64), np.array([0, 30, 30, 170], np.int32)
    out, lse = ops.varlen_attention(packed, packed, packed, ends, return_lse=True)
    ops.varlen_attention_backward(drawn(*packed.shape), *(packed, packed, packed), out, lse, ends)


def tests() -> Iterator[Case]:
    """Yield the kernels of the tests of planted defects, without a defect."""
    for name, make in KERNELS.items():
        yield f"planted {name}", functools.partial(sound, name, make)


def sound(name: str, make: Callable[[], Any]) -> None:
    make().run(builder_of(name))


def of_blackwell() -> Iterator[Case]:
    """Yield the kernels of the tests of tcgen05 and tensor memory, without a defect."""
    text, one = choices(gemms.GEMM, test_gemm.DEFECTS), gemms.problem(3, 3)
    yield "tcgen05 GEMM", lambda: test_gemm.run(text, one, None, "round_robin", 0)
    yield "tcgen05 pair GEMM", lambda: pairs.run(pairs.ONE, None, "round_robin", 0)
    yield "tcgen05 GEMM of two pairs", lambda: pairs.run(pairs.TWO, None, "round_robin", 0, 4)
    yield (
        "tcgen05 GEMM by cluster launch",
        lambda: launched.multiply(launched.TEXT, 2, 500, 200, 72),
    )
    yield "tcgen05 copies of a pair", lambda: test_memory_forms.copy_in_pair(None)
    for name in test_memory_forms.CASES:
        form = functools.partial(test_memory_forms.multiply, name, 5, 0)
        yield f"tcgen05 {name}", form
    yield "TMA of pairs", functools.partial(copies.pair, "function")
    yield "TMA of pairs, multicast", functools.partial(copies.pair, "wrapper", mask=True)
    for form in tiles.FORMS:
        yield f"gather4 and scatter4 {form}", functools.partial(tiles.rows_of, form, True)
    one, several = clc.source_of(clc.ONE), clc.source_of(clc.SEVERAL)
    yield "cluster launch control", functools.partial(clc.visit, one, (8, 3, 2), 1)
    yield "cluster launch control of pairs", functools.partial(clc.visit, several, (8, 3, 2), 2)


def float_scaled(m: int, n: int) -> None:
    a, b = (drawn(rows, 700, dtype=ml_dtypes.float8_e4m3fn) for rows in (m, n))
    ops.scaled_matmul(a, b.T, np.ones((m, 6), np.float32), np.ones((6, -(-n // 128)), np.float32))


def float_scaled_groups() -> None:
    float8, ends = ml_dtypes.float8_e4m3fn, np.array([61, 61, 90, 400], np.int32)
    a, b = drawn(500, 700, dtype=float8), drawn(4, 72, 700, dtype=float8)
    scale_a, scale_b = np.ones((500, 6), np.float32), np.ones((4, 6, 1), np.float32)
    ops.scaled_grouped_matmul(a, b.swapaxes(1, 2), scale_a, scale_b, ends)


def block_scaled(m: int, n: int, packs: int, block: int, dtype: str, factor: str) -> None:
    a, b = (np.full((rows, 1600 // packs), 0x22, np.uint8) for rows in (m, n))
    scale_a, scale_b = (np.full((rows, 1600 // block), 0x38, np.uint8) for rows in (m, n))
    options = {"a_dtype": dtype, "b_dtype": dtype, "scale_dtype": factor}
    ops.scaled_matmul(a, b.T, scale_a, scale_b.T, **options)


def block_scaled_groups(packs: int, block: int, dtype: str, factor: str) -> None:
    a, b = (
        np.full((500, 1600 // packs), 0x22, np.uint8),
        np.full((4, 72, 1600 // packs), 0x22, np.uint8),
    )
    scale_a, scale_b = (np.full((*one.shape[:-1], 1600 // block), 0x38, np.uint8) for one in (a, b))
    options = {"a_dtype": dtype, "b_dtype": dtype, "scale_dtype": factor}
    ends = np.array([60, 60, 90, 400], np.int32)
    ops.scaled_grouped_matmul(a, b.swapaxes(1, 2), scale_a, scale_b.swapaxes(1, 2), ends, **options)


_FORMATS = {
    "MXFP8": (1, 32, "float8_e4m3fn", "float8_e8m0fnu"),
    "MXFP4": (2, 32, "float4_e2m1fn", "float8_e8m0fnu"),
    "NVFP4": (2, 16, "float4_e2m1fn", "float8_e4m3fn"),
}


def _block_scaled(m: int, n: int) -> dict[str, Callable[[], Any]]:
    return {
        **{name: functools.partial(block_scaled, m, n, *one) for name, one in _FORMATS.items()},
        **{
            f"groups of {name}": functools.partial(block_scaled_groups, *one)
            for name, one in _FORMATS.items()
        },
    }


def _on_tensor_memory() -> dict[str, Callable[[], Any]]:
    """Return larger calls: CTA pairs, and two query tiles in flight."""
    q, k = drawn(1, 300, 2, 64), drawn(1, 400, 1, 64)
    a, b, c = drawn(300, 136), drawn(136, 264), drawn(300, 264)
    return {
        "one CTA": lambda: ops.matmul(a[:100], b),
        "pairs": lambda: ops.matmul(a, b),
        "an epilogue": lambda: ops.matmul(a, b, c=c, out=c, beta=0.5, activation="gelu"),
        "two query tiles": lambda: ops.attention(q, 4 * k, k),
        "two causal query tiles": lambda: ops.attention(q, k, k, causal=True, return_lse=True),
        "packed query tiles": lambda: ops.varlen_attention(
            q[0], k[0], k[0], [0, 130, 130, 300], [0, 30, 200, 400], causal=True
        ),
        "split-KV": lambda: ops.attention(q[:, :1], drawn(1, 3000, 1, 64), drawn(1, 3000, 1, 64)),
        "attention with softcap": lambda: ops.attention(q[:, :9], k, k, softcap=5.0),
        "split-K": lambda: ops.matmul(drawn(200, 2048), drawn(2048, 136)),
        "groups in pairs": lambda: ops.grouped_matmul(
            drawn(500, 136), drawn(4, 136, 72), np.array([60, 60, 90, 400], np.int32)
        ),
        "FP8 with float32 scales": lambda: float_scaled(300, 264),
        "FP8 groups with float32 scales": float_scaled_groups,
        **_block_scaled(200, 136),
    }


def on_blackwell() -> Iterator[Case]:
    """Yield the operations on the chip with tensor memory, and on the one without."""
    own = {"sm_100a": _on_tensor_memory(), "sm_120a": _block_scaled(70, 72)}
    of_stream_k = {
        "sm_100a": test_stream_k.SMALL["three CTAs to a tile"],
        "sm_120a": stream_k.Launch((129, 64, 1024), 6, tile=(64, 64), consumers=1),
    }
    for chip, more in own.items():
        of_chip = functools.partial(stream_k.launch, Emulate(), of_stream_k[chip])
        for name, call in (*operations(), ("stream-K GEMM", of_chip), *more.items()):
            # Refused on the second, for whose shared memory it is too large; a tile of Hopper's.
            is_other = chip == "sm_120a" and ("backward" in name or call is stream_k)
            if not is_other and call is not split_over_grid:
                yield f"{chip}: {name}", functools.partial(on_chip, chip, call)


def on_chip(chip: str, call: Callable[[], Any]) -> None:
    with emulate.chip(chip):
        call()


def example(path: Path) -> None:
    before = sys.argv
    sys.argv = [str(path)]
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = before


def page(path: Path) -> None:
    names: dict[str, Any] = {"__name__": "document"}
    for block in blocks(path, "python"):
        if not block.needs_gpu:
            block.run(names)


def cases() -> Iterator[Case]:
    yield from operations()
    yield from tests()
    yield from of_blackwell()
    yield from on_blackwell()
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield f"examples/{path.stem}", functools.partial(example, path)
    folders = ("cookbook", "tutorial", ".")
    pages = [path for folder in folders for path in sorted((ROOT / "docs" / folder).glob("*.md"))]
    for path in pages:
        if "__global__" in path.read_text():
            yield f"docs/{path.stem}", functools.partial(page, path)


# --- repeated launches ----------------------------------------------------------------------------


@dataclass
class Replays:
    """Repeats each launch, and keeps the reports."""

    seeds: range
    launches: int = 0
    runs: int = 0
    reports: list[str] = field(default_factory=list)

    def explore(self, launch: RepeatedLaunch) -> None:
        """Run a launch, and again with every seed."""
        launch.run()
        self.launches += len(launch.launches)
        for seed in self.seeds:
            policy: Policy = "random" if seed % 2 else "adversarial"
            self.runs += 1
            try:
                launch.run(policy=policy, seed=seed)
            except TMAError as error:
                self.reports.append(f"{policy} {seed}: {type(error).__name__}: {error}")
        launch.leave_first()


# --- the command ----------------------------------------------------------------------------------


def main() -> int:
    """Run the cases; 1 if anything was reported."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--cases", nargs="*", default=[], help="parts of names; all by default")
    parser.add_argument("--record", action="store_true", help="put the rows into the results file")
    options = parser.parse_args()
    total, reported = 0, 0
    for name, case in cases():
        if options.cases and not any(part in name for part in options.cases):
            continue
        replays = Replays(range(options.first, options.first + options.seeds))
        began = time.perf_counter()
        failure = _run(case, replays)
        seconds = time.perf_counter() - began
        print(
            f"{name}: {replays.launches} launches, {replays.runs} runs, "
            f"{len(replays.reports)} reports, {seconds:.0f} s{failure}",
            flush=True,
        )
        for report in replays.reports[:3]:
            print(f"  {report}", flush=True)
        total += replays.runs
        reported += len(replays.reports) + bool(failure)
        if options.record:
            counts = {"launches": replays.launches, "runs": replays.runs}
            reports = {"reports": replays.reports, "failure": failure}
            _record({"case": name, "seeds": options.seeds, **counts, **reports})
    print(f"{total} runs, {reported} reports")
    return int(reported > 0)


def _record(row: dict[str, Any]) -> None:
    """Put a case's row into the results file, in place of an older one."""
    path = RESULTS / "cpu" / "false_alarms.jsonl"
    write_part(path, Section(circumstances_on_cpu(), [row]))


def _run(case: Callable[[], Any], replays: Replays) -> str:
    """Run a case; return what ended it, if something did."""
    try:
        with exploring(replays), contextlib.redirect_stdout(io.StringIO()):
            case()
    except (Exception, SystemExit) as error:
        return f"; ended by {type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
