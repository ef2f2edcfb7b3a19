"""Remedies for kernels without our headers: name instructions instead of our functions."""

from __future__ import annotations

import re

from tmaasync._source.compile import Source
from tmaasync._source.includes import included

_INSTRUCTIONS = {
    "ptx::fence_proxy_async_global()": "fence.proxy.async.global",
    "fence_async_view_proxy()": "fence.proxy.async.shared::cta",
    "fence_barrier_init()": "fence.mbarrier_init",
    "invalidate()": "mbarrier.inval",
    "cp_async_commit()": "cp.async.commit_group",
    "cp_async_wait_all()": "cp.async.wait_all",
    "cp_async_wait<N>()": "cp.async.wait_group",
    "mbarrier_cp_async_arrive()": "cp.async.mbarrier.arrive",
    "mbarrier_cp_async_arrive": "cp.async.mbarrier.arrive",
    "cp_async_gs_zero_fill": "fewer source bytes",
    "wgmma_commit_group()": "wgmma.commit_group",
    "wgmma_wait_group()": "wgmma.wait_group",
    "wgmma_wait_group": "wgmma.wait_group",
    "wgmma_fence()": "wgmma.fence",
    "commit_group()": "cp.async.bulk.commit_group",
    "wait_group_read<0>()": "cp.async.bulk.wait_group.read 0",
    "wait_group<0>()": "cp.async.bulk.wait_group 0",
    "wait_group_read": "cp.async.bulk.wait_group.read",
    "wait_group": "cp.async.bulk.wait_group",
    "tensormap_cp_fence_release()": "tensormap.cp_fenceproxy",
    "tensormap_fence_release()": "fence.proxy.tensormap.release",
    "tensormap_fence_acquire()": "fence.proxy.tensormap.acquire",
    "; edit_in_gmem and edit_in_shared_mem do both": "",
    "cluster_sync()": "barrier.cluster",
    "arrive() or arrive_cluster()": "mbarrier.arrive.release",
    "blocks_in_cluster()": "%cluster_nctarank",
    "wait_for_previous_grids()": "griddepcontrol.wait",
    "Call init() inside": "Execute mbarrier.init inside",
    "init() counts": "mbarrier.init counts",
    "init() must": "mbarrier.init must",
    "between init() and": "between mbarrier.init and",
}
# Whole words only; longer names come before names that they contain.
_NAMES = re.compile(
    r"(?<![\w.])(?:"
    + "|".join(map(re.escape, sorted(_INSTRUCTIONS, key=len, reverse=True)))
    + r")(?!\w)"
)

_COUNTED = {
    re.compile(r"\bcp_async_wait<(\d+)>\(\)"): r"cp.async.wait_group \1",
    re.compile(r"\barrive_cluster\((\d+)\)"): r"mbarrier.arrive at the address in CTA \1 (mapa)",
}


def in_words_of(source: Source, sentence: str) -> str:
    """Return a report's sentence with our functions replaced by instructions, if needed."""
    if any(one.is_quoted or one.name.startswith("tmaasync/") for one in included(source.text)):
        return sentence
    for numbered, instruction in _COUNTED.items():
        sentence = numbered.sub(instruction, sentence)
    return _NAMES.sub(lambda found: _INSTRUCTIONS[found[0]], sentence)
