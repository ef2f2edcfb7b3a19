"""The tables of every recorded case, which docs/conf.py puts where a page has their mark."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from result_files import RESULTS, Row, Section
from write_tables import (
    NOT_MEASURED,
    OPERATIONS,
    OURS,
    Recorded,
    all_recorded,
    cases,
    gpu_name,
    group_of,
    groups,
    line,
    probes,
    ratio_key,
)

EVERY_CASE = "<!-- every case -->"
# The keys that a row may hold, in the order of preference, and the unit of each in the table.
_UNITS = {
    "tb_per_s": "TB/s, read + write",
    "read_tb_per_s": "TB/s, read",
    "tflop_per_s": "TFLOP/s",
    "gb_per_s": "GB/s",
    "us": "microseconds",
}
# The ratio in shorter slices, where it was measured too: see docs/benchmarks.md.
_SHORTER = ("interleaved", "burst")
_TITLES = {
    "all_gather": "All-gather",
    "all_gather_scaled_matmul": "All-gather and block-scaled FP8 matmul",
    "all_reduce": "All-reduce",
    "all_gather_matmul": "All-gather and matmul",
    "all_gather_matmul_torch": "All-gather and matmul, with torch's fused operator",
    "matmul_all_reduce": "Matmul and all-reduce",
    "moe_combine": "Ragged all-to-all, combine",
    "moe_dispatch": "Ragged all-to-all, dispatch",
    "matmul_reduce_scatter": "Matmul and reduce-scatter",
    "reduce_scatter": "Reduce-scatter",
    "scaled_matmul_reduce_scatter": "Block-scaled FP8 matmul and reduce-scatter",
    "compared_kernels": "Kernels of the structured layer over the kernels before it",
    "compared_exponent": "Attention that bounds its exponents over attention that does not",
    "structured_kernels": "Kernels of the tutorial over ops",
    "attention": "Attention",
    "attention_backward": "Attention backward",
    "attention_backward_flash_attn_interface": "Attention backward over FlashAttention-3",
    "attention_flash_attn_interface": "Attention over FlashAttention-3",
    "attention_flash_attn_cute": "Attention over FlashAttention-4",
    "attention_backward_flash_attn_cute": "Attention backward over FlashAttention-4",
    "attention_float8": "FP8 attention",
    "attention_host": "Host cost of attention",
    "batch_invariant": "Batch-invariant calls over others",
    "batched_matmul": "Batched GEMM",
    "conv2d": "conv2d",
    "copy": "Copies",
    "few_rows": "Matmuls of several GPUs with few rows",
    "fp8_blockwise_matmul": "Block-scaled FP8 GEMM",
    "fp8_blockwise_matmul_deep_gemm": "Block-scaled FP8 GEMM over DeepGEMM",
    "fp8_matmul": "FP8 GEMM, per-tensor scales",
    "grouped_matmul": "Grouped GEMM (MoE)",
    "host": "Host cost of tiles, launches and operations",
    "k_grouped_matmul": "K-grouped GEMM (weight gradient of MoE)",
    "matmul": "GEMM",
    "matmul_deep_gemm": "GEMM over DeepGEMM",
    "matmul_quack": "GEMM over QuACK",
    "matmul_epilogue": "GEMM with an epilogue",
    "matmul_types": "GEMM in int8 and tf32",
    "paged_decode": "Decode from a paged KV cache",
    "peers": "TMA to and from a peer's memory",
    "ragged": "Ragged pack and unpack",
    "reads": "TMA reads by L2 promotion",
    "reduce_add": "reduce_add",
    "ring_attention": "Ring attention",
    "ring_attention_backward": "Ring attention backward",
    "signals": "Signals between GPUs",
    "split_k": "GEMM, split-K shapes",
    "torch_group": "Operators of tmaasync.torch over a process group",
    "stream_k": "Stream-K GEMM of the cookbook over ops",
    "varlen_attention": "Varlen attention",
    "varlen_attention_backward": "Varlen attention backward",
    "varlen_attention_backward_flash_attn_interface": "Varlen backward over FlashAttention-3",
    "varlen_attention_flash_attn_interface": "Varlen attention over FlashAttention-3",
    "varlen_attention_flash_attn_cute": "Varlen attention over FlashAttention-4",
    "varlen_attention_backward_flash_attn_cute": "Varlen backward over FlashAttention-4",
}
# Candidates by the names that readers know.
_NAMES = {
    "cublas_alone": "cuBLAS of gathered rows",
    "cublas_alone_graph": "cuBLAS of gathered rows, CUDA graph",
    "cublas_next_to_torch_fused": "cuBLAS next to torch fused",
    "copy_engine": "copy engine",
    "cudnn": "cuDNN",
    "cudnn, bfloat16": "cuDNN in bf16",
    "deep_gemm": "DeepGEMM",
    "flash2": "FlashAttention-2",
    "flash_attn_interface": "FlashAttention-3",
    "flash_attn_cute": "FlashAttention-4",
    "nccl": "NCCL",
    "nccl_cublas": "NCCL + cuBLAS",
    "nccl_cublas_graph": "NCCL + cuBLAS, CUDA graph",
    "nccl_graph": "NCCL, CUDA graph",
    "nccl_scaled_matmul": "NCCL + ops.scaled_matmul",
    "nccl_scaled_matmul_graph": "NCCL + ops.scaled_matmul, CUDA graph",
    "one_gpu": "one GPU",
    "overlapped": "overlapping kernels",
    "plain": "without epilogue",
    "quack": "QuACK",
    "scaled_matmul_alone": "ops.scaled_matmul alone",
    "scaled_matmul_alone_graph": "ops.scaled_matmul alone, CUDA graph",
    "share": "a rank's part, keys in place",
    "static_schedule": "static schedule",
    "tmaasync_graph": "tmaasync, CUDA graph",
    "torch_fused": "torch fused",
}


def every_case(results: Path = RESULTS) -> str:
    """Return a heading and a table for every section of every GPU."""
    return "\n".join(_by_section(all_recorded(results))) or NOT_MEASURED


def _by_section(recorded: list[Recorded]) -> Iterator[str]:
    """Yield a heading and a table for every section of every GPU, one section after the other."""
    newest_first = sorted(recorded, key=lambda one: gpu_name(one[2]), reverse=True)
    for _, name, section in sorted(newest_first, key=lambda one: one[1]):
        yield f"### {_TITLES.get(name, name)} on {gpu_name(section)}\n"
        measured = section.measured
        yield f"{measured['gpu']}, {measured['date'][:10]}, driver {measured['driver']}:\n"
        rows = cases(section)
        for key in dict.fromkeys(map(ratio_key, rows)):
            yield from _race(name, [row for row in rows if ratio_key(row) == key])
        if rows:
            yield from _means(name, section)
        for row in groups(section):
            yield from _group(row)
        if probes(section):
            yield from _latencies(probes(section))


def _race(name: str, rows: list[Row]) -> Iterator[str]:
    """Yield a table with a case a line and a candidate a column; the rows have one reference."""
    unit = next(key for key in _UNITS if key in rows[0])
    peers = _candidates(rows)
    shorter = [key for key in _SHORTER if any(key in row for row in rows)]
    hosts = ["tmaasync, host (microseconds)"] if "host_us" in rows[0] else []
    titles = [f"{name} ({_UNITS[unit]})", *map(_title, peers), _ratio_title(rows[0])]
    titles += [*shorter, *hosts]
    yield line(titles)
    yield line(["---", *("---:" for _ in titles[1:])])
    for row in rows:
        figures = (_figure(row[unit].get(peer)) for peer in peers)
        more = (f"{row[key][OURS]['median']:.3f}" if key in row else "" for key in shorter)
        host = [_figure(row["host_us"][OURS])] if hosts else []
        yield line([row["case"], *figures, _ratio(row), *more, *host])
    yield ""


def _latencies(rows: list[Row]) -> Iterator[str]:
    """Yield a table with a probe a line: its time, or how many hand-overs were wrong."""
    yield line(["between GPUs", "ranks", "microseconds", "wrong"])
    yield line(["---", "---:", "---:", "---:"])
    for row in rows:
        if "hand_overs" in row:
            wrong = f"{row['wrong_elements']} elements in {row['hand_overs']:,} hand-overs"
            yield line([row["probe"], str(row["ranks"]), f"{row['us_per_round']:.2f}", wrong])
        else:
            time = f"{row['us']:.2f} ({row['us_min']:.2f} to {row['us_max']:.2f})"
            yield line([row["probe"], str(row["ranks"]), time, ""])
    yield ""


def _means(name: str, section: Section) -> Iterator[str]:
    """Yield the mean of each operation of the section."""
    for operation in OPERATIONS:
        group = group_of(operation, section) if operation.section == name else None
        if group:
            count = len(group.ratios)
            cases = f"{count} case{'s' if count > 1 else ''}"
            yield f"* {operation.name}, {cases}: {group.text} x {operation.peer}"
    yield ""


def _group(row: Row) -> Iterator[str]:
    """Yield a table with a candidate a line."""
    ratios = row[ratio_key(row)]
    yield line([row["group"], "microseconds", _ratio_title(row)])
    yield line(["---", "---:", "---:"])
    for peer, microseconds in row["us"].items():
        yield line([_title(peer), _figure(microseconds), f"{ratios[peer]:.2f}"])
    yield ""


def _candidates(rows: Iterable[Row]) -> list[str]:
    """Return the candidates of all rows: ours first, then in alphabetical order."""
    names = {name for row in rows for name in row["us"]}
    return sorted(names, key=lambda name: (name != OURS, name))


def _title(candidate: str) -> str:
    return _NAMES.get(candidate, candidate)


def _ratio_title(row: Row) -> str:
    kind, over, peer = ratio_key(row).split("_", 2)
    return f"{kind} {over} {_title(peer)}"


def _ratio(row: Row) -> str:
    ours = row[ratio_key(row)][OURS]
    return f"{ours['median']:.3f} ({ours['min']:.3f} to {ours['max']:.3f})"


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"
