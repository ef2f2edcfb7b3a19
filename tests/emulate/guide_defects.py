"""Defects in the kernels of `parity.guide_samples`: what replaces what, and what is reported."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from parity.guide_samples import FOLDER, INSTANCES

from tmaasync import EmulatedDeadlock, EmulatedFault, EmulatedRace, Kernel
from tmaasync.errors import TMAError

__all__ = ["DEFECTS", "Defect", "planted", "text_of"]


@dataclass(frozen=True, slots=True)
class Defect:
    """Statements and what stands in their place; the report's class, a line of it, its words."""

    sample: str
    name: str
    edits: tuple[tuple[str, str], ...]
    reported: type[TMAError]
    line: str
    says: str

    @property
    def key(self) -> str:
        return f"{self.sample}: {self.name}"


# Up to the first semicolon that ends a line, and so is not within the text of an asm statement.
_STATEMENT = re.compile(r".*?;(?=\s*(?://|\n|$))", re.DOTALL)


def _without(statement: str) -> tuple[tuple[str, str], ...]:
    return _instead(statement, "")


def _instead(statement: str, other: str) -> tuple[tuple[str, str], ...]:
    return ((statement, other),)


_FENCE = "cde::fence_proxy_async_shared_cta();\n    __syncthreads();\n\n    if"
_NO_BARRIER = "no barrier orders the two"
_IN_FLIGHT = "A TMA load to these bytes is in flight"
_NOT_VISIBLE = r"Every writing thread calls fence\.proxy\.async\.shared::cta after it"
_INIT_FENCE = r"must call fence\.mbarrier_init after it"
_GROUPS = r'asm volatile("cp.async.wait_group %0;\n" ::'
_RELEASE = "ptx::mbarrier_arrive(&empty[i]);"
_FULL = "while (!ptx::mbarrier_try_wait_parity(&full[i], phase)) {}"

