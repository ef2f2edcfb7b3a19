"""ops.matmul of other types, and with an epilogue, against what torch has for it.

Writes sections "matmul_types" (int8 against torch._int_mm, tf32 against torch.matmul) and
"matmul_epilogue" (bias, activations and addends in bfloat16, against torch's fused calls where it
has them, else its matmul and a kernel after it; "plain" is our matmul alone) of the results.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from race import geometric_mean, race, recorded, relative_error, speed_text, tera_per_second

from tmaasync import ops

Runs = dict[str, Callable[[], Any]]
Shape = tuple[int, int, int]

SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (2048, 4096, 14336), (128, 14336, 4096))


def randn(rows: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(rows, columns, device="cuda").to(dtype)


def empty(rows: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.full((rows, columns), 7, dtype=dtype, device="cuda")


# --- types ----------------------------------------------------------------------------------------


def int8(m: int, n: int, k: int) -> tuple[Runs, Callable[[], torch.Tensor], float]:
    a, b = (
        torch.randint(-128, 128, shape, dtype=torch.int8, device="cuda")
        for shape in ((m, k), (n, k))
    )
    ours, theirs = empty(m, n, torch.int32), empty(m, n, torch.int32)
    runs: Runs = {
        "tmaasync": lambda: ops.matmul(a, b.T, out=ours),
        "torch": lambda: torch._int_mm(a, b.T, out=theirs),
    }
    return runs, lambda: a.double() @ b.double().T, 0.0


def tf32(m: int, n: int, k: int) -> tuple[Runs, Callable[[], torch.Tensor], float]:
    a, b = randn(m, k, torch.float32), randn(n, k, torch.float32)
    ours, theirs = empty(m, n, torch.float32), empty(m, n, torch.float32)
    runs: Runs = {
        "tmaasync": lambda: ops.matmul(a, b.T, out=ours, precision="tf32"),
        "torch": lambda: torch.matmul(a, b.T, out=theirs),
    }
    return runs, lambda: a.double() @ b.double().T, 1e-3


# --- epilogues ------------------------------------------------------------------------------------


Biased = tuple[str | None, Callable[[], Any], Callable[..., torch.Tensor]]


def biased(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> dict[str, Biased]:
    """Return the activation here, torch's call, and the activation in float64, by name."""
    functional = torch.nn.functional
    return {
        "bias": (None, lambda: torch.addmm(bias, a, b), lambda x: x),
        "bias, relu": ("relu", lambda: torch._addmm_activation(bias, a, b), torch.relu),
        "bias, gelu_tanh": (
            "gelu_tanh",
            lambda: torch._addmm_activation(bias, a, b, use_gelu=True),
            functools.partial(functional.gelu, approximate="tanh"),
        ),
        "bias, gelu": ("gelu", lambda: functional.gelu(torch.addmm(bias, a, b)), functional.gelu),
        "bias, silu": ("silu", lambda: functional.silu(torch.addmm(bias, a, b)), functional.silu),
    }


def epilogues(m: int, n: int, k: int) -> Iterator[tuple[str, Runs, Callable[[], torch.Tensor]]]:
    a, b, bias = randn(m, k), randn(n, k).T, randn(1, n)[0]
    c, ours = randn(m, n), empty(m, n)
    functional = torch.nn.functional
    plain = {"plain": lambda: ops.matmul(a, b, out=ours)}

    def exact() -> torch.Tensor:
        return a.double() @ b.double()

    for name, (activation, theirs, function) in biased(a, b, bias).items():
        call = functools.partial(ops.matmul, a, b, bias=bias, activation=activation, out=ours)
        runs = {**plain, "tmaasync": call, "torch": theirs}
        yield name, runs, lambda function=function: function(exact() + bias)
    yield (
        "addend",
        {
            **plain,
            "tmaasync": lambda: ops.matmul(a, b, c=c, out=ours),
            "torch": lambda: torch.addmm(c, a, b),
        },
        lambda: exact() + c,
    )
    yield (
        "addend, bias, gelu",
        {
            **plain,
            "tmaasync": lambda: ops.matmul(a, b, c=c, bias=bias, activation="gelu", out=ours),
            "torch": lambda: functional.gelu(torch.addmm(c, a, b) + bias),
        },
        lambda: functional.gelu(exact() + c + bias),
    )


# --- both -----------------------------------------------------------------------------------------


def measure(
    case: str,
    shape: Shape,
    runs: Runs,
    wanted: Callable[[], torch.Tensor],
    tolerance: float,
    rounds: int,
) -> dict[str, Any]:
    error = relative_error(runs["tmaasync"](), wanted())
    if not error <= tolerance:
        raise SystemExit(f"{case} {shape}: relative error {error:.2e}")
    m, n, k = shape
    row: dict[str, Any] = {"case": f"{case} {m} x {n} x {k}", "m": m, "n": n, "k": k}
    row |= race(runs, rounds=rounds, reference="torch", seconds_per_slice=0.1)
    row["tera_per_s"] = tera_per_second(row, 2 * m * n * k)
    ours, plain = row["tera_per_s"]["tmaasync"], row["tera_per_s"].get("plain")
    over_plain = "" if plain is None else f", {ours / plain:.3f} x plain"
    print(f"{row['case']:40s} {ours:7.1f} T/s  {speed_text(row, 'torch')}{over_plain}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="one shape")
    parser.add_argument("--epilogues", nargs="+", metavar="MxNxK", help="epilogues of these alone")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    shapes: Iterable[Shape] = SHAPES[:1] if options.short else SHAPES
    if options.epilogues:
        shapes = [one for one in SHAPES if "x".join(map(str, one)) in options.epilogues]
    if not options.epilogues:
        with recorded("matmul_types") as rows:
            for case, shape in itertools.product((int8, tf32), shapes):
                rows.append(measure(case.__name__, shape, *case(*shape), options.rounds))
        print(f"matmul_types: geometric mean {geometric_mean(rows, 'torch'):.3f} x torch")
    with recorded("matmul_epilogue", is_part=bool(options.epilogues)) as rows:
        for shape in shapes:
            for name, runs, wanted in epilogues(*shape):
                rows.append(measure(name, shape, runs, wanted, 4e-3, options.rounds))
    print(f"matmul_epilogue: geometric mean {geometric_mean(rows, 'torch'):.3f} x torch")


if __name__ == "__main__":
    main()
