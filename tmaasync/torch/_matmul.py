"""``tmaasync::matmul`` and its backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from tmaasync import ops
from tmaasync._arrays import ArrayView, is_contiguous
from tmaasync._torch_internals import dispatch_modes, is_batched
from tmaasync.errors import ArgumentError
from tmaasync.ops._allocation import empty
from tmaasync.ops._gemm.checks import checked
from tmaasync.ops._gemm.epilogue import (
    EpilogueArguments,
    activation_of,
    epilogue_numbers,
)
from tmaasync.ops._gemm.operands import Reading
from tmaasync.torch._plain import NUMBERS, TEXT_OR_NONE
from tmaasync.torch._registry import (
    define,
    refuse_second_backward,
    register_autocast,
    register_backward,
)
from tmaasync.torch._stand_ins import stand_ins
from tmaasync.torch._tensors import require_tensors, require_tensors_or_none, torchs_type

_OUTPUTS = {
    torch.float8_e4m3fn: torch.bfloat16,
    torch.float8_e5m2: torch.bfloat16,
    torch.int8: torch.int32,
    torch.uint8: torch.int32,
}
_DIFFERENTIABLE = (torch.bfloat16, torch.float16, torch.float32)


def matmul(  # noqa: PLR0913 - operands, epilogue and types
    a: Any,
    b: Any,
    *,
    alpha: float = 1.0,
    c: Any = None,
    beta: float = 1.0,
    bias: Any = None,
    activation: str | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
    out: Any = None,
    dtype: Any = None,
    precision: str | None = None,
) -> Any:
    """Multiply matrices, or batches of them, like ``torch.matmul``, with an epilogue.

    This is `tmaasync.ops.matmul` as the operator ``torch.ops.tmaasync.matmul``. Differences:

    * It is differentiable in ``a``, ``b``, ``c`` and ``bias``, with the same kernels, but not for
      FP8 and integers, not in the scales, and not twice.
    * Operands may have any number of batch dimensions, which are broadcast as in ``torch.matmul``.
    * The output is contiguous. If a row of N elements is not a multiple of 16 bytes, that costs a
      copy.

    The gradients of ``a`` and ``b`` are accumulated in fp32 and rounded to their types. For an
    activation other than relu the backward recomputes ``a @ b`` instead of storing it.

    Args:
        a: [..., M, K], on a GPU, or on the CPU for the emulator.
        b: [..., K, N].
        alpha: Factor of ``a @ b``.
        c: Addend of the output's shape and type.
        beta: Factor of ``c``; without ``c`` it must be 0 or 1.
        bias: [N], added to every row.
        activation: ``"relu"``, ``"gelu"``, ``"gelu_tanh"`` or ``"silu"``.
        scale_a: Factor of ``a``: a tensor of one float32.
        scale_b: The same for ``b``.
        out: The output, [..., M, N]. With it there is no backward.
        dtype: Output type, as in `tmaasync.ops.matmul`.
        precision: ``"tf32"`` for float32 operands.

    Returns:
        The output.

    >>> x, weight = torch.ones(2, 3, 8).half(), torch.ones(4, 8).half().requires_grad_()
    >>> matmul(x, weight.T).sum().backward()
    >>> weight.grad[0]
    tensor([6., 6., 6., 6., 6., 6., 6., 6.], dtype=torch.float16)
    """
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        require_tensors(a=a, b=b)
    is_plain = type(alpha) in NUMBERS and type(beta) in NUMBERS
    if (
        is_plain
        and alpha == beta == 1
        and (c is bias is activation is scale_a is scale_b is out is dtype is precision is None)
    ):
        return _PLAIN(a, b)
    require_tensors_or_none(c=c, bias=bias, scale_a=scale_a, scale_b=scale_b, out=out)
    if not (is_plain and type(activation) in TEXT_OR_NONE and type(precision) in TEXT_OR_NONE):
        epilogue_numbers(alpha, beta, c, None, None)
        activation_of(activation)
        Reading.given(None, None, precision, batch_invariant=False)
    options = {"alpha": alpha, "beta": beta, "activation": activation}
    types = {"dtype": torchs_type(dtype), "precision": precision}
    if out is None:
        return _WITH_OPTIONS(a, b, c, bias, scale_a, scale_b, **options, **types)
    torch.ops.tmaasync.matmul.out(a, b, c, bias, scale_a, scale_b, **options, **types, out=out)
    return out


# --- kernel and fake kernel ---------------------------------------------------------------------


def _run(  # noqa: PLR0913 - the arguments of the operator
    a: Any,
    b: Any,
    c: Any = None,
    bias: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: str | None = None,
    dtype: Any = None,
    precision: str | None = None,
    out: Any = None,
) -> Any:
    shape = None
    if a.ndim > 3 or b.ndim > 3:
        shape = _output_shape(a, b)
        is_dense = out is None or out.is_contiguous()
        _check_like_output(shape, c, out, None if is_dense else out.stride())
        a, b = _with_one_batch(a, b)
        rows = math.prod(shape[:-2]) if a.ndim == 3 else a.shape[0]
        batch = (math.prod(shape[:-2]), *shape[-2:]) if a.ndim == 3 else (rows, shape[-1])
        c = None if c is None else c.reshape(batch)
    result = ops.matmul(
        a,
        b,
        alpha=alpha,
        c=c,
        beta=beta,
        bias=bias,
        activation=activation,
        scale_a=scale_a,
        scale_b=scale_b,
        out=out if out is None or shape is None else out.view(batch),
        dtype=dtype,
        precision=precision,
    )
    if out is not None:
        return out
    return (result if shape is None else result.reshape(shape)).contiguous()


def _with_one_batch(a: Any, b: Any) -> tuple[Any, Any]:
    """Return operands for ops.matmul: matrices, or batches with one batch dimension."""
    if b.ndim == 2:
        return a.flatten(0, -2), b
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (one.expand(*batch, *one.shape[-2:]).flatten(0, -3) for one in (a, b))
    return a, b


def _output_shape(a: Any, b: Any) -> tuple[Any, ...]:
    if min(a.ndim, b.ndim) < 2:
        raise ArgumentError.broken(
            "a",
            f"{tuple(a.shape)} and b {tuple(b.shape)}",
            "both must have 2 dimensions or more",
            "Pass a vector as a matrix of one row or column, such as a[None]",
            verb="has shape",
        )
    if a.shape[-1] != b.shape[-2]:
        raise ArgumentError.broken(
            "b",
            tuple(b.shape),
            f"a has shape {tuple(a.shape)}, so b must have {a.shape[-1]} rows",
            "For matrices stored as [N, K] pass b.mT",
            verb="has shape",
        )
    try:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        raise ArgumentError.broken(
            "b",
            tuple(b.shape),
            f"a has shape {tuple(a.shape)}, and their batches cannot be broadcast to one",
            "Pass as many matrices, or dimensions of 1",
            verb="has shape",
        ) from None
    return (*batch, a.shape[-2], b.shape[-1])


def _check_like_output(shape: tuple[int, ...], c: Any, out: Any, strides: Any) -> None:
    """Check c and out before they are flattened, which would hide a wrong shape of equal size.

    ``strides`` holds the strides of ``out`` if it is not contiguous, else None.
    """
    for name, tensor in (("c", c), ("out", out)):
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ArgumentError.broken(
                name,
                tuple(tensor.shape),
                f"the output has shape {tuple(shape)}",
                f"Pass {name} of that shape",
                verb="has shape",
            )
    if strides is not None:
        raise ArgumentError.broken(
            "out",
            strides,
            "with more than one batch dimension it must be contiguous",
            "Pass a contiguous tensor, or leave it out",
            verb="has strides",
        )


def _output_type(a: Any, dtype: Any) -> Any:
    return dtype or _OUTPUTS.get(a.dtype, a.dtype)


def _fake(  # noqa: PLR0913 - the arguments of the operator
    a: Any,
    b: Any,
    c: Any = None,
    bias: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: str | None = None,
    dtype: Any = None,
    precision: str | None = None,
    out: Any = None,
) -> Any:
    views = stand_ins(a=a, b=b, c=c, bias=bias, scale_a=scale_a, scale_b=scale_b, out=out)
    if views is not None:
        if max(a.ndim, b.ndim) > 3:
            views = _as_one_batch(**views)
        (factor, _), c, scale_a, scale_b = epilogue_numbers(
            alpha, beta, *(views[name] for name in ("c", "scale_a", "scale_b"))
        )
        function = activation_of(activation)
        epilogue = EpilogueArguments(factor != 1, function, c, views["bias"], scale_a, scale_b)
        reading = Reading.given(None, None, precision, batch_invariant=False)
        checked(views["a"], views["b"], epilogue, reading, views["out"], dtype)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]), dtype=_output_type(a, dtype))


def _as_one_batch(a: Any, b: Any, c: Any, out: Any, **others: Any) -> dict[str, Any]:
    """Return the stand-ins in the form in which `_run` passes the tensors on."""
    shape = _output_shape(a, b)
    is_dense = out is None or is_contiguous(out)
    strides = (
        None if is_dense else tuple(step // out.element.itemsize for step in out.strides_bytes)
    )
    _check_like_output(shape, c, out, strides)
    batch = (math.prod(shape[:-2]), *shape[-2:])
    if b.ndim == 2:
        batch = (math.prod(shape[:-1]), shape[-1])
        a = _reshaped(a, (batch[0], a.shape[-1]))
    else:
        a, b = (_reshaped(one, (batch[0], *one.shape[-2:])) for one in (a, b))
    c, out = (None if one is None else _reshaped(one, batch) for one in (c, out))
    return {"a": a, "b": b, "c": c, "out": out, **others}


def _reshaped(view: ArrayView, shape: tuple[int, ...]) -> ArrayView:
    dense: ArrayView = empty(view, shape, view.element)
    return dense._replace(address=view.address)


# Compiled code passes every argument of an operator in each call, defaults included: 2.5 us of 20.6
# (without a GPU, 2026-11-23: decisions/host.md). So a matmul without options has its own schema,
# defined first, so that torch.ops.tmaasync.matmul(a, b) selects it.
_OPERANDS = "Tensor a, Tensor b"
_OPTIONS = (
    "Tensor? c=None, Tensor? bias=None, Tensor? scale_a=None, Tensor? scale_b=None, "
    "*, float alpha=1.0, float beta=1.0, str? activation=None, ScalarType? dtype=None, "
    "str? precision=None"
)

define("matmul.plain", _OPERANDS, _run, _fake, other_returns=None, is_differentiable=True)
define("matmul", f"{_OPERANDS}, {_OPTIONS}", _run, _fake, is_differentiable=True)
_PLAIN, _WITH_OPTIONS = torch.ops.tmaasync.matmul.plain, torch.ops.tmaasync.matmul.default


def _multiply(*operands: Any, **options: Any) -> Any:
    return (_WITH_OPTIONS if options else _PLAIN)(*operands, **options)


# --- backward -----------------------------------------------------------------------------------

_A, _B, _C, _BIAS, _SCALE_A, _SCALE_B = range(6)


class _Options(NamedTuple):
    """The operator's options, for the backward."""

    alpha: float = 1.0
    beta: float = 1.0
    activation: str | None = None
    dtype: Any = None
    precision: str | None = None


