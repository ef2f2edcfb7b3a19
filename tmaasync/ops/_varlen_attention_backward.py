"""ops.varlen_attention_backward: gradients of ops.varlen_attention."""

from __future__ import annotations

from typing import Any, NamedTuple

from tmaasync import _arrays
from tmaasync._kinds import check_flags
from tmaasync.ops._call_cache import CallCache
from tmaasync.ops._flash.backward_operation import BackwardOperation
from tmaasync.ops._flash.gradients import INPUTS, Gradients
from tmaasync.ops._flash.operands import Scores
from tmaasync.ops._flash.sequences import Lengths
from tmaasync.ops._operation import NamedBinding

_AXES = "[rows, heads, head_dim]"
_INTEGERS = (int, type(None))
_CALLS = CallCache()


def varlen_attention_backward(  # noqa: PLR0913 - the parameters of attention, and the sequences
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    *,
    causal: bool | str = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    deterministic: bool = False,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    check: bool = False,
    stream: object = None,
) -> tuple[Any, Any, Any]:
    """Compute the gradients of `varlen_attention`: `attention_backward` within each sequence.

    TMA itself stops at the end of each sequence, in loads and stores. Rows after the last sequence
    are not written. The workspace is as in `attention_backward`, with each sequence rounded up to
    whole blocks. Lengths, scores and mask are as in the call of `varlen_attention`;
    ``deterministic`` is as in `attention_backward`.

    The rows of q and k together may be up to 2^31 - 2^18 (2,147,221,504).

    Args:
        dout: Gradient of the output, [rows, heads, head_dim], an array like q.
        q: As in `varlen_attention`, bfloat16 or float16; head_dim up to 128.
        k: [key_rows, kv_heads, head_dim], not paged.
        v: As k.
        out: The output of `varlen_attention`.
        lse: The log-sum-exp of `varlen_attention`: float32 [heads, rows], contiguous.
        dq: The output for dq, an array like q. By default a new contiguous array, whose rows after
            the last sequence are uninitialised.
        dk: The same for dk, an array like k.
        dv: The same for dv, an array like v.
        check: Whether to check cumulative lengths on a device too, which waits for the device.
            Unchecked, a sequence outside its array is skipped, and a later call reports it.
        stream: By default the current stream of the arrays' framework.

    Returns:
        dq, dk and dv.

    Raises:
        ArgumentError: An argument is invalid; every broken rule is listed. Or an earlier call had
            invalid cumulative lengths on a device, unchecked.
        ArrayTypeError: A type that the kernels do not have.
        BackendError: The GPU is older than sm_90; or, for host arrays, there is no C++ compiler.

    >>> import numpy as np
    >>> from tmaasync import ops
    >>> q = np.zeros((5, 1, 8), np.float16)
    >>> out, lse = ops.varlen_attention(q, q, q, [0, 2, 5], return_lse=True)
    >>> dq, dk, dv = varlen_attention_backward(np.ones_like(q), q, q, q, out, lse, [0, 2, 5])
    >>> dv[:, 0, 0].round(2)
    array([1., 1., 1., 1., 1.], dtype=float16)
    """
    outputs = (dq, dk, dv)
    has_own_keys = cu_seqlens_k is not None and cu_seqlens_k is not cu_seqlens_q
    lengths = Lengths(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, check)
    of_batch = (cu_seqlens_q, cu_seqlens_k) if has_own_keys else (cu_seqlens_q,)
    given = tuple(array for array in outputs if array is not None)
    inputs = (dout, q, k, v, out, lse)
    arrays = (*inputs, *of_batch, *given)
    form = (has_own_keys, *(array is None for array in outputs))
    options = (causal, scale, window, softcap, deterministic, max_seqlen_q, max_seqlen_k)
    # Equal keys must mean equal calls (True equals 1), and ``check`` repeats its checks every time.
    is_key = check is False and type(max_seqlen_q) in _INTEGERS and type(max_seqlen_k) in _INTEGERS
    key = (form, options) if is_key else None
    if key is not None:
        done = _CALLS.run(arrays, key, stream)
        if done is not None:
            new = iter(done[len(arrays) :])
            return tuple(next(new) if one is None else one for one in outputs)
    call = _Call(arrays, key, inputs, outputs, lengths, options[:5], has_own_keys)
    return _differentiate(call, stream)


class _Call(NamedTuple):
    """A call and its cache key, which is None for uncached calls."""

    arrays: tuple[Any, ...]
    key: tuple[Any, ...] | None
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    lengths: Lengths
    options: tuple[Any, ...]
    has_own_keys: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays before the gradients."""
        of_batch = ("cu_seqlens_q", "cu_seqlens_k")[: 1 + self.has_own_keys]
        return (*INPUTS, *of_batch)


def _differentiate(call: _Call, stream: object) -> tuple[Any, Any, Any]:
    """Run a call that is not in the cache, and cache it."""
    *mask, deterministic = call.options
    check_flags(deterministic=deterministic, check=call.lengths.check)
    gradients = Gradients.of(call.inputs, call.outputs, _AXES)
    q, k = gradients.views["q"], gradients.views["k"]
    scores = Scores.of(q.shape[-1], *mask)
    cumulative, batch = call.lengths.of(gradients.operands)
    if q.is_empty and k.is_empty:
        return gradients.returned
    operation = _CALLS.operation(
        BackwardOperation, gradients.layouts, batch, scores, is_deterministic=bool(deterministic)
    )
    operation.run(gradients, stream, cumulative)
    is_direct = all(side.is_direct for side in cumulative)
    if call.key is not None and is_direct and not (q.is_empty or k.is_empty):
        new = (*gradients.allocators(), operation.workspace(q))
        _CALLS.remember(
            call.arrays,
            call.key,
            NamedBinding(
                operation, (*call.names, *gradients.given, *gradients.new_names, "workspace")
            ),
            [_arrays.view(array).framework for array in call.arrays],
            q.device,
            allocators=new,
            has_workspace=True,
        )
    return gradients.returned
