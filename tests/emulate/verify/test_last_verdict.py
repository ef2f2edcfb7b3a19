"""`emulate.last_verdict`: what ordinary launches leave open."""

from __future__ import annotations

import contextvars

import numpy as np
import pytest

import tmaasync as tma
from tmaasync import emulate

SOURCE = """
extern "C" __global__ void fill(int* out, int is_racy) {
    out[is_racy ? 0 : threadIdx.x] = threadIdx.x;
}
"""


def fill(is_racy: int = 0) -> None:
    tma.Kernel(SOURCE, "fill")(1, 64, (np.zeros(64, np.int32), is_racy))


def only() -> emulate.LaunchVerdict:
    (launch,) = emulate.last_verdict().launches
    return launch


def test_an_ordinary_launch_is_incomplete() -> None:
    fill()
    assert (only().kernel, only().status) == ("fill", "incomplete")
    assert "round_robin" in only().not_checked[0]
    with emulate.scheduled("random", seed=12):
        fill()
    assert "seed 12" in only().not_checked[0]
    with pytest.raises(tma.VerificationError):
        emulate.last_verdict().require_clean()


def lists(words: str, verdict: emulate.LaunchVerdict | None = None) -> bool:
    return any(words in one for one in (verdict or only()).not_checked)


@pytest.mark.slow
def test_what_was_not_searched_is_listed() -> None:
    with emulate.scheduled(races=False):
        fill()
    assert lists("races=False")
    many = np.zeros(emulate.SEARCHED_WORDS * 2 + 64, np.int32)
    source = """extern "C" __global__ void all(int* out, int count) {
        for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = i;
    }"""

    def verdict() -> emulate.LaunchVerdict:
        tma.Kernel(source, "all")(1, 32, (many, many.size))
        return only()

    without_schedule = contextvars.Context().run(verdict)
    assert lists("races=True searches all", without_schedule)

    def of_devices() -> emulate.LaunchVerdict:
        with emulate.devices(1) as world:
            tma.Kernel(source, "all")(1, 32, (world[0].array(many), many.size))
        return only()

    assert lists("races=True searches all", contextvars.Context().run(of_devices))
    with emulate.scheduled(races=True):
        verdict()
    assert not lists("races=True searches all")


def test_what_the_emulator_does_not_model_is_named() -> None:
    fill()
    assert lists("docs/emulator_limits.md")


@pytest.mark.parametrize("warps", [1, 7])
def test_accesses_that_the_search_forgets_are_listed(warps: int) -> None:
    """A word has room for six unordered accesses, and lanes of a warp share one."""
    source = """extern "C" __global__ void read(const int* in, int* out) {
        out[threadIdx.x] = in[0];
    }"""
    kernel = tma.Kernel(source, "read")
    arguments = np.ones(1, np.int32), np.zeros(32 * warps, np.int32)
    kernel(1, 32 * warps, arguments)
    assert lists("more than six accesses") == (warps > 6)
    assert emulate.verify(kernel, 1, 32 * warps, arguments).status == "clean"


@pytest.mark.parametrize("is_argument", [False, True])
def test_arrays_that_only_pointers_lead_to_are_listed(is_argument: bool) -> None:
    source = """extern "C" __global__ void read(const int* const* table, int* out, const int*) {
        *out = table[0][1];
    }"""
    kernel, row, out = (
        tma.Kernel(source, "read"),
        np.arange(4, dtype=np.int32),
        np.zeros(1, np.int32),
    )
    arguments = np.array([row.ctypes.data], np.uint64), out, row if is_argument else out
    kernel(1, 1, arguments)
    assert lists("only pointers lead to") != is_argument
    assert out[0] == 1
    kernel(1, 1, (arguments[0], out, row))
    assert not lists("only pointers lead to")
    assert emulate.verify(kernel, 1, 1, arguments).status == "clean"


def test_a_tolerated_rule_is_listed() -> None:
    source = """extern "C" __global__ void same(int* out) { *out = 1; }"""
    kernel, out = tma.Kernel(source, "same"), np.zeros(1, np.int32)
    with emulate.scheduled(races=True, tolerate={"same-value-stores"}):
        kernel(1, 64, (out,))
        assert lists("same-value-stores")
        assert emulate.verify(kernel, 1, 64, (out,)).status == "incomplete"


def test_an_error_is_a_violation() -> None:
    with pytest.raises(tma.EmulatedRace):
        fill(is_racy=1)
    assert only().status == "violated"
    with pytest.raises(tma.EmulatedRace):
        emulate.last_verdict().require_clean()


def test_verify_leaves_its_verdict() -> None:
    verdict = emulate.verify(fill)
    assert emulate.last_verdict() is verdict
    assert verdict.as_dict()["status"] == "clean"


def test_launches_of_devices_are_listed_together() -> None:
    with emulate.devices(2) as world:
        for device in world:
            tma.Kernel(SOURCE, "fill")(1, 64, (device.array(np.zeros(64, np.int32)), 0))
    assert [one.kernel for one in emulate.last_verdict().launches] == ["fill", "fill"]
