"""ops.attention_backward against the backwards of torch's scaled_dot_product_attention.

The peers are cuDNN and FlashAttention-2. Packed sequences: ops.varlen_attention_backward against
"equal lengths", which is ops.attention_backward on as many tokens in sequences of one length that
take as many FLOPs.

Writes sections "attention_backward" and "varlen_attention_backward" of the results. Inputs are
normally distributed. FLOPs are 2.5 times the forward's: 10 * head_dim for every query and key that
it attends to. Before it is timed, each gradient is compared with float64, up to 4096 positions, or
else with the peer; an error above twice the peer's ends the run.

    --only TEXT       cases whose label contains the text, such as "8192" or "64, causal";
                      their rows are replaced in the results
    --variants "A; B" times variants of ours in one race, by name, or all; nothing is recorded
    --decide          all variants in the few cases that decide between them
    --once            runs the first case once, for a profiler
    --rounds N        rounds of a race
    --packed          packed sequences only
    --seconds S       length of a slice
    --peer MODULE     this peer instead, such as flash_attn_interface, which is FlashAttention-3:
                      see attention_peer.py. Writes "attention_backward_MODULE" and
                      "varlen_attention_backward_MODULE"
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from attention_cases import Batch, Case, batches
from attention_peer import AttentionPeer, backward_of
from bench_attention import packed_inputs
from race import (
    geometric_mean,
    plain_race,
    race,
    recorded,
    relative_error,
    speed_text,
    tera_per_second,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tmaasync import ops
from tmaasync.ops._flash.backward import BackwardConfig
from tmaasync.ops._operation import tile_configs

TOKENS = 16384
BACKWARD_FLOPS = 2.5  # of the forward's
MOST_POSITIONS_IN_FLOAT64 = 4096
TOLERANCE = 2.0  # of the peer's error
LEAST_ERROR = 4e-3  # of bf16 gradients, where the peer's is less
PEERS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash2": SDPBackend.FLASH_ATTENTION}
DECISIVE = (
    "16 x 1024, 16 heads of 128, causal",
    "2 x 8192, 16 heads of 128, full",
    "2 x 8192, 16 heads of 128, causal",
    "2 x 8192, 32 heads of 64, causal",
    "2 x 4096, 64/8 heads of 128, causal",
    "2 x 8192, 64/8 heads of 128, causal",
)


class Variant(NamedTuple):
    config: BackwardConfig
    deterministic: bool = False


def variants() -> Iterator[tuple[str, Variant]]:
    """The orders of blocks and tiles, and how many heads are scheduled together, for each tile."""
    for own, config in (
        ("128", BackwardConfig(128, 64)),
        ("128 by 80 queries", BackwardConfig(128, 80)),
        ("64", BackwardConfig(64, 128)),
    ):
        yield f"{own}: first", Variant(config)
        for heads in (2, 4, 8, 16):
            of_heads = replace(config, heads_at_once=heads)
            last = replace(of_heads, starts_last=True)
            alternating = replace(last, alternates=True)
            down = replace(of_heads, tiles_descend=True)
            yield f"{own}: first, {heads} heads", Variant(of_heads)
            yield f"{own}: last, {heads} heads", Variant(last)
            yield f"{own}: alternating, {heads} heads", Variant(alternating)
            yield f"{own}: last, {heads} heads, deterministic", Variant(last, True)
            yield f"{own}: alternating, {heads} heads, deterministic", Variant(alternating, True)
            yield f"{own}: down, {heads} heads, deterministic", Variant(down, True)


VARIANTS = dict(variants())

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def cases() -> Iterator[Case]:
    for head_dim, causal in ((128, False), (128, True), (64, False), (64, True)):
        heads = 2048 // head_dim
        for length in (1024, 2048, 4096, 8192, 16384):
            yield Case(length, head_dim, heads, heads, causal, TOKENS // length)
    for length in (4096, 8192, 16384):
        yield Case(length, 128, 64, 8, True, 2 if length < TOKENS else 1)
    yield Case(4096, 128, 64, 8, False, 2)


# --- gradients ------------------------------------------------------------------------------------


class Problem:
    """Inputs of a backward, with the output and log-sum-exp of ops.attention."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.q, self.k, self.v = case.arrays()
        self.dout = torch.randn_like(self.q)
        self.out, self.lse = ops.attention(
            self.q, self.k, self.v, causal=case.causal, return_lse=True
        )

    def new_gradients(self) -> Gradients:
        dq, dk, dv = (torch.full_like(one, torch.nan) for one in (self.q, self.k, self.v))
        return dq, dk, dv

    def ours(self, into: Gradients | None = None, **options: Any) -> Callable[[], Gradients]:
        given = (self.dout, self.q, self.k, self.v, self.out, self.lse)
        dq, dk, dv = into or self.new_gradients()
        causal = self.case.causal

        def run() -> Gradients:
            return ops.attention_backward(*given, causal=causal, dq=dq, dk=dk, dv=dv, **options)

        return run

    def with_variant(self, variant: Variant) -> Callable[[], Gradients]:
        """Return the same with another tile config, captured: calls later have the usual one."""
        gradients = self.new_gradients()
        run = self.ours(gradients, deterministic=variant.deterministic)
        graph = torch.cuda.CUDAGraph()
        with tile_configs(lambda _: variant.config):
            run()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                run()

        def replay() -> Gradients:
            graph.replay()
            return gradients

        return replay

    def of_peer(self, named: AttentionPeer) -> Callable[[], Gradients]:
        def forward(leaves: Sequence[torch.Tensor]) -> torch.Tensor:
            return named.attention(leaves, causal=self.case.causal)()

        return backward_of(forward, (self.q, self.k, self.v), self.dout)

    def theirs(self, backend: SDPBackend) -> Callable[[], Gradients]:
        leaves = [one.detach().transpose(1, 2).requires_grad_() for one in (self.q, self.k, self.v)]
        with sdpa_kernel(backend):
            out = scaled_dot_product_attention(
                *leaves,
                is_causal=self.case.causal,
                enable_gqa=self.case.heads != self.case.kv_heads,
            )
        dout = self.dout.transpose(1, 2)

        def run() -> Gradients:
            found = torch.autograd.grad(out, leaves, dout, retain_graph=True)
            return tuple(one.transpose(1, 2) for one in found)  # type: ignore[return-value]

        return run

    def in_float64(self) -> Gradients:
        """Return the gradients of the last entry's last KV head, and of its query heads."""
        per_kv_head = self.case.heads // self.case.kv_heads
        k, v = (one[-1, :, -1].double() for one in (self.k, self.v))
        rows = torch.arange(len(k), device="cuda")
        hidden = rows[None] > rows[:, None]
        scale = self.case.head_dim**-0.5
        dqs, dk, dv = [], torch.zeros_like(k), torch.zeros_like(v)
        for head in range(self.case.heads - per_kv_head, self.case.heads):
            q, dout = (one[-1, :, head].double() for one in (self.q, self.dout))
            scores = q @ k.T * scale
            p = (scores.masked_fill(hidden, -torch.inf) if self.case.causal else scores).softmax(-1)
            dv += p.T @ dout
            dp = dout @ v.T
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
            dqs.append(ds @ k)
            dk += ds.T @ q
        return torch.stack(dqs, 1), dk, dv

    def of_last_head(self, gradients: Gradients) -> Gradients:
        per_kv_head = self.case.heads // self.case.kv_heads
        dq, dk, dv = gradients
        return dq[-1, :, -per_kv_head:], dk[-1, :, -1], dv[-1, :, -1]


