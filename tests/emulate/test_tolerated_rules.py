"""Rules by name: a launch that relaxes one goes on, and logs a note."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
from bodies import chosen
from emulate import test_dependent_launches, test_rewritten_maps, test_stale_reads, test_wgmma
from emulate.tcgen05 import test_tensor_memory_rules

from tmaasync import ArgumentError, EmulatedFault, EmulatedRace, Kernel, Swizzle, emulate
from tmaasync.emulate.launch.schedule import Policy
from tmaasync.emulate.rules import RULES

START = """
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>
#include <tmaasync/cluster_launch_control.cuh>
using namespace tmaasync;
__shared__ alignas(128) float x[1024];
__shared__ SharedMemBarrier full;
extern "C" __global__ void breaks(const float* in, float* out, int* word, int what) {
    const int thread = threadIdx.x;
"""


class Case(NamedTuple):
    """A kernel that breaks a rule, and ``out[:32]`` afterwards."""

    rule: str
    body: str
    expected: Any = 0.0
    block: int = 32
    grid: int = 1
    cluster: int = 1
    arch: str = "sm_90a"


INIT = "if (thread == 0) { full.init(1); fence_barrier_init(); } __syncthreads();"
REQUEST = (
    "__shared__ ClusterRequest request;"
    "if (thread == 0) { request.init(); fence_barrier_init(); } __syncthreads();"
)
LOAD = "if (thread == 0) { full.expect_bytes(128); tma_load_1d(in, full, x, 128); }"
MULTIPLIED = (
    "for (int i = thread; i < 1024; i += 128) x[i] = 0; fence_async_view_proxy(); __syncthreads();"
    "const u64 zeros = "
    "initialize_wgmma_descriptor<Swizzle::kNone>(ptx::shared_address(x), 1024, 128);"
)
CASES = {
    "cp.async in flight": Case(
        "cp-async-at-exit", "cp_async_gs<16>(x + 4 * thread, in + 4 * thread); //@"
    ),
    "a store in flight": Case(
        "store-at-exit",
        "x[thread] = thread; fence_async_view_proxy(); __syncwarp();"
        "if (thread == 0) { tma_store_1d(out, x, 128); commit_group(); } //@",
        np.arange(32),
    ),
    "a store without a group": Case(
        "store-at-exit",
        "x[thread] = thread; fence_async_view_proxy(); __syncwarp();"
        "if (thread == 0) tma_store_1d(out, x, 128); //@",
        np.arange(32),
    ),
    "a load in flight": Case("load-at-exit", f"{INIT} {LOAD} //@"),
    "bytes expected": Case("bytes-at-exit", f"{INIT} if (thread == 0) full.expect_bytes(16); //@"),
    "a peer that arrives": Case(
        "exit-before-peer",
        f"{INIT} cluster_sync(); if (block_rank_in_cluster() == 1 && thread == 0)"
        " full.arrive_cluster(0); //@",
        grid=2,
        cluster=2,
    ),
    "no fence after init": Case(
        "init-without-fence",
        f"if (thread == 0) full.init(1); __syncthreads(); {LOAD} full.wait(0);"
        " out[thread] = x[thread]; //@",
        np.ones(32),
    ),
    "no proxy fence": Case(
        "write-without-proxy-fence",
        "x[thread] = thread; __syncwarp();"
        "if (thread == 0) { tma_store_1d(out, x, 128); commit_group(); wait_group<0>(); } //@",
        np.arange(32),
    ),
    "a counter read without an order": Case(
        "plain-access-to-atomic", "atomicAdd(word, 1); if (*word > 64) out[thread] = 1; //@", grid=2
    ),
    "one value from two warps": Case("same-value-stores", "out[0] = 5; //@", [5] + 31 * [0], 64),
    "one row from the stmatrix of four warps": Case(
        "same-value-stores",
        'asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::'
        ' "r"(ptx::shared_address(x + 4 * (thread % 8))), "r"(5)); //@',
        block=128,
    ),
    "a counter of one thread that all load": Case(
        "replicated-load", "const int n = *word; if (thread == 0) *word = n + 1; //@", block=64
    ),
    "an atomic operation of a block": Case(
        "block-scope-atomic", "atomicAdd_block(word, 1); //@", grid=2
    ),
    "__ldg of a result": Case(
        "read-only-load", "out[thread] = 3; out[thread] = __ldg(out + thread); //@", 32 * [3]
    ),
    "unwritten memory": Case("unwritten-shared", "if (x[thread] == 1) out[thread] = 1; //@"),
    "a read beyond a tile": Case(
        "mbarrier-read",
        "__shared__ struct { float tile[30]; SharedMemBarrier next; } own;"
        "if (thread == 0) own.next.init(1); if (thread < 30) own.tile[thread] = 1; __syncthreads();"
        "const float read = own.tile[thread]; if (thread < 30) out[thread] = read; //@",
        [1] * 30 + [0] * 2,
    ),
    "a poll beyond a tile": Case(
        "mbarrier-read", f"{INIT} if (*(volatile int*)&full == 1) out[thread] = 1; //@"
    ),
    "a store from beyond a tile": Case(
        "mbarrier-read",
        "__shared__ alignas(16) struct { float tile[30]; SharedMemBarrier next; } own;"
        "if (thread == 0) own.next.init(1); if (thread < 30) own.tile[thread] = 1;"
        " fence_async_view_proxy(); __syncthreads(); if (thread == 0) {"
        " tma_store_1d(out, own.tile, 128); commit_group(); wait_group<0>(); } //@",
        None,
    ),
    "a wait for parity -1": Case(
        "wait-parity", f"{INIT} full.wait(-1); out[thread] = 1; //@", np.ones(32)
    ),
    "an unwritten source": Case(
        "unwritten-shared",
        "if (thread == 0) { tma_store_1d(out, x, 128); commit_group(); wait_group<0>(); } //@",
        None,
    ),
    "the block of a failed request": Case(
        "ctaid-of-failure",
        f"{REQUEST} if (thread == 0) request.ask(); request.answered.wait(0);"
        "const ptx::Ctaid first = ptx::clusterlaunchcontrol_first_ctaid(request.response);"
        " out[thread] = first.y == first.z; //@",
        np.ones(32),
        arch="sm_100a",
    ),
    "a response where one was read": Case(
        "response-without-proxy-fence",
        f"{REQUEST} u64 sum = 1; for (int phase = 0; phase < 2; ++phase) {{"
        " if (thread == 0) request.ask(); request.answered.wait(phase);"
        " sum += request.response.high; __syncthreads(); } out[thread] = sum; //@",
        np.ones(32),
        arch="sm_100a",
    ),
    "two lines of __syncthreads": Case(
        "syncthreads-apart", "if (thread < 16) __syncthreads();\nelse __syncthreads(); //@"
    ),
    "an election after lanes left": Case(
        "elect-of-part", "if (thread >= 16) return; if (elect()) out[0] = 1; //@", [1] + 31 * [0]
    ),
    "wgmma in flight": Case(
        "wgmma-at-exit",
        f"{MULTIPLIED} float sums[4]; wgmma_fence();"
        " wgmma_ss_atom<bfloat16>(sums, zeros, zeros, false); wgmma_commit_group(); //@",
        block=128,
    ),
    "wgmma that is not committed": Case(
        "wgmma-at-exit",
        f"{MULTIPLIED} float sums[4]; wgmma_fence();"
        " wgmma_ss_atom<bfloat16>(sums, zeros, zeros, false); //@",
        block=128,
    ),
    "accumulators without a value": Case(
        "unwritten-accumulators",
        f"{MULTIPLIED} float sums[4]; wgmma_fence();"
        " wgmma_ss_atom<bfloat16>(sums, zeros, zeros, true); wgmma_commit_group();"
        " wgmma_wait_group<0>(); if (thread < 32) out[thread] = sums[0]; //@",
        None,
        block=128,
    ),
    "accumulators read in flight": Case(
        "wgmma-registers",
        f"{MULTIPLIED} float sums[4] = {{}}; wgmma_fence();"
        " wgmma_ss_atom<bfloat16>(sums, zeros, zeros, false); wgmma_commit_group();"
        " if (thread < 32) out[thread] = 5 + 0 * sums[0]; wgmma_wait_group<0>(); //@",
        np.float32(5),
        block=128,
    ),
    "a butterfly with a lane outside the mask": Case(
        "shuffle-source",
        "if (thread < 16) word[1 + thread] = __shfl_xor_sync(0xffff, thread, 16); //@",
    ),
}


# --- idioms of CUDA's guide -------------------------------------------------------------------

IDIOMS = {
    "a loop over atomicCAS that begins with an ordinary read": """
        float sum = thread;
        int old = *word, assumed;
        do {
            assumed = old;
            old = atomicCAS(word, assumed, __float_as_int(__int_as_float(assumed) + sum));
        } while (old != assumed);
    """,
    "the same in shared memory": """
        __shared__ int held;
        if (thread == 0) held = 0;
        __syncthreads();
        int old = held, assumed;
        do {
            assumed = old;
            old = atomicCAS(&held, assumed, assumed + thread);
        } while (old != assumed);
        __syncthreads();
        if (thread == 0 && blockIdx.x == 0) *word = __float_as_int(2 * held);
    """,
    "a loop over 16 bytes": """
        uint4* const wide = (uint4*)word;
        uint4 old = *wide, assumed;
        do {
            assumed = old;
            const float sum = __uint_as_float(assumed.x) + thread;
            old = atomicCAS(wide, assumed, uint4{__float_as_uint(sum), 0, 0, assumed.w + 1});
        } while (old.x != assumed.x || old.w != assumed.w);
    """,
    "a loop for a maximum, which not every thread enters": """
        const float value = 4032 - (blockIdx.x * blockDim.x + thread) * 37 % 128;
        int old = *word;
        while (__int_as_float(old) < value) {
            const int assumed = old;
            old = atomicCAS(word, assumed, __float_as_int(value));
            if (old == assumed) break;
        }
    """,
    "the same in shared memory, for a maximum": """
        __shared__ int held;
        if (thread == 0) held = 0;
        __syncthreads();
        const int value = 4032 - thread * 37 % 128;
        int old = held;
        while (old < value) {
            const int assumed = old;
            old = atomicCAS(&held, assumed, value);
            if (old == assumed) break;
        }
        __syncthreads();
        if (thread == 0 && blockIdx.x == 0) *word = __float_as_int(held);
    """,
    "the last block resets its counter": """
        __shared__ bool is_last;
        atomicAdd((float*)word, thread);
        __threadfence();
        if (thread == 0) is_last = atomicAdd(word + 1, 1) == gridDim.x - 1;
        __syncthreads();
        if (thread == 0 && is_last) word[1] = 0;
    """,
    "the last warp resets its counter": """
        __shared__ int counter;
        if (thread == 0) counter = 0;
        __syncthreads();
        atomicAdd((float*)word, thread);
        if (thread % 32 == 0 && atomicAdd(&counter, 1) == blockDim.x / 32 - 1) counter = 0;
    """,
}

SUM_OF_A_PART = """
    float sum = thread;
    if (thread < 16) {
        for (int step = 8; step > 0; step /= 2) {
            sum += __shfl_down_sync(0xffff, sum, step);
        }
    }
    if (thread == 0) out[0] = sum;
"""
BODIES: dict[str, tuple[str, str]] = {
    **{name: (case.body, case.arch) for name, case in CASES.items()},
    **{name: (body, "sm_90a") for name, body in IDIOMS.items()},
    "different values": ("if (thread % 32 == 0) out[0] = thread;", "sm_90a"),
    "a read": ("if (blockIdx.x == 0) atomicAdd(word, 1); else out[thread] = *word;", "sm_90a"),
    "a read of a counter": ("if (*word < 64) atomicAdd(word, 1);", "sm_90a"),
    "a sum of a part": (SUM_OF_A_PART, "sm_90a"),
}


def text_of(arch: str) -> str:
    """Return the kernel of all bodies for a chip: one build."""
    return f"{START}{chosen(body for body, of in BODIES.values() if of == arch)}\n}}\n"


def number_of(name: str) -> int:
    """Return the number of a body among its chip's."""
    return [one for one, (_, arch) in BODIES.items() if arch == BODIES[name][1]].index(name)


def line_of(name: str, mark: str) -> int:
    """Return the line of the first mark in a body."""
    before, _, after = text_of(BODIES[name][1]).partition(f"(what == {number_of(name)})")
    return 1 + (before + after.partition(mark)[0]).count("\n")


def run(name: str, *tolerated: str, block: int = 32, grid: int = 1, cluster: int = 1) -> Any:
    out, word = np.zeros(64, np.float32), np.zeros(64, np.int32)
    arch = BODIES[name][1]
    with emulate.scheduled(races=True, tolerate=set(tolerated)):
        Kernel(text_of(arch), "breaks", arch=arch)(
            grid, block, (np.ones(128, np.float32), out, word, number_of(name)), cluster=cluster
        )
    return out


def run_case(name: str, *tolerated: str) -> Any:
    case = CASES[name]
    return run(name, *tolerated, block=case.block, grid=case.grid, cluster=case.cluster)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_a_launch_that_relaxes_the_rule_goes_on_and_notes_the_line(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    case = CASES[name]
    with caplog.at_level(logging.WARNING, "tmaasync"):
        out = run_case(name, case.rule)
    if case.expected is not None:
        np.testing.assert_array_equal(out[:32], np.broadcast_to(case.expected, 32))
    (note,) = [one for one in caplog.messages if "[rule:" in one]
    assert note.startswith("tmaasync: breaks: ")
    assert f"first at kernel.cu:{line_of(name, '//@')})" in note
    assert note.endswith(f"[rule: {case.rule}]")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_a_broken_rule_is_named_and_another_relaxed_rule_does_not_help(name: str) -> None:
    rule = CASES[name].rule
    others = {*RULES} - {rule}
    with pytest.raises((EmulatedFault, EmulatedRace)) as caught:
        run_case(name, *others)
    assert isinstance(caught.value, (EmulatedFault, EmulatedRace))
    assert caught.value.rule == rule
    assert str(caught.value).endswith(f"[rule: {rule}]")


def rewritten_map() -> None:
    """Change a map in global memory between two launches; the second loads through the new one."""
    maps = test_rewritten_maps.aligned_maps()
    for array, value in ((test_rewritten_maps.ONES, 1), (test_rewritten_maps.TWOS, 2)):
        maps[:] = test_rewritten_maps.map_of(array)
        test_rewritten_maps.use(maps, expected=value)


def index_of_another_array() -> None:
    """Read the float after the end of one array, which is another array's."""
    text = 'extern "C" __global__ void f(const float* x, float* y, float* z) { z[0] = x[4]; }'
    memory = np.arange(12, dtype=np.float32)
    Kernel(text, "f")(1, 1, (memory[:4], memory[4:8], memory[8:]))
    assert memory[8] == 4


WHOLE_KERNELS: dict[str, Callable[[], object]] = {
    "map-without-acquire": rewritten_map,
    "poll-without-acquire": lambda: test_stale_reads.run("an atomic poll"),
    "wgmma-swizzle": lambda: test_wgmma.multiply_loaded(Swizzle.B64, Swizzle.B128),
    "other-array": index_of_another_array,
    "pdl-wait": lambda: test_dependent_launches.run("no wait", uses_tma=False),
    **test_tensor_memory_rules.WHOLE_KERNELS,
}
"""Kernels of other tests, by the rule that they break."""


@pytest.mark.parametrize("rule", WHOLE_KERNELS)
def test_a_whole_kernel_runs_only_if_its_rule_is_relaxed(
    rule: str, caplog: pytest.LogCaptureFixture
) -> None:
    others = {*RULES} - {rule}
    with (
        emulate.scheduled(races=True, tolerate=others),
        pytest.raises((EmulatedFault, EmulatedRace)) as caught,
    ):
        WHOLE_KERNELS[rule]()
    assert isinstance(caught.value, (EmulatedFault, EmulatedRace))
    assert caught.value.rule == rule
    with (
        caplog.at_level(logging.WARNING, "tmaasync"),
        emulate.scheduled(races=True, tolerate={rule}),
    ):
        WHOLE_KERNELS[rule]()
    (note,) = [one for one in caplog.messages if "[rule:" in one]
    assert re.search(r"first at kernel\.cu:\d+\)", note)
    assert note.endswith(f"[rule: {rule}]")


def test_the_tolerance_of_every_rule_is_tested() -> None:
    rules = {case.rule for case in CASES.values()} | {*WHOLE_KERNELS}
    assert rules | test_tensor_memory_rules.NOTED == {*RULES}


def test_different_values_are_no_same_value_stores() -> None:
    with pytest.raises(EmulatedRace) as caught:
        run("different values", "same-value-stores", block=64)
    assert caught.value.rule is None


def test_rows_are_compared_when_they_are_stored_in_any_order() -> None:
    case = CASES["one row from the stmatrix of four warps"]
    for seed, policy in itertools.product(range(4), get_args(Policy)):
        with emulate.scheduled(policy, seed=seed):
            run_case("one row from the stmatrix of four warps", case.rule)


@pytest.mark.parametrize("name", IDIOMS)
def test_an_idiom_of_the_guide_is_no_race(name: str) -> None:
    for policy in get_args(Policy):
        word, nothing = np.zeros(64, np.int32), np.zeros(1, np.float32)
        with emulate.scheduled(policy, seed=3, races=True):
            Kernel(text_of("sm_90a"), "breaks")(2, 64, (nothing, nothing, word, number_of(name)))
        total = 2 * sum(range(64))
        assert word[:1].view(np.float32)[0] == total or word[0] == np.float32(total).view(np.int32)
        assert word[1] == 0


@pytest.mark.parametrize(("name", "grid"), [("a read", 2), ("a read of a counter", 1)])
def test_a_read_that_no_exchange_follows_is_a_race(name: str, grid: int) -> None:
    with pytest.raises(EmulatedRace, match="goes through a volatile pointer") as caught:
        run(name, grid=grid)
    assert caught.value.rule == "plain-access-to-atomic"


def test_a_shuffle_whose_value_nobody_uses_is_noted_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tmaasync"):
        for _ in range(2):
            assert run("a sum of a part")[0] == sum(range(16))
    (note,) = [one for one in caplog.messages if "[rule:" in one]
    assert f"first at kernel.cu:{line_of('a sum of a part', '__shfl')})" in note
    assert note.endswith("[rule: shuffle-source]")


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({"exit-before-peers"}, "Did you mean 'exit-before-peer'"),
        ({"nonsense"}, "There are cp-async-at-exit, "),
        ("exit-before-peer", "it must be a set of names"),
        (3, "it must be a set of names"),
    ],
)
def test_an_unknown_name_is_refused(names: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text), emulate.scheduled(tolerate=names):
        pass


def test_the_guide_lists_every_rule_and_no_other() -> None:
    page = Path(__file__).parents[2] / "docs" / "emulator_rules.md"
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.*?) \|", page.read_text(), re.MULTILINE)
    assert [(name, text.replace("`", "")) for name, text in rows] == [
        (rule, text) for rule, text in RULES.items()
    ]
