"""ops.attention_backward: gradients of ops.attention."""

from __future__ import annotations

from typing import Any

from tmaasync._kinds import check_flags
from tmaasync.ops._call_cache import CallCache
from tmaasync.ops._flash.backward_operation import BackwardOperation
from tmaasync.ops._flash.gradients import INPUTS, Gradients
from tmaasync.ops._flash.operands import Scores
from tmaasync.ops._operation import NamedBinding

_AXES = "[batch, positions, heads, head_dim]"
_CALLS = CallCache()


def attention_backward(  # noqa: PLR0913 - the parameters of attention, and the gradients
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    causal: bool | str = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    deterministic: bool = False,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    stream: object = None,
) -> tuple[Any, Any, Any]:
    """Compute the gradients of `attention` with respect to q, k and v.

    P and dS are recomputed block by block, as in FlashAttention. dQ is accumulated in fp32 by TMA
    reductions (``cp.reduce.async.bulk``), in an order that differs from run to run unless
    ``deterministic``. A call allocates one workspace of ``4 * head_dim + 8`` bytes per query and
    head; head_dim is rounded up to 64 or 128, and queries to blocks of 64 to 128. It does not wait
    for the GPU.

    float32 rounds scores and log-sum-exps, so the recomputed probabilities have a relative error of
    about 1e-7 times the log-sum-exp. If its magnitude exceeds 65536, where the error reaches 1 %,
    the gradients of the query, and of the keys and values that it attends to, are NaN.

    k, v and the options of the scores and the mask are as in the call of `attention`.

    Queries and keys together may be up to 2^31 - 2^18 (2,147,221,504).

    Args:
        dout: Gradient of the output, [batch, positions, heads, head_dim], an array like q.
        q: As in `attention`, bfloat16 or float16; head_dim up to 128.
        out: The output of `attention`, with any strides that `attention` accepts.
        lse: The log-sum-exp of `attention`: float32 [batch, heads, positions], contiguous.
        deterministic: Whether to accumulate dq in a fixed order, for bitwise equal results in every
            call. dk and dv are always deterministic.
        dq: The output for dq, an array like q; by default a new contiguous array.
        dk: The same for dk, an array like k.
        dv: The same for dv, an array like v.
        stream: By default the current stream of the arrays' framework.

    Returns:
        dq, dk and dv. With GQA dk and dv are summed over the query heads that share a KV head.

    Raises:
        ArgumentError: An argument is invalid; every broken rule is listed.
        ArrayTypeError: A type that the kernels do not have.
        BackendError: The GPU is older than sm_90; or, for host arrays, there is no C++ compiler.

    >>> import numpy as np
    >>> from tmaasync import ops
    >>> q = np.zeros((1, 3, 1, 8), np.float16)
    >>> out, lse = ops.attention(q, q, q, causal=True, return_lse=True)
    >>> dq, dk, dv = attention_backward(np.ones_like(q), q, q, q, out, lse, causal=True)
    >>> dv[0, :, 0, 0].round(2)
    array([1.83, 0.83, 0.33], dtype=float16)
    """
    outputs = (dq, dk, dv)
    given = tuple(array for array in outputs if array is not None)
    is_new = (dq is None, dk is None, dv is None)
    arrays = (dout, q, k, v, out, lse, *given)
    key = (causal, scale, window, softcap, deterministic, is_new)
    done = _CALLS.run(arrays, key, stream)
    if done is None:
        return _differentiate(arrays, key, outputs, stream)
    new = iter(done[len(arrays) :])
    return tuple(next(new) if array is None else array for array in outputs)


def _differentiate(
    arrays: tuple[Any, ...], key: tuple[Any, ...], outputs: tuple[Any, ...], stream: object
) -> tuple[Any, Any, Any]:
    """Run a call that is not in the cache, and cache it."""
    causal, scale, window, softcap, deterministic, _ = key
    check_flags(deterministic=deterministic)
    gradients = Gradients.of(arrays[: len(INPUTS)], outputs, _AXES)
    head_dim = gradients.views["q"].shape[-1]
    scores = Scores.of(head_dim, causal, scale, window, softcap)
    operation = _CALLS.operation(
        BackwardOperation, gradients.layouts, None, scores, is_deterministic=bool(deterministic)
    )
    operation.run(gradients, stream)
    if not (gradients.views["q"].is_empty or gradients.views["k"].is_empty):
        names = (*INPUTS, *gradients.given)
        new = (*gradients.allocators(), operation.workspace(gradients.views["q"]))
        _CALLS.remember(
            arrays,
            key,
            NamedBinding(operation, (*names, *gradients.new_names, "workspace")),
            [gradients.views[name].framework for name in names],
            gradients.views["q"].device,
            allocators=new,
            has_workspace=True,
        )
    return gradients.returned
