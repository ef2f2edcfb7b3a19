"""Defects in the kernels of `parity.guide_samples`: what replaces what, and what is reported."""

from __future__ import annotations

import functools
from typing import Any

from parity.guide_samples import FOLDER, INSTANCES
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, after, without
from planted_choices import choices

from tmaasync import Kernel

__all__ = ["DEFECTS", "RELEASED", "planted", "text_of"]

_NO_BARRIER = "no barrier orders the two"
_IN_FLIGHT = "A TMA load to these bytes is in flight"
_NOT_VISIBLE = r"Every writing thread calls fence\.proxy\.async\.shared::cta after it"
_INIT_FENCE = r"must call fence\.mbarrier_init after it"


def _of(sample: str, *rows: tuple[Any, ...]) -> tuple[Defect, ...]:
    return tuple(
        Defect(sample, name, edit if isinstance(edit, tuple) else (edit,), reported, says, line)
        for name, edit, reported, line, says in rows
    )


DEFECTS = (
    *_of(
        "bulk_copy",
        ("no fence after init", without("cde::fence_proxy_async_shared_cta();", nth=1), RACE,
         "memcpy_async_tx", _INIT_FENCE),
        ("no barrier after init", without("__syncthreads();", nth=1), RACE, "bar.arrive()",
         "no barrier lies between mbarrier.init and the use"),
        ("no wait", without("bar.wait(cuda::std::move(token));"), FAULT, "buffer[i] += 1",
         rf"{_IN_FLIGHT}.* wait for its phase of bar first"),
        ("no bytes expected",
         Edit("token = cuda::device::barrier_arrive_tx(bar, 1, bytes);", "token = bar.arrive();"),
         FAULT, "buffer[i] += 1", _IN_FLIGHT),
        ("no proxy fence", without("cde::fence_proxy_async_shared_cta();", nth=2), RACE,
         "cp_async_bulk_shared_to_global", _NOT_VISIBLE),
        ("no barrier before the store", without("__syncthreads();", nth=2), RACE, "buffer[i] += 1",
         _NO_BARRIER),
        ("no commit", without("cde::cp_async_bulk_commit_group();"), FAULT,
         "cp_async_bulk_shared_to_global", r"with cp\.async\.bulk\.commit_group"),
        ("no wait for the store", without("cde::cp_async_bulk_wait_group_read<0>();"), FAULT,
         "cp_async_bulk_shared_to_global", r"cp\.async\.bulk\.wait_group\.read 0"),
    ),
    *_of(
        "stages",
        ("no acquire", without("pipeline.producer_acquire();"), RACE, "cuda::memcpy_async",
         "may not have landed|before its readers are done"),
        ("no commit", without("pipeline.producer_commit();"), DEADLOCK, "consumer_wait",
         r"state\.produced\[0\], phase 0: 64 arrivals"),
        ("no wait", without("pipeline.consumer_wait();"), FAULT, "const int value",
         r"cp\.async to these bytes is in flight"),
        ("no release", without("pipeline.consumer_release();"), DEADLOCK, "producer_acquire",
         r"state\.consumed\[0\], phase 0: 64 arrivals"),
        ("early release",
         (after("pipeline.consumer_wait();", "pipeline.consumer_release();"),
          without("pipeline.consumer_release();")),
         RACE, "cuda::memcpy_async", "may not have landed|before its readers are done"),
    ),
    *_of(
        "histogram",
        ("no barrier after the zeros", without("cluster.sync();", nth=1), RACE, "own[i] = 0",
         _NO_BARRIER),
        ("no barrier before the bins are read", without("cluster.sync();", nth=2), RACE,
         "atomicAdd(theirs", "an ordinary read of what another thread changes"),
    ),
    *_of(
        "reduction",
        ("no barrier of the block", without("block.sync();"), RACE,
         "of_warps[warp.meta_group_rank()] = value", _NO_BARRIER),
        ("no barrier of the grid", without("grid.sync();", nth=1), RACE, "total += sums[1 + i]",
         "does not reach another block"),
        ("no barrier between rounds", without("grid.sync();", nth=2), RACE, "total += sums[1 + i]",
         "does not reach another block"),
    ),
    *_of(
        "ring",
        ("no fence after init",
         without("ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);"), RACE,
         "ptx::cp_async_bulk_tensor", _INIT_FENCE),
        ("no wait for the full barrier",
         without("while (!ptx::mbarrier_try_wait_parity(&full[i], phase)) {}"), FAULT,
         "2 * stage[i][k]", rf"{_IN_FLIGHT}.* wait for its phase of full\[0\] first"),
        ("no release", without("ptx::mbarrier_arrive(&empty[i]);"), DEADLOCK, "&empty[i], phase",
         r"empty\[0\], phase 0: 32 arrivals"),
        ("early release",
         (after("while (!ptx::mbarrier_try_wait_parity(&full[i], phase)) {}",
                "ptx::mbarrier_arrive(&empty[i]);"),
          without("ptx::mbarrier_arrive(&empty[i]);")),
         RACE, "2 * stage[i][k]", r"had arrived on empty\[0\] before this access"),
    ),
    *_of(
        "scan",
        ("no barrier after the ticket", Edit("__syncthreads();", "__syncwarp();", nth=1), RACE,
         "tile = tile_of_block", _NO_BARRIER),
        ("no barrier after the sums", Edit("__syncthreads();", "__syncwarp();", nth=2), RACE,
         "sum += sums[i]", _NO_BARRIER),
        ("a tile does not publish its sum",
         without("Shared(descriptors[tile]).store(own.bits, cuda::memory_order_release);", nth=1),
         DEADLOCK, "load(cuda::memory_order_acquire)", r"volatile read of descriptors\[7\]"),
    ),
    *_of(
        "cluster_gemm",
        ("a mask of one CTA", Edit("(1 << CTAS) - 1, policy", "1 << rank, policy"), DEADLOCK,
         "mbarrier::wait(ring.full_at()", "4096 bytes are missing"),
        ("no meeting of the cluster at the end",
         without("__syncwarp(); cluster::arrive(); cluster::wait();"), FAULT, "",
         "CTA . of the cluster has ended"),
        ("sums read in flight", without("wgmma::wait<0>();"), RACE, "wgmma::m64n64k16<1>(c, a + 2",
         "registers are used before wgmma has finished"),
        ("a row beyond the end",
         Edit('"setp.lt.s32 inside, %3, %4;\\n\\t"', '"setp.le.s32 inside, %3, %4;\\n\\t"'), FAULT,
         "st.global.v2.f32", r"out\[250\]\[\d+\], (\d+ bytes|right) after the end of out"),
    ),
)  # fmt: skip


# A fence in one direction makes writes visible to TMA.
RELEASED = Defect(
    "bulk_copy",
    "a fence of writes alone",
    (
        Edit(
            "cde::fence_proxy_async_shared_cta();",
            'asm volatile("fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;"'
            ' ::: "memory");',
            nth=2,
        ),
    ),
)


def planted(sample: str, defect: Defect | None) -> Kernel:
    """Return the sample with a defect."""
    every = (one for one in (*DEFECTS, RELEASED) if one.kernel == sample)
    found = choices(text_of(sample), tuple(every))
    kernel = _built(sample, found.text_with(defect))
    found.choose(kernel, defect)
    return kernel


@functools.cache
def _built(sample: str, text: str) -> Kernel:
    return Kernel(text, INSTANCES.get(sample, sample))


def text_of(sample: str) -> str:
    return (FOLDER / f"{sample}.cu").read_text()
