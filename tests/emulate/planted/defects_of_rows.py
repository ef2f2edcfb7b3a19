# ruff: noqa: E501 - a row a defect
"""Defects in kernels that share rows, flags, counters or tensor maps between threads and blocks."""

from __future__ import annotations

from emulate.planted.expected import (
    ANY,
    IN_FLIGHT,
    OUTSIDE,
    PROXY,
    RACE_OR_DEADLOCK,
    RACE_OR_FAULT,
    UNWRITTEN,
    rows_of,
)
from planted import DEADLOCK, FAULT, RACE, Edit, after, before, without

RAGGED = rows_of(
    "ragged",
    ("bytes", "whole chunks are loaded",
     Edit("tma_load_1d(packed + at, shared.full, shared.in, bytes)",
          "tma_load_1d(packed + at, shared.full, shared.in, kChunk * 4)"), ANY,
     r"full|outside every array|none of the launch's arrays"),
    ("store groups", "the buffer is not waited for", without("wait_group_read<0>();"), RACE, r"wait_group_read",
     "tma_store_1d"),
    ("store groups", "the end is not waited for", without("if (thread == 0) wait_group<0>();"), FAULT, r"wait_group"),
    ("store groups", "each warp's lane 0 stores",
     Edit("if (thread == 0) { tma_store_1d", "if (thread % 32 == 0) { tma_store_1d"), RACE_OR_FAULT,
     r"store|global|wait_group|halved"),
    ("fence", "no proxy fence", without("fence_async_view_proxy();"), RACE, PROXY, "shared.out[thread] ="),
    ("sync", "no barrier before the store", without("__syncthreads();", nth=3), RACE_OR_FAULT,
     r"barrier|" + UNWRITTEN, "tma_store_1d"),
    ("uninitialised", "more elements than were loaded",
     Edit("if (thread < count) shared.out", "if (thread >= 0) shared.out"), FAULT, UNWRITTEN, "shared.in[thread]"),
    ("missing wait", "the chunk is not waited for", without("shared.full.wait(phase);"), FAULT, IN_FLIGHT,
     "shared.in[thread]"),
    ("early release", "the next load before all have read",
     Edit("fence_async_view_proxy(); __syncthreads();",
          "fence_async_view_proxy(); NamedBarrier<32>{1 + thread / 32u}.sync();"), ANY,
     r"barrier|in|out|" + UNWRITTEN),
)  # fmt: skip


RING = rows_of(
    "ring",
    ("fence", "no proxy fence before the push", without("fence_async_view_proxy();"), RACE, PROXY,
     "shared.parts[rank][thread]"),
    ("cluster", "pushed before the neighbour is ready",
     Edit("cluster_sync(); for (int step", "__syncthreads(); for (int step"), RACE_OR_FAULT, r"received|cluster"),
    ("cluster", "a CTA leaves early", without("cluster_sync();", nth=2), FAULT, r"cluster_sync\(\)"),
    ("bytes", "nothing is expected",
     Edit("if (part != rank) shared.received[part].expect_bytes(sizeof(shared.parts[part]));",
          "if (part != rank) shared.received[part].arrive();"), ANY, r"received|" + IN_FLIGHT),
    ("missing wait", "passed on before it has come", without("if (step > 0) received.wait(0);"), ANY,
     r"received|" + UNWRITTEN + r"|part"),
    ("missing wait", "the last part is not waited for", without("shared.received[right].wait(0);"), ANY,
     IN_FLIGHT + r"|received"),
    ("sync", "pushed before all have written",
     before("cluster_sync(); for (int step",
            "if (thread == 0) tma_store_cluster(shared.parts[rank], shared.received[rank], shared.parts[rank], "
            "sizeof(shared.parts[0]), right);"), ANY, r"barrier|received|" + UNWRITTEN,
     "tma_store_cluster(shared.parts[rank]"),
    ("register hazard", "the part is changed while it is pushed",
     before("shared.received[right].wait(0);", "shared.parts[rank][thread] += 1;"), RACE, r"parts",
     "shared.parts[rank][thread] += 1"),
    ("alignment", "a push off 16 bytes",
     Edit("tma_store_cluster(part, received, part,", "tma_store_cluster(part, received, part + 1,"), FAULT, r"16",
     "tma_store_cluster"),
)  # fmt: skip