def _save(  # noqa: PLR0913 - the arguments of the operator
    ctx: Any,
    output: Any,
    a: Any,
    b: Any,
    c: Any = None,
    bias: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
    **options: Any,
) -> None:
    """Save the tensors and options that the backward needs."""
    needs = ctx.needs = (*ctx.needs, *_NO_NEEDS)
    ctx.options = _Options(**options) if options else _NO_OPTIONS
    activation = ctx.options.activation
    recomputes = activation is not None and activation != "relu"
    ctx.save_for_backward(
        a if needs[_B] or recomputes else None,
        b if needs[_A] or recomputes else None,
        c if recomputes else None,
        bias if recomputes else None,
        scale_a,
        scale_b,
        output if activation == "relu" else None,
    )
    ctx.a, ctx.b = (a.shape, a.dtype), (b.shape, b.dtype)
    ctx.bias_type = None if bias is None else bias.dtype


_NO_OPTIONS = _Options()
_NO_NEEDS = (False,) * (_SCALE_B + 1)


def _check(needs: Sequence[bool], a: Any, b: Any, *given: Any, **options: Any) -> None:
    """Reject operands and scales without a backward."""
    del options
    if a.dtype in _DIFFERENTIABLE and b.dtype in _DIFFERENTIABLE and len(given) < _SCALE_A - _B:
        return  # no scales; the checks below take 0.5 us
    for needs_operand, name, operand in zip(needs, "ab", (a, b), strict=False):
        if needs_operand and operand.dtype not in _DIFFERENTIABLE:
            raise ArgumentError.broken(
                name,
                f"{operand.dtype} and requires grad",
                "matmul has a backward for bfloat16, float16 and float32 operands",
                "Pass its .detach()",
                verb="holds",
            )
    if any(needs[_SCALE_A:]):
        name = "scale_a" if needs[_SCALE_A] else "scale_b"
        raise ArgumentError(
            f"{name} requires grad; matmul has no backward for scales. Pass its .detach()."
        )


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    refuse_second_backward("matmul", "torch.matmul")
    a, b, c, bias, scale_a, scale_b, output = ctx.saved_tensors
    needs, options = ctx.needs, ctx.options
    activation = options.activation
    if activation == "relu":
        grad = torch.ops.aten.threshold_backward(grad, output, 0)
    elif activation is not None:
        linear = options._replace(activation=None)._asdict()
        again = _WITH_OPTIONS(a, b, c, bias, scale_a, scale_b, **linear)
        grad = _DERIVATIVES[activation](grad, again)
    factors = _factors(options, scale_a, scale_b)
    # Call the kernel directly, like the forward, unless a mode observes the calls. This saves two
    # dispatcher passes (benchmarks/bench_host.py, "tmaasync.torch.matmul and its backward").
    is_plain = ctx.is_plain and type(grad) is torch.Tensor and not _is_batched(grad)
    is_plain = is_plain and _count_modes() == 0
    multiply = _run if is_plain else _multiply
    return (
        _times(multiply, grad, b.mT, ctx.a, factors) if needs[_A] else None,
        _times(multiply, a.mT, grad, ctx.b, factors) if needs[_B] else None,
        grad * options.beta if needs[_C] else None,
        grad.flatten(0, -2).sum(0, dtype=torch.float32).to(ctx.bias_type) if needs[_BIAS] else None,
        None,
        None,
    )