def check(problem: Problem, ours: Gradients, theirs: Gradients | None) -> list[float]:
    """Return our relative errors of dq, dk and dv; end the run if one is too large."""
    if problem.case.positions > MOST_POSITIONS_IN_FLOAT64:
        if theirs is None:
            return []
        errors = [relative_error(a, b.double()) for a, b in zip(ours, theirs, strict=True)]
        bounds = [TOLERANCE * 2 * LEAST_ERROR] * 3
    else:
        wanted = problem.in_float64()
        errors = _errors(problem, ours, wanted)
        own = _errors(problem, theirs, wanted) if theirs is not None else [0.0] * 3
        bounds = [TOLERANCE * max(error, LEAST_ERROR) for error in own]
    if not all(error < bound for error, bound in zip(errors, bounds, strict=True)):
        raise SystemExit(f"{problem.case.label}: relative errors {errors}, bounds {bounds}")
    return [round(error, 5) for error in errors]


def _errors(problem: Problem, got: Gradients, wanted: Gradients) -> list[float]:
    pairs = zip(problem.of_last_head(got), wanted, strict=True)
    return [relative_error(*pair) for pair in pairs]


# --- races ----------------------------------------------------------------------------------------


def peers(
    problem: Problem, named: AttentionPeer | None = None
) -> dict[str, Callable[[], Gradients]]:
    """Return torch's back ends, or the peer that the user names, if they take the case."""
    forwards = {name: partial(problem.theirs, backend) for name, backend in PEERS.items()}
    if named is not None:
        forwards = {named.name: partial(problem.of_peer, named)}
    found = {}
    for name, forward in forwards.items():
        try:
            run = forward()
            run()
        except RuntimeError as error:
            print(f"  {name} does not take this: {str(error).splitlines()[0]}")
        else:
            found[name] = run
    return found


