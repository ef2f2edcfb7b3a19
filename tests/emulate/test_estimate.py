"""A launch that is too large is refused before anything runs, with what it would take."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tmaasync import Kernel, LaunchError
from tmaasync._driver import LaunchConfig
from tmaasync.emulate import scheduled
from tmaasync.emulate.launch.estimate import LaunchEstimate, estimate

SOURCE = """
extern "C" __global__ void count(int* out) {
    if (threadIdx.x == 0) atomicAdd(out, 1);
}
"""


def sized(grid: int, block: int, cluster: int | None = None, workers: int = 2) -> LaunchEstimate:
    kernel = Kernel(SOURCE, "count")
    launch = kernel.prepare(1, 32, (np.zeros(1, np.int32),))
    clusters = None if cluster is None else (cluster, 1, 1)
    config = LaunchConfig((grid, 1, 1), (block, 1, 1), clusters, 0, pdl=False, stream=0)
    return estimate(launch._program, config, workers)  # type: ignore[union-attr]


def test_memory_does_not_grow_with_the_grid() -> None:
    assert sized(10**6, 256).memory_bytes == sized(2, 256).memory_bytes


@pytest.mark.parametrize("workers", [1, 2, 64, 1000])
def test_the_largest_clusters_stay_within_memory_and_mappings(workers: int) -> None:
    size = sized(1600, 1024, 16, workers)

    assert size.workers == 1
    assert size.memory_bytes < 2.05 * 2**30
    assert size.workers * 16 * 1024 * 2 < 65530


def test_a_launch_of_too_many_threads_says_what_it_would_take() -> None:
    out = np.zeros(1, np.int32)
    kernel = Kernel(SOURCE, "count")

    with pytest.raises(LaunchError) as caught, scheduled(workers=2):
        kernel(2_000_000, 1024, (out,))

    assert out[0] == 0
    assert str(caught.value).startswith(
        "grid is 2,048,000,000 threads (2,000,000 blocks of 1,024 threads take at least 7 minutes "
        "and up to "
    )
    assert "emulate.scheduled(max_threads=2048000000)" in str(caught.value)


def test_a_limit_of_ones_own_holds() -> None:
    out = np.zeros(1, np.int32)
    kernel = Kernel(SOURCE, "count")

    with scheduled(max_threads=1000), pytest.raises(LaunchError, match="runs up to 1,000 in one"):
        kernel(32, 32, (out,))
    with scheduled(max_threads=1024):
        kernel(32, 32, (out,))
    assert out[0] == 32


STARVED = """
import resource, numpy as np
from tmaasync import Kernel, LaunchError
out = np.zeros(1, np.int32)
kernel = Kernel('''{source}''', "count")
kernel(1, 32, (out,))
most = int(open("/proc/self/statm").read().split()[0]) * 4096 + (64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    kernel(16, 1024, (out,), cluster=16)
except LaunchError as error:
    print(error)
kernel(1, 32, (out,))
assert out[0] == 2
"""


def test_a_launch_that_finds_no_memory_says_so_and_the_next_one_runs() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", STARVED.format(source=SOURCE)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert "no memory or no mappings left for the launch: 16 blocks of 1,024 threads" in ran.stdout


def test_a_machine_with_too_little_memory_is_refused() -> None:
    size = LaunchEstimate(
        blocks=16,
        threads_per_block=1024,
        workers=1,
        resident=1,
        memory_bytes=2**31,
        machine_bytes=2**30,
    )

    (broken,) = size.violations(10**9)

    assert "one cluster must fit the 1,024 MiB of this machine" in str(broken)