DEFECTS = (
    Defect(
        "bulk_copy", "no fence after init",
        _without("cde::fence_proxy_async_shared_cta();\n    }"),
        EmulatedRace, "memcpy_async_tx", _INIT_FENCE,
    ),
    Defect(
        "bulk_copy", "no barrier after init",
        _without("__syncthreads();\n\n    barrier::arrival_token"),
        EmulatedRace, "bar.arrive()", "no barrier lies between mbarrier.init and the use",
    ),
    Defect(
        "bulk_copy", "no wait",
        _without("bar.wait(cuda::std::move(token));"),
        EmulatedFault, "buffer[i] += 1", rf"{_IN_FLIGHT}.* wait for its phase of bar first",
    ),
    Defect(
        "bulk_copy", "no bytes expected",
        (("token = cuda::device::barrier_arrive_tx(bar, 1, bytes);", "token = bar.arrive();"),),
        EmulatedFault, "buffer[i] += 1", _IN_FLIGHT,
    ),
    Defect(
        "bulk_copy", "no proxy fence", _without(_FENCE),
        EmulatedRace, "cp_async_bulk_shared_to_global", _NOT_VISIBLE,
    ),
    Defect(
        "bulk_copy", "no barrier before the store",
        _without("__syncthreads();\n\n    if (threadIdx.x == 0) {\n        cde::"),
        EmulatedRace, "buffer[i] += 1", _NO_BARRIER,
    ),
    Defect(
        "bulk_copy", "no commit", _without("cde::cp_async_bulk_commit_group();"),
        EmulatedFault, "cp_async_bulk_shared_to_global", r"with cp\.async\.bulk\.commit_group",
    ),
    Defect(
        "bulk_copy", "no wait for the store",
        _without("cde::cp_async_bulk_wait_group_read<0>();"),
        EmulatedFault, "cp_async_bulk_shared_to_global", r"cp\.async\.bulk\.wait_group\.read 0",
    ),
    Defect(
        "tensor_copy", "no fence after init",
        _without("cde::fence_proxy_async_shared_cta();\n    }"),
        EmulatedRace, "2d_global_to_shared", _INIT_FENCE,
    ),
    Defect(
        "tensor_copy", "too few bytes",
        (
            (
                "token = cuda::device::barrier_arrive_tx(bar, 1, sizeof(box));",
                "token = cuda::device::barrier_arrive_tx(bar, 1, 1024);",
            ),
        ),
        EmulatedDeadlock, "bar.wait", "1024 bytes more than expected arrived",
    ),
    Defect(
        "tensor_copy", "no wait", _without("bar.wait(std::move(token));"),
        EmulatedFault, "] += 1;", rf"{_IN_FLIGHT}.* wait for its phase of bar first",
    ),
    Defect(
        "tensor_copy", "no proxy fence", _without(_FENCE),
        EmulatedRace, "2d_shared_to_global", _NOT_VISIBLE,
    ),
    Defect(
        "stages", "no acquire", _without("pipeline.producer_acquire();"),
        EmulatedRace, "cuda::memcpy_async", "may not have landed|before its readers are done",
    ),
    Defect(
        "stages", "no commit", _without("pipeline.producer_commit();"),
        EmulatedDeadlock, "consumer_wait", r"state\.produced\[0\], phase 0: 64 arrivals",
    ),
    Defect(
        "stages", "no wait", _without("pipeline.consumer_wait();"),
        EmulatedFault, "const int value", r"cp\.async to these bytes is in flight",
    ),
    Defect(
        "stages", "no release", _without("pipeline.consumer_release();"),
        EmulatedDeadlock, "producer_acquire", r"state\.consumed\[0\], phase 0: 64 arrivals",
    ),
    Defect(
        "stages", "early release",
        (
            ("pipeline.consumer_wait();", "pipeline.consumer_wait(); pipeline.consumer_release();"),
            ("pipeline.consumer_release();\n    }", ""),
        ),
        EmulatedRace, "cuda::memcpy_async", "may not have landed|before its readers are done",
    ),
    Defect(
        "histogram", "no barrier after the zeros",
        _without("cluster.sync();\n\n    for"),
        EmulatedRace, "own[i] = 0", _NO_BARRIER,
    ),
    Defect(
        "histogram", "no barrier before the bins are read",
        _without("cluster.sync();\n\n    int* const target"),
        EmulatedRace, "atomicAdd(theirs", _NO_BARRIER,
    ),
    Defect(
        "reduction", "no barrier of the block", _without("block.sync();"),
        EmulatedRace, "of_warps[warp.meta_group_rank()] = value", _NO_BARRIER,
    ),
    Defect(
        "reduction", "no barrier of the grid",
        _without("grid.sync();\n        if"),
        EmulatedRace, "total += sums[1 + i]", "does not reach another block",
    ),
    Defect(
        "reduction", "no barrier between rounds", _without("grid.sync();\n    }"),
        EmulatedRace, "total += sums[1 + i]", "does not reach another block",
    ),
    Defect(
        "ring", "no fence after init",
        _without("ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);"),
        EmulatedRace, "ptx::cp_async_bulk_tensor", _INIT_FENCE,
    ),
    Defect(
        "ring", "no wait for the full barrier", _without(_FULL),
        EmulatedFault, "2 * stage[i][k]", rf"{_IN_FLIGHT}.* wait for its phase of full\[0\] first",
    ),
    Defect(
        "ring", "no release", _without(_RELEASE),
        EmulatedDeadlock, "&empty[i], phase", r"empty\[0\], phase 0: 32 arrivals",
    ),
    Defect(
        "ring", "early release", ((_FULL, f"{_FULL} {_RELEASE}"), (_RELEASE, "")),
        EmulatedRace, "2 * stage[i][k]", "the buffer is loaded before its readers are done",
    ),
    Defect(
        "scan", "no barrier after the ticket",
        _instead("__syncthreads();  // of the ticket", "__syncwarp();"),
        EmulatedRace, "tile = tile_of_block", _NO_BARRIER,
    ),
    Defect(
        "scan", "no barrier after the sums",
        _instead("__syncthreads();  // of the sums", "__syncwarp();"),
        EmulatedRace, "sum += sums[i]", _NO_BARRIER,
    ),
    Defect(
        "scan", "a tile does not publish its sum",
        _without(
            "Shared(descriptors[tile]).store(own.bits, cuda::memory_order_release);\n"
            "        unsigned"
        ),
        EmulatedDeadlock, "load(cuda::memory_order_acquire)", r"volatile read of descriptors\[7\]",
    ),
    Defect(
        "ampere_gemm", "a group too few is waited for",
        _instead(f'{_GROUPS}"n"(C::kStages - 2));', f'{_GROUPS}"n"(C::kStages - 1));'),
        EmulatedFault, "load_matrices(",
        r"cp\.async to these bytes is in flight.* waits with cp\.async\.wait_group 1",
    ),
    Defect(
        "ampere_gemm", "no barrier in the loop", _without("__syncthreads();\n        load_stage"),
        EmulatedRace, "load_matrices(", r"waits with cp\.async\.wait_group and then meets",
    ),
    Defect(
        "ampere_gemm", "a stage is filled again too early",
        _instead("load_stage(block + C::kStages - 1);", "load_stage(block + C::kStages);"),
        EmulatedFault, "load_matrices(", "which nothing has written",
    ),
    Defect(
        "dynamic_gemm", "the other block's readers do not count",
        _instead(
            "init_barrier(&smem.taken, CLUSTER * (CONSUMERS * 128 + 2));",
            "init_barrier(&smem.taken, CONSUMERS * 128 + 2);",
        ),
        EmulatedFault, "wait(&smem.taken", "taken completed phase 1 while this thread was still",
    ),
    Defect(
        "dynamic_gemm", "the other block's half of b is not expected",
        _instead(
            "expect_bytes(&smem.full[stage], (BM + BN) * BK * sizeof(bf16));",
            "expect_bytes(&smem.full[stage], (BM + BN / 2) * BK * sizeof(bf16));",
        ),
        EmulatedRace, "wgmma(d, left", r"Wait on full\[0\] before the other access",
    ),
    Defect(
        "dynamic_gemm", "a release of the own block only",
        _instead(
            "if (thread < CLUSTER) arrive(&smem.empty[stage], thread);",
            "if (thread == 0) arrive(&smem.empty[stage], rank);",
        ),
        EmulatedDeadlock, "wait(&smem.empty[stage]",
        r"on empty\[0\], phase 0: 2 arrivals.*only warps 4, 8 released stage 0",
    ),
    Defect(
        "dynamic_gemm", "no proxy fence",
        _without('asm volatile("fence.proxy.async.shared::cta;\\n" ::: "memory");'),
        EmulatedRace, "stmatrix", _NOT_VISIBLE,
    ),
    Defect(
        "dynamic_gemm", "the staged tile is written while TMA reads it",
        _without(
            r'if (thread == 0) asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");'
        ),
        EmulatedRace, "tma_store(", "the store may still be reading its buffer",
    ),
    Defect(
        "float8_gemm", "scales replaced while they are read",
        _without('asm volatile("bar.sync 2, 128;" ::: "memory");'),
        EmulatedRace, "scales[i] = __ldg", _NO_BARRIER,
    ),
    Defect(
        "float8_gemm", "accumulators used in flight",
        _without(r'asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(0) : "memory");'),
        EmulatedRace, "total[j] +=", "registers are used before wgmma has finished",
    ),
    Defect(
        "float8_gemm", "a warp does not release",
        _instead(
            "if (lane == 0) (void)empty[stage]->arrive();",
            "if (threadIdx.x == 0) (void)empty[stage]->arrive();",
        ),
        EmulatedDeadlock, "empty[stage]->wait_parity", "phase 0: 3 arrivals and 0 bytes",
    ),
    Defect(
        "float8_gemm", "no fence after init",
        _without('asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");'),
        EmulatedRace, "load_tile(", _INIT_FENCE,
    ),
    Defect(
        "mma_attention", "V is not waited for", _without("__pipeline_wait_prior(1);  // for V"),
        EmulatedFault, "load_matrices<true>(", r"cp\.async to these bytes is in flight",
    ),
    Defect(
        "mma_attention", "other threads' part of V is not waited for",
        _instead("__syncthreads();           // of V", "__syncwarp();"),
        EmulatedFault, "load_matrices<true>(", r"cp\.async to these bytes is in flight",
    ),
    Defect(
        "mma_attention", "K is replaced while it is read",
        _instead(
            "if (!is_last) copy_tile<KEYS>(tile_k[at ^ 1], k, key0 + KEYS, p.keys);",
            "if (!is_last) copy_tile<KEYS>(tile_k[at], k, key0 + KEYS, p.keys);",
        ),
        EmulatedRace, "load_matrices<false>(", "the copy may not have landed",
    ),
)  # fmt: skip


@functools.cache
def planted(sample: str) -> Kernel:
    """Return the sample with one more parameter: the number in `DEFECTS` of the one it has.

    Lines keep their numbers.
    """
    text = text_of(sample)
    choices: dict[tuple[int, str], list[str]] = {}
    for number, defect in enumerate(DEFECTS):
        for old, new in defect.edits if defect.sample == sample else ():
            assert text.count(old) == 1, (defect.key, old)
            found_statement = _STATEMENT.match(old)
            statement = found_statement[0] if found_statement else old
            choice = f"if (defect == {number}) {{ {new} }} else "
            choices.setdefault((text.index(old), statement), []).append(choice)
    for (start, statement), found in sorted(choices.items(), reverse=True):
        chosen = f"{''.join(found)}{{ {statement} }}"
        text = text[:start] + chosen + text[start + len(statement) :]
    header = re.compile(rf"(\b{sample}\([^()]*?)(\s*\)\s*\{{)")
    return Kernel(header.sub(r"\1, int defect\2", text), INSTANCES.get(sample, sample))


def text_of(sample: str) -> str:
    return (FOLDER / f"{sample}.cu").read_text()