def measure(
    case: Case, options: argparse.Namespace, named: AttentionPeer | None = None
) -> dict[str, Any]:
    problem = Problem(case)
    theirs = peers(problem, named)
    if named is not None and not theirs:
        return {"case": case.label}
    reference = next(iter(theirs), "tmaasync")
    candidates: dict[str, Callable[[], Gradients]] = {"tmaasync": problem.ours(), **theirs}
    of_peer = candidates[reference]() if theirs else None
    errors = check(problem, candidates["tmaasync"](), of_peer)
    if named is None:
        candidates["deterministic"] = problem.ours(deterministic=True)
        check(problem, candidates["deterministic"](), of_peer)
    elif of_peer is not None:
        check(problem, of_peer, candidates["tmaasync"]())
    row: dict[str, Any] = {
        "case": case.label,
        "head_dim": case.head_dim,
        "causal": case.causal,
        "relative_errors": errors,
    }
    row |= race(
        candidates, rounds=options.rounds, reference=reference, seconds_per_slice=options.seconds
    )
    if named is None:
        pair = {name: candidates[name] for name in ("tmaasync", reference)}
        row["interleaved"] = plain_race(pair, reference=reference, calls=10)
    row["tflop_per_s"] = tera_per_second(row, BACKWARD_FLOPS * case.flops)
    print_row(case.label, row, reference)
    return row


def print_row(label: str, row: dict[str, Any], reference: str) -> None:
    figures = "  ".join(f"{name} {one:6.1f}" for name, one in row["tflop_per_s"].items())
    shorter = ""
    if "interleaved" in row:
        shorter = f", interleaved {row['interleaved']['tmaasync']['median']:.3f}"
    print(f"{label:48s} {figures}  {speed_text(row, reference)}{shorter}", flush=True)


def race_variants(
    case: Case,
    names: list[str],
    options: argparse.Namespace,
    named: AttentionPeer | None = None,
) -> dict[str, float]:
    """Return the TFLOP/s of each variant that the case can have, and of the peers."""
    problem = Problem(case)
    theirs = peers(problem, named)
    of_peer = next(iter(theirs.values()))() if theirs else None
    candidates = {}
    for name in names:
        variant = VARIANTS[name]
        if variant.config.head_dim != case.head_dim:
            continue
        run = problem.with_variant(variant)
        check(problem, run(), of_peer)
        candidates[name] = run
    candidates |= theirs
    if not candidates:
        return {}
    reference = next(iter(candidates))
    times = race(
        candidates, rounds=options.rounds, reference=reference, seconds_per_slice=options.seconds
    )["us"]
    print(case.label, "timed", flush=True)
    return {name: BACKWARD_FLOPS * case.flops / us / 1e6 for name, us in times.items()}


def print_table(found: dict[str, dict[str, float]]) -> None:
    """Print TFLOP/s: a row a variant, a column a case."""
    print("TFLOP/s of")
    for number, label in enumerate(found):
        print(f"  ({number}) {label}")
    print(" " * 32 + "".join(f"{f'({number})':>8s}" for number in range(len(found))))
    for name in dict.fromkeys(name for row in found.values() for name in row):
        figures = (f"{row[name]:8.1f}" if name in row else " " * 8 for row in found.values())
        print(f"{name:32s}" + "".join(figures), flush=True)


# --- packed ---------------------------------------------------------------------------------------