def _factors(options: _Options, scale_a: Any, scale_b: Any) -> dict[str, Any]:
    """Return the non-default options that the forward and its backward share."""
    if options is _NO_OPTIONS and scale_a is scale_b is None:
        return {}
    given = {
        "alpha": None if options.alpha == 1 else options.alpha,
        "precision": options.precision,
        "scale_a": scale_a,
        "scale_b": scale_b,
    }
    return {name: value for name, value in given.items() if value is not None}


_count_modes, _is_batched = dispatch_modes(), is_batched()

_DERIVATIVES = {
    "gelu": lambda grad, x: torch.ops.aten.gelu_backward(grad, x, approximate="none"),
    "gelu_tanh": lambda grad, x: torch.ops.aten.gelu_backward(grad, x, approximate="tanh"),
    "silu": torch.ops.aten.silu_backward,
}


def _times(
    multiply: Callable[..., Any],
    left: Any,
    right: Any,
    like: tuple[Any, Any],
    factors: dict[str, Any],
) -> Any:
    """Return ``left @ right``, summed over broadcast batches."""
    shape, dtype = like
    # Skip casts that change nothing, the usual case: each takes 1 us.
    left = left if left.dtype == dtype else left.to(dtype)
    right = right if right.dtype == dtype else right.to(dtype)
    if left.ndim == right.ndim == 2:
        return multiply(left, right, **factors)
    if len(shape) == 2 and left.ndim == right.ndim and left.shape[:-2] == right.shape[:-2]:
        # One matrix was broadcast over the batch: one GEMM over all rows computes the sum.
        left, right = left.mT.flatten(0, -2).mT, right.flatten(0, -2)
    batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    if tuple(batch) == tuple(shape[:-2]):
        return multiply(left, right, **factors)
    whole = multiply(left, right, dtype=torch.float32, **factors)
    return whole.sum_to_size(shape).to(dtype)


for _name in ("matmul.plain", "matmul"):
    register_backward(_name, _run, _save, _backward, check=_check)
    register_autocast(_name, operands=2)