STENCIL = rows_of(
    "stencil",
    ("missing wait", "cp.async is not waited for", without("cp_async_wait<1>();"), FAULT,
     r"cp.async to these bytes is in flight", "mine["),
    ("missing wait", "the first chunk is not committed", without("cp_async_commit();", nth=1), ANY, r"cp.async",
     "mine["),
    ("sync", "no barrier after the wait", without("__syncthreads();", nth=1), RACE_OR_FAULT,
     r"barrier|cp.async|" + UNWRITTEN, "mine["),
    ("sync", "the buffer is filled while others read", without("__syncthreads();", nth=2), RACE, r"barrier|buffer",
     "cp_async_gs<16>(&next"),
    ("out of bounds", "a chunk too many is fetched", Edit("if (chunk + 1 < chunks) {", "if (chunk < chunks) {"),
     FAULT, OUTSIDE, "cp_async_gs<16>(&next"),
    ("alignment", "a source off 16 bytes", after("values + (chunk + 1) * kChunk + thread * 4", "- 1"), FAULT,
     r"multiples of 16", "cp_async_gs<16>(&next"),
    ("alignment", "a buffer off 16 bytes", Edit("&next[thread * 4]", "&next[thread * 4 + 1]"), FAULT,
     r"multiples of 16", "cp_async_gs<16>(&next"),
    ("uninitialised", "every other element is fetched",
     Edit("cp_async_gs<16>(&buffers[0][thread * 4], values + thread * 4);",
          "cp_async_gs<8>(&buffers[0][thread * 4], values + thread * 4);"), FAULT, UNWRITTEN, "mine["),
)  # fmt: skip


SCAN = rows_of(
    "scan",
    ("sync", "no barrier before the warps' sums are read", without("__syncthreads();", nth=1), RACE_OR_FAULT,
     r"warps", "warps["),
    ("sync", "no barrier before they are added", without("__syncthreads();", nth=2), RACE, r"warps", "warps["),
    ("sync", "__syncwarp instead", Edit("__syncthreads(); if (warp > 0)", "__syncwarp(); if (warp > 0)"), RACE,
     r"warps", "warps["),
    ("uninitialised", "lane 31 of warp 0 alone",
     Edit("if (lane == 31) warps[warp] = sum;", "if (thread == 31) warps[warp] = sum;"), FAULT, UNWRITTEN,
     "int total = warps[lane]"),
    ("uninitialised", "all lanes take a warp", Edit("if (warp == 0 && lane < kThreads / 32) {", "if (warp == 0) {"),
     ANY, r"warps|shared|lane"),
    ("out of bounds", "the warp after the last", Edit("warps[warp - 1]", "warps[warp + 1]"), ANY, r"warps|shared",
     "warps[warp + 1]"),
    ("global race", "blocks write the same sums",
     Edit("sums[blockIdx.x * kThreads + thread] = sum", "sums[thread] = sum"), RACE, r"sums|global",
     "sums[thread] = sum"),
)  # fmt: skip


HANDOFF = rows_of(
    "handoff",
    ("named barrier", "the buffer is filled before it is free",
     without("if (step >= 2) NamedBarrier<128>{3 + buffer}.sync();"), RACE_OR_DEADLOCK, r"buffers|barrier",
     "buffers[buffer]"),
    ("named barrier", "taken before it is full", without("NamedBarrier<128>{1 + buffer}.sync();"), ANY,
     r"buffers|" + UNWRITTEN, "buffers[buffer][kElements"),
    ("named barrier", "nobody frees the buffer",
     without("if (step + 2 < steps) NamedBarrier<128>{3 + buffer}.arrive();"), DEADLOCK, r"barrier [34]: 64 arrivals",
     ".sync()"),
    ("named barrier", "freed before it is read",
     Edit("out[step * kElements + thread] = buffers[buffer][kElements - 1 - thread]; if (step + 2 < steps) "
          "NamedBarrier<128>{3 + buffer}.arrive();",
          "if (step + 2 < steps) NamedBarrier<128>{3 + buffer}.arrive(); out[step * kElements + thread] = "
          "buffers[buffer][kElements - 1 - thread];"), RACE, r"buffers", "buffers[buffer]"),
    ("named barrier", "a lane does not arrive", before("NamedBarrier<128>{1 + buffer}.arrive();", "if (thread != 5)"),
     ANY, r"barrier|lane|buffers"),
    ("sync", "__syncthreads where roles part", Edit("NamedBarrier<128>{1 + buffer}.sync();", "__syncthreads();"), ANY,
     r"barrier|buffers|" + UNWRITTEN),
)  # fmt: skip
