"""ops.matmul."""

from __future__ import annotations

from typing import Any

from tmaasync import _arrays
from tmaasync._elements import element
from tmaasync.ops._plans import PlanCache
from tmaasync.ops.gemm.arguments import new_output
from tmaasync.ops.gemm.matrix import Matrix
from tmaasync.ops.gemm.plan import Plan, plan_for

__all__ = ["matmul"]

_PLANS: PlanCache[Plan] = PlanCache()


def matmul(a: Any, b: Any, *, out: Any = None, dtype: object = None, stream: object = None) -> Any:
    """Multiply two matrices, or batches of them: ``a @ b``, accumulated in fp32.

    Either operand may lie with either side contiguous, so ``matmul(a, b.T)`` is the product with a
    matrix stored as [N, K]. An operand that TMA cannot read (rows that are no multiple of 16 bytes
    apart, or do not start at one) is copied into one it can; an output that TMA cannot write (the
    same, or rows that do not end at a multiple of 16 bytes) is written through a copy.

    Args:
        a: [M, K], bfloat16 or float16, on a GPU, or in host memory for the emulator; or a batch,
            [B, M, K]. More dimensions have to be reshaped into these.
        b: [K, N], of the same type and device; or a batch, [B, K, N]. One matrix, or a batch of
            one, goes with every matrix of a batch on the other side.
        out: Where to; [M, N], or [B, M, N] if either operand is a batch. By default a new array of
            the framework of ``a``; where N elements are no multiple of 16 bytes its rows are
            padded, so it is not contiguous.
        dtype: Of the output: bfloat16, float16 or float32; by default that of ``out``, else of
            ``a``.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The output.

    Raises:
        ArgumentError: The shapes do not fit, or ``out`` is not as described.
        ArrayTypeError: A type that the kernel does not have.
        BackendError: The GPU is older than sm_90; or, for host arrays, there is no C++ compiler.
    """
    if out is not None and (found := _PLANS.find((a, b, out), dtype, stream)):
        plan, addresses, handle = found
        plan.start(addresses, handle)
        return out
    left, right = _arrays.view(a, argument="a"), _arrays.view(b, argument="b")
    is_new = out is None
    if is_new:
        out = new_output(left, right, dtype)
    target = _arrays.view(out, argument="out")
    _arrays.require_writable(target, "out")
    wanted = None if dtype is None else element(dtype)
    matrix = Matrix.of(target)._replace(owns_padding=is_new)
    plan = plan_for(Matrix.of(left), Matrix.of(right), matrix, wanted)
    plan.run(left, right, target, stream)
    if plan.is_direct and not is_new:
        frameworks = (left.framework, right.framework, target.framework)
        _PLANS.remember((a, b, out), dtype, plan, frameworks, target.device)
    return out
