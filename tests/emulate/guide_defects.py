"""Defects in the samples of `parity.guide_samples`: what replaces what, and what is reported."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from parity.guide_samples import FOLDER

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


def _without(statement: str) -> tuple[tuple[str, str], ...]:
    return ((statement, ""),)


_FENCE = "cde::fence_proxy_async_shared_cta();\n    __syncthreads();\n\n    if"
_NO_BARRIER = "no barrier orders the two"
_IN_FLIGHT = "A TMA load to these bytes is in flight"
_NOT_VISIBLE = r"Every writing thread calls fence\.proxy\.async\.shared::cta after it"
_INIT_FENCE = r"must call fence\.mbarrier_init after it"
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
            statement = old[: old.find(";") + 1] or old
            choice = f"if (defect == {number}) {{ {new} }} else "
            choices.setdefault((text.index(old), statement), []).append(choice)
    for (start, statement), found in sorted(choices.items(), reverse=True):
        chosen = f"{''.join(found)}{{ {statement} }}"
        text = text[:start] + chosen + text[start + len(statement) :]
    header = re.compile(rf"(void {sample}\([^)]*?)(\s*\))")
    return Kernel(header.sub(r"\1, int defect\2", text), sample)


def text_of(sample: str) -> str:
    return (FOLDER / f"{sample}.cu").read_text()
