"""``tmaasync bench``: interleaved rounds and the printed figures; the clock is the test's."""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from command_line import assert_refused, json_of, run

from tmaasync._elements import element
from tmaasync._timing import Clocks
from tmaasync.cli._bench_jobs import Job, Libraries, Operation, Request, prepare
from tmaasync.cli.bench import GpuBench

MICROSECONDS = {"tmaasync": 200.0, "torch": 220.0, "cupy": 300.0}


@dataclass
class Gpu:
    """Every candidate takes the time above on it, more and more as the clocks drop."""

    slices: list[str] = field(default_factory=list)

    def microseconds(self, run: Callable[[], Any], calls: int) -> float:
        name = run()
        self.slices.append(name)
        return MICROSECONDS[name] * (1 + len(self.slices) / 1000)

    @contextlib.contextmanager
    def clocks_recorded(self) -> Any:
        yield Clocks([1755, 1700, 1760], [600.0, 640.0, 650.0])

    def prepare(self, request: Request) -> Job:
        runs: dict[str, Callable[[], Any]] = {
            name: functools.partial(str, name) for name in MICROSECONDS
        }
        return Job(runs, {"jax": "it is slow"})

    @property
    def bench(self) -> GpuBench:
        return GpuBench(
            why_not=lambda: None,
            name=lambda: "NVIDIA H200",
            prepare=self.prepare,
            microseconds=self.microseconds,
            clocks_recorded=self.clocks_recorded,
        )


def test_speed_ups_are_within_a_round_and_throughputs_of_the_median() -> None:
    gpu = Gpu()

    document = json_of("bench", "matmul", "1000", "2000", "3000", "--rounds", "5", on=gpu.bench)

    found = document["contestants"]
    assert list(found) == ["tmaasync", "torch", "cupy"]
    orders = [gpu.slices[first : first + 3] for first in range(6, 21, 3)]  # six warm up
    assert all(sorted(order) == sorted(MICROSECONDS) for order in orders)
    assert len(set(map(tuple, orders))) > 2
    own, torch = (
        [7 + 3 * number + order.index(name) for number, order in enumerate(orders)]
        for name in ("tmaasync", "torch")
    )
    middle = 200 * (1 + statistics.median(own) / 1000)
    assert found["tmaasync"]["microseconds"] == pytest.approx(middle)
    assert found["tmaasync"]["throughput"] == pytest.approx(12e9 / middle / 1e6, abs=1e-3)
    assert found["tmaasync"]["calls_per_turn"] == pytest.approx(50_000 / 200, abs=2)
    ratios = [1.1 * (1000 + b) / (1000 + a) for a, b in zip(own, torch, strict=True)]
    assert found["torch"]["tmaasync_is_faster"] == {
        "median": round(statistics.median(ratios), 4),
        "min": round(min(ratios), 4),
        "max": round(max(ratios), 4),
    }
    assert document["clocks"] == {"sm_mhz_median": 1755, "sm_mhz_min": 1700, "power_w_median": 640}
    assert (document["gpu"], document["unit"]) == ("NVIDIA H200", "TFLOP/s")


def test_the_table_has_a_line_for_each_and_says_who_is_absent() -> None:
    lines = run("bench", "attention", "--causal", on=Gpu().bench).output.splitlines()

    assert lines[0].rstrip() == "attention causal 4 x 4096 x 16 x 128 bfloat16 on NVIDIA H200"
    ours = next(line for line in lines if line.split()[:1] == ["tmaasync"])
    torch = next(line for line in lines if line.split()[:1] == ["torch"])
    assert ours.split()[2::2] == ["us", "TFLOP/s"]
    assert float(ours.split()[1]) == pytest.approx(203, abs=3)  # 200 us, after up to 27 slices
    assert float(ours.split()[3]) == pytest.approx(1353, abs=20)
    assert torch.split()[4::2] == ["TFLOP/s", "x", "x", "x"]
    assert all(float(ratio) == pytest.approx(1.1, abs=0.003) for ratio in torch.split()[5::2])
    assert "Without jax: it is slow." in lines
    assert "SM clock 1755 MHz, never below 1700; 640 W." in lines


@pytest.mark.parametrize(
    ("operation", "sides", "dtype", "is_causal", "work"),
    [
        ("matmul", (3, 5, 7), "float16", False, 2 * 3 * 5 * 7),
        ("attention", (2, 3, 5, 64), "bfloat16", False, 4 * 2 * 5 * 64 * 9),
        ("attention", (2, 3, 5, 64), "bfloat16", True, 4 * 2 * 5 * 64 * 6),
        ("copy", (3, 5), "float32", False, 2 * 60),
        ("copy", (7,), "float8_e4m3fn", False, 2 * 7),
    ],
)
def test_work_is_what_one_counts(
    operation: str, sides: tuple[int, ...], dtype: str, is_causal: bool, work: float
) -> None:
    request = Request.of(Operation(operation), sides, element(dtype), is_causal)

    assert request.work == work


def test_candidates_do_the_same_work() -> None:
    """On arrays of NumPy's, where CuPy's would be."""
    others = Libraries(np, None, {"torch": "not asked"})
    request = Request.of(Operation.MATMUL, (24, 16, 32), element("float16"), False)

    job = prepare(request, others)
    ours = job.candidates["tmaasync"]().copy()
    out = job.candidates["tmaasync"]()
    out.fill(np.nan)
    theirs = job.candidates["cupy"]()

    assert theirs is out
    assert job.absent == {"torch": "not asked"}
    assert np.allclose(ours.astype(float), theirs.astype(float), rtol=1e-3, atol=1e-3)


def test_without_a_gpu_it_says_so() -> None:
    none = GpuBench(why_not=lambda: "there is none")

    assert_refused("there is nothing to measure on: there is none.", "bench", "copy", on=none)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("matmul", "3", "4"), "2 sides are given; matmul has 3. Pass M N K, or none for 4096"),
        (("attention", "3"), "1 sides are given; attention has 4. Pass BATCH POSITIONS HEADS"),
        (("copy", "3", "0"), "sides are 3 0; each must be 1 or more"),
        (("matmul", "--dtype", "float32"), "dtype is float32; matmul is compared in bfloat16 and"),
        (("copy", "--dtype", "complex64"), "dtype is complex64; TMA has no complex numbers"),
        (("sort",), "Invalid value for 'OPERATION'"),
        (("copy", "--rounds", "0"), "Invalid value for '--rounds'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], sentence: str
) -> None:
    ran = run("bench", *arguments)

    assert ran.exit_code == 2
    assert ran.stderr.lower().startswith(f"error: {sentence}".lower()), ran.stderr


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize(
    "arguments",
    [
        ("matmul", "1024", "512", "768"),
        ("matmul", "512", "512", "512", "--dtype", "float16"),
        ("attention", "1", "1024", "4", "64", "--causal"),
        ("copy", "1000", "1000", "--dtype", "float8_e4m3fn"),
    ],
)
def test_all_candidates_run_on_a_gpu(arguments: tuple[str, ...]) -> None:
    pytest.importorskip("cupy")

    document = json_of("bench", *arguments, "--rounds", "2", "--seconds", "0.002")

    found = document["contestants"]
    assert "tmaasync" in found
    assert set(found) | set(document["absent"]) == {"tmaasync", "torch", "cupy"}
    assert all(facts["microseconds"] > 0 and facts["throughput"] > 0 for facts in found.values())
    assert document["clocks"]["sm_mhz_median"] > 100
