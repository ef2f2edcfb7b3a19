"""ops.attention against cuDNN and FlashAttention-2 (torch's scaled_dot_product_attention).

Packed sequences: ops.varlen_attention against torch's varlen_attn, and against itself with a paged
KV cache whose pages lie in random order. "equal lengths" is ops.attention on as many tokens in
sequences of one length, which take as many FLOPs. FP8 operands, with a scale each on the GPU:
ops.attention against itself, and against cuDNN, in bfloat16.

Writes sections "attention", "attention_float8", "attention_host" and "varlen_attention" of the
results. Inputs are normally distributed. FLOPs are 4 * head_dim for every query and key that it
attends to.

With ``--peer flash_attn_interface`` it races FlashAttention-3 instead, where that is installed,
without decode, and writes "attention_flash_attn_interface" and
"varlen_attention_flash_attn_interface": see attention_peer.py.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from attention_cases import Batch, Case, batches, cases, float8_cases
from attention_peer import AttentionPeer
from race import (
    captured,
    geometric_mean,
    host_race,
    plain_race,
    race,
    record,
    recorded,
    relative_error,
    speed_text,
    tera_per_second,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tmaasync import _arrays, ops
from tmaasync.ops._attention import Attention
from tmaasync.ops._flash.config import TileConfig
from tmaasync.ops._flash.operands import Operands, Scores
from tmaasync.ops._layouts import Layout
from tmaasync.ops._operation import tile_configs

# Relative error of bf16 probabilities and outputs against float64.
TOLERANCE = {torch.bfloat16: 6e-3, torch.float16: 1e-3, torch.float8_e4m3fn: 3.5e-2}
LARGEST = 448  # that float8_e4m3fn holds
PAGE_SIZES = (128, 16)
SWEEP = {
    64: [(3, 128), (2, 128), (2, 192), (2, 160)],
    128: [(2, 176), (2, 160), (2, 128), (3, 64)],
}
SWEEP_FLOAT8 = {
    64: [(3, 128), (3, 192), (2, 128), (1, 128)],
    128: [(3, 128), (2, 128), (2, 192), (1, 128)],
    256: [(2, 128), (2, 64), (1, 128)],
}


def throughputs(row: dict[str, Any]) -> str:
    return "  ".join(f"{name} {tflops:6.1f}" for name, tflops in row["tflop_per_s"].items())


def peer(case: Case, backend: SDPBackend, arrays: list[torch.Tensor]) -> Callable[[], Any]:
    q, k, v = (array.transpose(1, 2) for array in arrays)

    def run() -> Any:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(
                q, k, v, is_causal=case.causal, enable_gqa=case.heads != case.kv_heads
            )

    return run


def peers(
    case: Case, arrays: list[torch.Tensor], named: AttentionPeer | None
) -> dict[str, Callable[[], Any]]:
    """Return torch's back ends, or the peer that the user names, if they take the case.

    torch aligns a causal mask top left.
    """
    runs: dict[str, Callable[[], Any]] = {
        "cudnn": peer(case, SDPBackend.CUDNN_ATTENTION, arrays),
        "flash2": peer(case, SDPBackend.FLASH_ATTENTION, arrays),
    }
    if named is not None:
        runs = {named.name: named.attention(arrays, causal=case.causal)}
    found = {}
    for name, run in runs.items():
        try:
            out = run()
        except RuntimeError as error:
            print(f"  {name} does not take this: {str(error).splitlines()[0]}")
        else:
            found[name] = run
            if named is not None:
                check(case, out, arrays)
    return found


def check(case: Case, got: torch.Tensor, arrays: list[torch.Tensor]) -> None:
    """Compare with float64 on the GPU, on random rows of one head."""
    q, k, v = arrays
    head = case.heads - 1
    kv_head = head * case.kv_heads // case.heads
    rows = torch.randint(case.rows, (min(case.rows, 64),), device="cuda")
    scores = q[-1, rows, head].double() @ k[-1, :, kv_head].double().T * case.head_dim**-0.5
    if case.causal:
        columns = torch.arange(case.positions, device="cuda")
        last = rows + case.positions - case.rows
        scores = scores.masked_fill(columns[None] > last[:, None], -torch.inf)
    wanted = scores.softmax(-1) @ v[-1, :, kv_head].double()
    error = relative_error(got[-1, rows, head], wanted)
    if not error < TOLERANCE[case.dtype]:
        raise SystemExit(f"{case.label}: relative error {error:.2e}")


def measure(
    case: Case, options: argparse.Namespace, named: AttentionPeer | None = None
) -> dict[str, Any]:
    arrays = case.arrays()
    out = torch.full_like(arrays[0], torch.nan)
    check(case, ops.attention(*arrays, causal=case.causal, out=out), arrays)
    candidates = {
        "tmaasync": lambda: ops.attention(*arrays, causal=case.causal, out=out),
        **peers(case, arrays, named),
    }
    row = {"case": case.label, "head_dim": case.head_dim, "causal": case.causal}
    first = named.name if named else "cudnn"
    if named is not None and first not in candidates:
        return row
    reference = first if first in candidates else "tmaasync"
    if named is not None or case.queries:  # a call from Python may take longer than its kernel
        candidates = {name: captured([run]) for name, run in candidates.items()}
    row |= race(
        candidates, rounds=options.rounds, reference=reference, seconds_per_slice=options.seconds
    )
    shorter = ""
    if named is None:
        pair = {name: candidates[name] for name in ("tmaasync", reference)}
        row["interleaved"] = plain_race(pair, reference=reference)
        shorter = f", interleaved {row['interleaved']['tmaasync']['median']:.3f}"
    row["tflop_per_s"] = tera_per_second(row, case.flops)
    print(f"{case.label:48s} {throughputs(row)}  {speed_text(row, reference)}{shorter}", flush=True)
    return row


# --- float8 ---------------------------------------------------------------------------------------


def in_float8(array: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = array.float().abs().amax().reshape(1) / LARGEST
    return (array / scale).to(torch.float8_e4m3fn), scale


def measure_float8(case: Case, rounds: int) -> dict[str, Any]:
    arrays = case.arrays()
    operands, scales = zip(*map(in_float8, arrays), strict=True)
    out = torch.full_like(arrays[0], torch.nan)

    def ours() -> Any:
        return ops.attention(*operands, causal=case.causal, scales=scales, out=out)

    ours()
    pairs = zip(operands, scales, strict=True)
    meant = [operand.double() * scale for operand, scale in pairs]
    check(replace(case, dtype=torch.float8_e4m3fn), out, meant)
    del meant
    wide = torch.empty_like(out)
    candidates = {
        "tmaasync": ours,
        "bfloat16": lambda: ops.attention(*arrays, causal=case.causal, out=wide),
        "cudnn, bfloat16": peer(case, SDPBackend.CUDNN_ATTENTION, arrays),
    }
    if case.queries:
        candidates = {name: captured([run]) for name, run in candidates.items()}
    row = {"case": f"float8, {case.label}", "head_dim": case.head_dim, "causal": case.causal}
    row |= race(candidates, rounds=rounds, reference="bfloat16", seconds_per_slice=0.1)
    row["tflop_per_s"] = tera_per_second(row, case.flops)
    figures = throughputs(row)
    ratio = row["speed_over_bfloat16"]["tmaasync"]
    print(f"{row['case']:56s} {figures}  {ratio['median']:.3f} x bfloat16", flush=True)
    return row


def sweep(case: Case, rounds: int) -> None:
    """Time every tile config of a case, alone and in pairs, and print the fastest first."""
    arrays = case.arrays()
    is_float8 = case.dtype == torch.float8_e4m3fn
    out = torch.empty_like(arrays[0], dtype=torch.bfloat16 if is_float8 else None)
    operands = Operands.of(*arrays, "[batch, positions, heads, head_dim]", may_be_float8=True)
    target = _arrays.view(out)
    candidates = {}
    shapes = (SWEEP_FLOAT8 if is_float8 else SWEEP)[case.head_dim]
    for (consumers, block_n), cluster in itertools.product(shapes, (1, 2)):
        config = TileConfig(
            *(case.head_dim, consumers, block_n),
            cluster=cluster,
            element_bytes=case.dtype.itemsize,
        )
        attend = operation_with(config, operands, target, causal=case.causal)
        name = f"{consumers} x {block_n}, {cluster}"
        candidates[name] = lambda attend=attend: attend.run(operands, target, None, None)
    reference = next(iter(candidates))
    times = race(candidates, rounds=rounds, reference=reference, seconds_per_slice=0.05)["us"]
    print(case.label)
    for name, us in sorted(times.items(), key=lambda item: item[1]):
        print(f"  {name:12s} {us:9.1f} us {case.flops / us / 1e6:7.1f} TFLOP/s", flush=True)


def operation_with(config: TileConfig, operands: Operands, out: Any, *, causal: bool) -> Attention:
    """Return the operation, which has run once, with this tile config."""
    scores = Scores.of(operands.q.shape[-1], causal, None, None, None)
    attend = Attention(operands.layouts, Layout.of(out), scores, has_lse=False)
    with tile_configs(lambda _: config):
        attend.run(operands, out, None, None)
    return attend


# --- packed ---------------------------------------------------------------------------------------


def torch_varlen(
    arrays: list[torch.Tensor], cu_seqlens: torch.Tensor, longest: int, *, causal: bool
) -> Callable[[], Any] | None:
    try:
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415
    except ImportError:
        return None
    given = (*arrays, cu_seqlens, cu_seqlens, longest, longest)
    for options in ({"is_causal": causal}, {"window_size": (-1, 0 if causal else -1)}):
        try:
            varlen_attn(*given, **options)
        except TypeError:
            continue
        return lambda options=options: varlen_attn(*given, **options)
    return None


def paged_from(
    rows: list[torch.Tensor], lengths: tuple[int, ...], size: int
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return packed arrays as pages in random order, unused rows NaN, and the page table."""
    used = [-(-length // size) for length in lengths]
    numbers = np.split(np.random.default_rng(0).permutation(sum(used)), np.cumsum(used)[:-1])
    table = np.zeros((len(lengths), max(used)), np.int32)
    positions = []
    for row, pages, length in zip(table, numbers, lengths, strict=True):
        row[: len(pages)] = pages
        positions.append((pages[:, None] * size + np.arange(size)).reshape(-1)[:length])
    at = torch.from_numpy(np.concatenate(positions)).cuda()
    paged = []
    for packed in rows:
        memory = torch.full((sum(used) * size, *packed.shape[1:]), torch.nan).to(packed)
        memory[at] = packed
        paged.append(memory.unflatten(0, (sum(used), size)))
    return paged, torch.from_numpy(table).cuda()


def with_paged_kv(
    given: tuple[Any, ...], lengths: tuple[int, ...], size: int, out: torch.Tensor, **options: Any
) -> Callable[[], Any]:
    q, k, v, *lengths_of_both = given
    paged, table = paged_from([k, v], lengths, size)
    return lambda: ops.varlen_attention(
        q, *paged, *lengths_of_both, page_table=table, out=out, **options
    )


def check_packed(
    batch: Batch,
    runs: dict[str, Callable[[], Any]],
    arrays: list[torch.Tensor],
    out: torch.Tensor,
) -> None:
    """Check every sequence of every candidate that writes into ``out``."""
    for run in runs.values():
        out.fill_(torch.nan)
        run()
        for first, last in itertools.pairwise(batch.ends):
            length = int(last - first)
            one = Case(length, batch.head_dim, batch.heads, batch.kv_heads, batch.causal, 1)
            check(one, out[None, first:last], [array[None, first:last] for array in arrays])


def packed_inputs(batch: Batch) -> tuple[tuple[Any, ...], torch.Tensor]:
    """Return the arguments of varlen_attention, and a poisoned output."""
    total, longest = sum(batch.lengths), max(batch.lengths)
    shapes = ((total, heads, batch.head_dim) for heads in (batch.heads, *[batch.kv_heads] * 2))
    arrays = [torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]
    cu_seqlens = torch.from_numpy(batch.ends).cuda()
    given = (*arrays, cu_seqlens, cu_seqlens, longest, longest)
    return given, torch.full_like(arrays[0], torch.nan)


def measure_batch(batch: Batch, rounds: int) -> dict[str, Any]:
    given, out = packed_inputs(batch)
    *arrays, cu_seqlens, _, longest, _ = given
    runs = {"tmaasync": lambda: ops.varlen_attention(*given, causal=batch.causal, out=out)}
    for size in PAGE_SIZES:
        run = with_paged_kv(given, batch.lengths, size, out, causal=batch.causal)
        runs[f"paged KV, pages of {size}"] = run
    check_packed(batch, runs, arrays, out)
    alike = batch.alike()
    padded = alike.arrays()
    padded_out = torch.empty_like(padded[0])
    candidates = {
        **runs,
        "cu_seqlens on the host": lambda: ops.varlen_attention(
            *arrays, batch.ends, batch.ends, causal=batch.causal, out=out
        ),
        "equal lengths": lambda: ops.attention(*padded, causal=batch.causal, out=padded_out),
    }
    theirs = torch_varlen(arrays, cu_seqlens, longest, causal=batch.causal)
    if theirs is not None:
        candidates["torch"] = theirs
    reference = "torch" if theirs is not None else "equal lengths"
    row = {"case": batch.label, "causal": batch.causal}
    row |= race(candidates, rounds=rounds, reference=reference, seconds_per_slice=0.1)
    three = {name: candidates[name] for name in ("tmaasync", "equal lengths", reference)}
    row["interleaved"] = plain_race(three, reference=reference)
    flops = dict.fromkeys(candidates, batch.flops) | {"equal lengths": alike.flops}
    row["tflop_per_s"] = {name: round(flops[name] / us / 1e6, 1) for name, us in row["us"].items()}
    print_packed(batch.label, row)
    return row


def race_packed(batch: Batch, options: argparse.Namespace, named: AttentionPeer) -> dict[str, Any]:
    """Race packed sequences with the peer that the user names."""
    given, out = packed_inputs(batch)
    *arrays, cu_seqlens, _, longest, _ = given
    theirs = named.varlen_attention(arrays, cu_seqlens, longest, causal=batch.causal)
    candidates = {
        "tmaasync": lambda: ops.varlen_attention(*given, causal=batch.causal, out=out),
        named.name: theirs,
    }
    check_packed(
        batch,
        {"tmaasync": candidates["tmaasync"], named.name: lambda: out.copy_(theirs())},
        arrays,
        out,
    )
    row = {"case": batch.label, "causal": batch.causal}
    row |= race(
        candidates, rounds=options.rounds, reference=named.name, seconds_per_slice=options.seconds
    )
    row["tflop_per_s"] = tera_per_second(row, batch.flops)
    print(f"{batch.label:36s} {throughputs(row)}  {speed_text(row, named.name)}", flush=True)
    return row


def print_packed(label: str, row: dict[str, Any]) -> None:
    figures = throughputs(row)
    own = row["interleaved"]["tmaasync"]["median"]
    print(f"{label:36s} {figures}  interleaved {own:.3f}", flush=True)


def measure_host() -> dict[str, Any]:
    """Time the host's side of a call against a bound launch.

    "guards and launch" is a bound launch after the questions that any safe call asks torch: the
    type, shape and address of the four tensors.
    """
    arrays = [torch.randn(1, 64, 1, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    q, k, v, out = arrays
    ops.attention(q, k, v, out=out)
    operands = Operands.of(q, k, v, "[batch, positions, heads, head_dim]")
    target = _arrays.view(out)
    scores = Scores.of(64, False, None, None, None)
    attend = Attention(operands.layouts, Layout.of(target), scores, has_lse=False)
    attend.run(operands, target, None, None)
    bound = attend.bind([view.address for view in (*operands, target)])
    guard = _arrays.guard(arrays)
    if guard is None or bound is None:
        raise SystemExit("this torch has no guards")
    check, address_of = guard.check, guard.address_of
    launch = bound[0].bind(bound[1], torch.cuda.current_stream().cuda_stream)

    def guards_and_launch() -> None:
        if check(*arrays):
            _ = address_of(q), address_of(k), address_of(v), address_of(out)
            launch()

    candidates = {
        "ops.attention(out=)": lambda: ops.attention(q, k, v, out=out),
        "ops.attention": lambda: ops.attention(q, k, v),
        "guards and launch": guards_and_launch,
        "launch": launch,
        "sdpa": lambda: scaled_dot_product_attention(q, k, v),
    }
    row = {"group": "host cost of a call", **host_race(candidates, reference="launch")}
    print(row["us"], row["cost_over_launch"])
    return row


def measure_padded(options: argparse.Namespace) -> None:
    with recorded("attention") as rows:
        found = (measure(case, options) for case in cases(short=options.short))
        rows.extend(row for row in found if "speed_over_cudnn" in row)
    for head_dim, causal in ((128, False), (128, True), (64, False), (64, True)):
        alike = [row for row in rows if (row["head_dim"], row["causal"]) == (head_dim, causal)]
        mask = "causal" if causal else "full"
        if alike:
            print(f"{head_dim} {mask}: geometric mean {geometric_mean(alike, 'cudnn'):.3f} x cuDNN")
    print(record("attention_host", [measure_host()]))


def measure_named(named: AttentionPeer, options: argparse.Namespace) -> None:
    """Race the peer that the user names, in the cases that it takes."""
    compared = f"speed_over_{named.name}"
    if not options.packed:
        with recorded(named.section("attention"), versions=named.versions) as rows:
            taken = [case for case in cases(short=options.short) if not case.queries]
            found = (measure(case, options, named) for case in taken)
            rows.extend(row for row in found if compared in row)
        print(f"geometric mean {geometric_mean(rows, named.name):.3f} x {named.name}")
    with recorded(named.section("varlen_attention"), versions=named.versions) as packed:
        packed.extend(race_packed(batch, options, named) for batch in batches())


def sweep_all(options: argparse.Namespace) -> None:
    found = float8_cases(short=True) if options.float8 else cases(short=True)
    dtype = torch.float8_e4m3fn if options.float8 else torch.bfloat16
    for case in found:
        if not case.queries:
            sweep(replace(case, dtype=dtype), options.rounds)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a slice of attention")
    parser.add_argument("--peer", metavar="MODULE", help="such as flash_attn_interface")
    parser.add_argument("--short", action="store_true", help="three lengths")
    parser.add_argument(
        "--sweep", action="store_true", help="all tile configs; nothing is recorded"
    )
    parser.add_argument("--packed", action="store_true", help="packed sequences only")
    parser.add_argument("--float8", action="store_true", help="float8 operands only")
    parser.add_argument("--host", action="store_true", help="the host's cost of a call only")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    torch.manual_seed(0)
    if options.peer:
        measure_named(AttentionPeer(options.peer), options)
        return
    if options.host:
        print(record("attention_host", [measure_host()]))
        return
    if options.sweep:
        sweep_all(options)
        return
    if options.float8 or not (options.packed or options.short):
        with recorded("attention_float8") as rows:
            found = float8_cases(short=options.short)
            rows.extend(measure_float8(case, options.rounds) for case in found)
    if options.float8:
        return
    if not options.packed:
        measure_padded(options)
    with recorded("varlen_attention") as packed:
        packed.extend(measure_batch(batch, options.rounds) for batch in batches())


if __name__ == "__main__":
    main()