class PackedProblem:
    """Inputs of a varlen backward, with the output and log-sum-exp of ops.varlen_attention."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.given, _ = packed_inputs(batch)
        self.out, self.lse = ops.varlen_attention(*self.given, causal=batch.causal, return_lse=True)
        self.dout = torch.randn_like(self.out)

    def ours(self) -> Callable[[], Gradients]:
        given = (self.dout, *self.given[:3], self.out, self.lse, *self.given[3:])
        outputs = {
            name: torch.full_like(one, torch.nan)
            for name, one in zip(("dq", "dk", "dv"), self.given, strict=False)
        }
        causal = self.batch.causal
        return lambda: ops.varlen_attention_backward(*given, causal=causal, **outputs)

    def of_peer(self, named: AttentionPeer) -> Callable[[], Gradients]:
        *arrays, cu_seqlens, _, longest, _ = self.given

        def forward(leaves: Sequence[torch.Tensor]) -> torch.Tensor:
            causal = self.batch.causal
            return named.varlen_attention(leaves, cu_seqlens, longest, causal=causal)()

        return backward_of(forward, arrays, self.dout)

    def check(self, run: Callable[[], Gradients], bound: float) -> None:
        """Compare each sequence with ops.attention_backward of that sequence alone."""
        found = run()
        for first, last in itertools.pairwise(self.batch.ends):
            own = (self.dout, *self.given[:3], self.out)
            one = ops.attention_backward(
                *(array[None, first:last] for array in own),
                self.lse[None, :, first:last].contiguous(),
                causal=self.batch.causal,
            )
            errors = [
                relative_error(a[first:last], b[0].double())
                for a, b in zip(found, one, strict=True)
            ]
            if not all(error < bound for error in errors):
                label = f"{self.batch.name}: sequence at {first}"
                raise SystemExit(f"{label}: relative errors {errors}")


def measure_batch(
    batch: Batch, options: argparse.Namespace, named: AttentionPeer | None = None
) -> dict[str, Any]:
    problem = PackedProblem(batch)
    candidates = {"tmaasync": problem.ours()}
    flops = {"tmaasync": batch.flops}
    if named is None:
        alike = batch.alike()
        reference, flops["equal lengths"] = "equal lengths", alike.flops
        candidates[reference] = Problem(alike).ours()
    else:
        reference, flops[named.name] = named.name, batch.flops
        candidates[reference] = problem.of_peer(named)
        problem.check(candidates[reference], TOLERANCE * LEAST_ERROR)
    problem.check(candidates["tmaasync"], LEAST_ERROR)
    row: dict[str, Any] = {"case": batch.label, "causal": batch.causal}
    row |= race(
        candidates, rounds=options.rounds, reference=reference, seconds_per_slice=options.seconds
    )
    row["tflop_per_s"] = {
        name: round(BACKWARD_FLOPS * flops[name] / us / 1e6, 1) for name, us in row["us"].items()
    }
    print_row(batch.label, row, reference)
    return row


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="")
    parser.add_argument("--variants", default="")
    parser.add_argument("--decide", action="store_true")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--packed", action="store_true")
    parser.add_argument("--peer", metavar="MODULE")
    options = parser.parse_args()
    if options.decide:
        options.variants = "all"
    return options


def main() -> None:
    options = parsed()
    named = AttentionPeer(options.peer) if options.peer else None
    torch.manual_seed(0)
    chosen = [case for case in cases() if options.only in case.label]
    if options.once:
        Problem(chosen[0]).ours()()
        torch.cuda.synchronize()
        return
    if options.decide:
        chosen = [case for case in chosen if case.label in DECISIVE]
    if options.variants:
        names = [*VARIANTS] if options.variants == "all" else options.variants.split("; ")
        print_table({case.label: race_variants(case, names, options, named) for case in chosen})
        return
    measure_all(chosen, options, named)


def measure_all(
    chosen: list[Case], options: argparse.Namespace, named: AttentionPeer | None
) -> None:
    peer_name, section, versions = "cudnn", "{}", {}
    if named is not None:
        peer_name, section, versions = named.name, named.section("{}"), named.versions
    kept = partial(recorded, is_part=bool(options.only), versions=versions)
    if not options.packed:
        with kept(section.format("attention_backward")) as rows:
            found = (measure(case, options, named) for case in chosen)
            rows.extend(row for row in found if f"speed_over_{peer_name}" in row)
        if rows:
            print(f"geometric mean {geometric_mean(rows, peer_name):.3f} x {peer_name}")
    packed = [batch for batch in batches() if options.only in batch.name]
    with kept(section.format("varlen_attention_backward")) as rows:
        rows.extend(measure_batch(batch, options, named) for batch in packed)


if __name__ == "__main__":
    main()
