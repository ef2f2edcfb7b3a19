"""The emulator refuses what a GPU, its driver or its compiler refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bodies import chosen

from tmaasync import EmulatedFault, Kernel, LaunchError, create_tma_tile

HEADERS = """
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>
using namespace tmaasync;
"""


def kernel(body: str, attributes: str = "", **options: Any) -> Kernel:
    text = f'{HEADERS}extern "C" __global__ void {attributes} k(int* x) {{ {body} }}\n'
    return Kernel(text, "k", **options)


def zeros(count: int = 1024) -> Any:
    return np.zeros(count, np.int32)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("launch", "said"),
    [
        ({"grid": (1, 65536)}, r"65536 blocks along y; CUDA allows 65535\. Count the most .* x\."),
        ({"grid": (1, 1, 65536)}, "65536 blocks along z; CUDA allows 65535"),
        ({"grid": 2**31}, "2147483648 blocks along x; CUDA allows 2147483647"),
        ({"block": 1025}, r"1025 threads; .* at most 1024\. Use a smaller block"),
        ({"block": (32, 33)}, "1056 threads; .* at most 1024"),
        ({"block": (1, 1, 65)}, r"65 threads along z; CUDA allows 64\. Count the most threads"),
        ({"shared_mem": 227 * 1024 + 1}, r"shared_mem is 232449 bytes; .* at most 232448\. Use"),
        ({"grid": 32, "cluster": 32}, r"32 blocks; a cluster .* at most 16\. Use a smaller"),
        ({"grid": 6, "cluster": 4}, r"a multiple of cluster \(4, 1, 1\)\. Use \(8, 1, 1\)\."),
        ({"block": True}, "block is True; .* positive ints"),
    ],
)
def test_a_launch_that_no_device_takes_is_refused(launch: dict[str, Any], said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        kernel("").prepare(**{"grid": 1, "block": 32, "args": (zeros(),), **launch})


def test_the_largest_launch_that_a_device_takes_is_taken() -> None:
    kernel("").prepare((1, 65535), (1, 1, 64), (zeros(),), shared_mem=227 * 1024)


@pytest.mark.parametrize("dims", ["2", "SIZE, 1, 1"])
def test_a_kernel_has_the_cluster_that_it_declares(dims: str) -> None:
    ranks = kernel(
        "x[blockIdx.x] = block_rank_in_cluster() + 10 * blocks_in_cluster();",
        f"__cluster_dims__({dims})",
        constants={"SIZE": 2},
    )
    for cluster in (None, 2):
        found = zeros(4)
        ranks(4, 1, (found,), cluster=cluster)
        assert found.tolist() == [20, 21, 20, 21]
    with pytest.raises(LaunchError, match=r"multiple of cluster \(2, 1, 1\)\. Use \(4, 1, 1\)\."):
        ranks(3, 1, (zeros(),))
    with pytest.raises(LaunchError, match=r"cluster is \(4, 1, 1\); k is declared with __cluster"):
        ranks(4, 1, (zeros(),), cluster=4)


def test_an_entry_in_an_extern_c_block_is_found() -> None:
    found = zeros(1)
    Kernel('extern "C" {\n__global__ void k(int* x) { *x = 1; }\n}\n', "k")(1, 1, (found,))
    assert found[0] == 1


def test_a_block_above_the_launch_bounds_is_refused() -> None:
    bounded = kernel("", "__launch_bounds__(THREADS, 1)", constants={"THREADS": 64})
    bounded(1, 64, (zeros(),))
    with pytest.raises(LaunchError, match=r"128 threads; k is .* __launch_bounds__\(64\)\. Use"):
        bounded(1, 128, (zeros(),))


def test_a_tile_by_value_is_refused_with_the_line_of_the_kernel() -> None:
    tile = create_tma_tile(np.zeros((8, 32), np.float32), (8, 32))
    text = f'{HEADERS}/* k(\n */\nextern "C" __global__ void k(const Tile tile) {{}}\n'
    with pytest.raises(
        LaunchError, match=r"`const Tile tile` at kernel\.cu:7, .*Declare const __g"
    ):
        Kernel(text, "k", types={"Tile": tile})(1, 1, (tile,))


@pytest.mark.parametrize(("wait", "parity"), [("wait", 2), ("try_wait", 3), ("test_wait", -1)])
def test_a_wait_for_a_parity_that_no_phase_has_is_a_fault(wait: str, parity: int) -> None:
    body = f"__shared__ SharedMemBarrier full; full.init(1); full.arrive(); full.{wait}(x[0]);"
    x = zeros()
    x[0] = parity
    with pytest.raises(
        EmulatedFault, match=rf"kernel\.cu:5: .* for parity {parity}; a phase has parity 0 or 1"
    ):
        kernel(body)(1, 1, (x,))
    x[0] = 0
    kernel(body)(1, 1, (x,))


WGMMA = ("wgmma_fence();", "wgmma_commit_group();", "wgmma_wait_group<0>();")


@pytest.mark.parametrize("number", range(len(WGMMA)))
def test_part_of_a_warpgroup_cannot_execute_its_instructions(number: int) -> None:
    calls = kernel(f"const int what = x[0]; if (warp_index() <= x[1]) {{ {chosen(WGMMA)} }}")
    x = zeros()
    x[:2] = number, 0
    with pytest.raises(EmulatedFault, match=r"All 128 threads execute the instructions of wgmma"):
        calls(1, 128, (x,))
    x[1] = 9
    for threads in (32, 160):
        with pytest.raises(
            EmulatedFault, match=rf"of a block of {threads} threads, .* launch a multiple of 128"
        ):
            calls(1, threads, (x,))


def test_a_block_may_end_within_a_warpgroup_that_does_not_multiply() -> None:
    kernel("if (warpgroup_index() == 0) { wgmma_fence(); }")(1, 160, (zeros(),))


ARRIVE = """
#include <cuda/ptx>
__global__ void k(int* x, int count, int what) {
    __shared__ unsigned long long barrier;
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
    if (threadIdx.x > 0) return;
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" :: "r"(at) : "memory");
    unsigned long long state;
    for (int i = 0; i < count; ++i) {
FORMS
    }
    x[0] = 1;
}
"""
BY_PTX = (
    'asm volatile("mbarrier.arrive%s.noComplete.shared::cta.b64 %%0, [%%1], 1;"'
    ' : "=l"(state) : "r"(at) : "memory");'
)
BY_LIBRARY = "state = cuda::ptx::mbarrier_arrive_no_complete(&barrier, 1);"


@pytest.mark.parametrize("form", range(3))
def test_an_arrival_without_completion_completes_nothing(form: int) -> None:
    text = ARRIVE.replace("FORMS", chosen([BY_PTX % "", BY_PTX % "_drop", BY_LIBRARY]))
    x = zeros()
    Kernel(text, "k")(1, 32, (x, 1, form))
    assert x[0] == 1
    with pytest.raises(EmulatedFault, match=r"\.noComplete completes phase 0 of barrier"):
        Kernel(text, "k")(1, 32, (x, 2, form))
