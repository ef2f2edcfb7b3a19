"""Block-scaled FP8 matmuls over a process group."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tmaasync import ops
from tmaasync._elements import element
from tmaasync.errors import ArgumentError, Violation
from tmaasync.ops._scaled_matmul import Operands, scale_violations
from tmaasync.torch import _group_emulated, _group_kernels
from tmaasync.torch._group import Group, Members, name_of
from tmaasync.torch._group_matmuls import STORED_COLUMNS, call_of, unequal
from tmaasync.torch._group_rows import Kind, checked_rows, lost_derivatives, rows_of, unfit_rows
from tmaasync.torch._registry import define
from tmaasync.torch._stand_ins import stand_ins
from tmaasync.torch._tensors import require_tensors, torchs_type

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_OUTPUTS = (torch.bfloat16, torch.float16, torch.float32)
_OPERATORS = torch.ops.tmaasync


def all_gather_scaled_matmul(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    *,
    group: Any = None,
    rows: Sequence[int] | None = None,
    dtype: Any = None,
) -> Any:
    """Multiply block-scaled FP8 rows of all ranks of a group by this rank's matrix.

    This is `tmaasync.ops.all_gather_scaled_matmul` for one process per GPU, under torchrun, as the
    operator ``torch.ops.tmaasync.all_gather_scaled_matmul``. It has no backward. Otherwise as
    `all_gather_matmul`.

    Args:
        a: [M_r, K], float8_e4m3fn or float8_e5m2, the same type on all ranks.
        b: [K, N_r], of either type; for a weight [N_r, K] pass ``weight.T``.
        scale_a: [M_r, ceil(K / 128)], float32.
        scale_b: [ceil(K / 128), ceil(N_r / 128)] or [ceil(K / 128), N_r], float32.
        group: A process group, as in `all_gather_matmul`.
        rows: As in `all_gather_matmul`.
        dtype: Output type: bfloat16 (the default), float16 or float32.

    Returns:
        [M, N_r], contiguous, with M the sum of all M_r.

    Raises:
        ArgumentError: As `all_gather_matmul`, as the other errors.
    """
    require_tensors(a=a, b=b, scale_a=scale_a, scale_b=scale_b)
    given = a, b, scale_a, scale_b, name_of(group), checked_rows(rows)
    return _OPERATORS.all_gather_scaled_matmul(*given, dtype=torchs_type(dtype))


def scaled_matmul_reduce_scatter(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    *,
    group: Any = None,
    rows: Sequence[int] | None = None,
    dtype: Any = None,
) -> Any:
    """Multiply block-scaled FP8, add the matrices of all ranks, and return this rank's rows.

    This is `tmaasync.ops.scaled_matmul_reduce_scatter` for one process per GPU, as the operator
    ``torch.ops.tmaasync.scaled_matmul_reduce_scatter``. It has no backward. Otherwise as
    `matmul_reduce_scatter`.

    Args:
        a: [M, K_r], float8_e4m3fn or float8_e5m2.
        b: [K_r, N], of either type; for a weight [N, K_r] pass ``weight.T``.
        scale_a: [M, ceil(K_r / 128)], float32.
        scale_b: [ceil(K_r / 128), ceil(N / 128)] or [ceil(K_r / 128), N], float32.
        group: A process group, as in `all_gather_matmul`.
        rows: As in `matmul_reduce_scatter`.
        dtype: Output type: bfloat16 (the default), float16 or float32.

    Returns:
        [M_r, N], contiguous.

    Raises:
        ArgumentError: As `all_gather_matmul`, as the other errors.
    """
    require_tensors(a=a, b=b, scale_a=scale_a, scale_b=scale_b)
    given = a, b, scale_a, scale_b, name_of(group), checked_rows(rows)
    return _OPERATORS.scaled_matmul_reduce_scatter(*given, dtype=torchs_type(dtype))


# --- kernels and fake kernels -------------------------------------------------------------------


_GATHER = Kind("all_gather_scaled_matmul", _group_kernels.all_gather_scaled_matmul, True, True)
_SCATTER = Kind(
    "scaled_matmul_reduce_scatter", _group_kernels.scaled_matmul_reduce_scatter, True, False
)


def _run(  # noqa: PLR0913 - the arguments of the operator
    kind: Kind,
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    group: str,
    rows: Any = None,
    *,
    dtype: Any = None,
) -> Any:
    operands = a, b, scale_a, scale_b
    state, held = Group.of(group), dtype or torch.bfloat16
    key = state.key((kind.name, None if rows is None else tuple(rows), held), *operands)
    if (known := state.calls.get(key)) is not None:
        return known(*operands)
    counts = rows_of(rows, a, state.members, gathers=kind.gathers)
    broken = tuple(_violations(kind, operands, state.members, counts, held))
    call = f"{call_of(kind, a, b)} in {held} with rows {counts}"
    state.refuse(call, broken)
    if a.device.type == "cpu":
        return _emulated(kind, state, call, operands, counts, held)
    if sum(counts) == 0:
        return a.new_empty((0, b.shape[1]), dtype=held)
    return state.first(key, kind.on_gpu(state, *operands, counts, held), *operands)


def _emulated(
    kind: Kind, group: Group, call: str, operands: Sequence[Any], rows: Sequence[int], held: Any
) -> Any:
    """Run on tensors in host memory."""
    a, b, scale_a, scale_b = operands
    n, padding = b.shape[1], (0, -b.shape[1] % STORED_COLUMNS)
    if any(padding):
        padded = torch.nn.functional.pad(b.view(torch.uint8).mT.contiguous(), (0, 0, *padding))
        b = padded.mT.view(b.dtype)
        if scale_b.shape[1] == n:
            scale_b = torch.nn.functional.pad(scale_b, padding)
    operation = functools.partial(getattr(ops, kind.name), dtype=element(held))
    shapes = None if kind.gathers else [(count, b.shape[1]) for count in rows]
    tensors = a, b, scale_a, scale_b
    found = _group_emulated.run(group, call, tensors, operation, shapes, held)
    return found[:, :n].contiguous()


def _fake(  # noqa: PLR0913 - the arguments of the operator
    kind: Kind,
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    group: str,
    rows: Any = None,
    *,
    dtype: Any = None,
) -> Any:
    operands = a, b, scale_a, scale_b
    members, held = Members.of(group), dtype or torch.bfloat16
    counts = rows_of(rows, a, members, gathers=kind.gathers)
    ArgumentError.raise_for(_violations(kind, operands, members, counts, held))
    m = sum(counts) if kind.gathers else counts[members.rank]
    return a.new_empty((m, b.shape[1]), dtype=held)


def _violations(
    kind: Kind, operands: Sequence[Any], members: Members, rows: Sequence[Any], held: Any
) -> Iterator[Violation]:
    named = dict(zip(("a", "b", "scale_a", "scale_b"), operands, strict=True))
    a, b = named["a"], named["b"]
    yield from unfit_rows("a", a, members, rows, gathers=kind.gathers)
    yield from lost_derivatives(named)
    if held not in _OUTPUTS:
        rule = "the output can be bfloat16, float16 or float32"
        yield Violation("dtype", held, rule, "Pass one")
    for name, one in named.items():
        types = (torch.float32,) if name.startswith("scale") else _FP8
        if one.ndim != 2:
            rule = "it is a matrix"
            yield Violation(name, f"of shape {tuple(one.shape)}", rule, "Flatten or reshape it")
        if one.dtype not in types:
            rule = f"it holds {' or '.join(map(str, types))}"
            yield Violation(name, f"a tensor of {one.dtype}", rule, "Convert it")
        if one.device != a.device:
            yield Violation(name, f"on {one.device}", f"a is on {a.device}", "Move it there")
    if any(one.ndim != 2 for one in operands):
        return
    yield from unequal(a, b)
    views = stand_ins(**named)
    if views is not None:
        yield from scale_violations(Operands(**views))


for _kind in (_GATHER, _SCATTER):
    define(
        _kind.name,
        "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, str group, SymInt[]? rows=None, *, "
        "ScalarType? dtype=None",
        functools.partial(_run, _kind),
        functools.partial(_fake, _kind),
        other_returns=None,
    )
