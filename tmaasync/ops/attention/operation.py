"""ops.attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element, element
from tmaasync.ops._launches import LaunchCache, Repeatable, several_arrays
from tmaasync.ops._plans import Layout
from tmaasync.ops._results import empty, maker
from tmaasync.ops.attention.arguments import Views, check_output, reachable
from tmaasync.ops.attention.float8 import UNSCALED, Scale, given_scales, scales_of
from tmaasync.ops.attention.plan import plan_for
from tmaasync.ops.attention.scores import Scores

__all__ = ["attention"]

_AXES = "[batch, positions, heads, head_dim]"
_FLOAT32 = element(np.float32)


def attention(  # noqa: PLR0913 - what attention has
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool | str = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
    scales: tuple[Any, Any, Any] | None = None,
    dtype: object = None,
    out: Any = None,
    stream: object = None,
) -> Any:
    """Attend: ``softmax(scale * q @ k.T + mask) @ v``, head by head, with sums in fp32.

    On the arrays' GPU, or, in host memory, on the emulator. The columns of a head are contiguous;
    batch, positions and heads may have any strides that are multiples of 16 bytes, so slices of one
    array of queries, keys and values serve as they are, and other orders after a transpose.

    Args:
        q: [batch, positions, heads, head_dim], bfloat16, float16 or float8_e4m3fn; head_dim a
            multiple of 8, of float8 of 16, up to 256.
        k: [batch, keys, kv_heads, head_dim]; kv_heads divides heads, and head h of q attends to
            head ``h // (heads // kv_heads)``.
        v: As k.
        causal: Whether a position sees no keys behind its own: ``True`` or ``"bottom_right"``, the
            last position sees the last key; ``"top_left"``, the first position sees the first key
            alone.
        scale: Of the scores; by default ``1 / sqrt(head_dim)``.
        window: (left, right): how many keys before and behind its own a position sees; None for a
            side without a limit. Which key is a position's own, ``causal`` says; without it, the
            last position's is the last key.
        softcap: Scores become ``softcap * tanh(score / softcap)``, before the mask.
        return_lse: Whether to return the log-sum-exp of the scores too.
        scales: Of float8 operands, what the elements of q, k and v are multiplied by: each a
            number, None for 1, or an array of float32 on the same device, of one element or
            [batch, kv_heads].
        dtype: The element type of q, k and v, where they cannot say it (float8 in bytes).
        out: Where to: an array like q, for float8 operands of bfloat16 or float16. By default a new
            contiguous one, for float8 operands of bfloat16.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The output, [batch, positions, heads, head_dim]; with ``return_lse`` a pair of it and the
        log-sum-exp, float32 [batch, heads, positions]. A position that sees no key has zeros, and
        minus infinity there.

    Raises:
        ArgumentError: An argument is not as described; every broken rule.
        ArrayTypeError: A type that the kernel does not have.
        BackendError: The GPU is older than sm_90; or, for host arrays, there is no C++ compiler.

    >>> import numpy as np
    >>> q = np.zeros((1, 3, 1, 8), np.float16)
    >>> v = np.arange(24, dtype=np.float16).reshape(1, 3, 1, 8)
    >>> attention(q, q, v, causal=True)[0, :, 0, 0]
    array([0., 4., 8.], dtype=float16)
    """
    option = (causal, scale, window, softcap, return_lse, out is None)
    if scales is not None or dtype is not None:
        return _attend_scaled(_Call(q, k, v, out), option, scales, dtype, stream)
    arrays = (q, k, v) if out is None else (q, k, v, out)
    done = _LAUNCHES.run(arrays, option, stream)
    if done is not None:
        return done[3:5] if return_lse else done[3]
    views = Views.of(q, k, v, _AXES, may_be_bytes=True)
    return _attend_anew(_Call(q, k, v, out), views, option, option, stream)


class _Call(NamedTuple):
    """The arrays of a call, as the caller gave them."""

    q: Any
    k: Any
    v: Any
    out: Any
    scales: tuple[Any, ...] = ()

    @property
    def arrays(self) -> tuple[Any, ...]:
        """Those that there are."""
        q, k, v, out, scales = self
        return (q, k, v, *scales) if out is None else (q, k, v, *scales, out)


_Option = tuple[Any, ...]
"""Causal, scale, window, softcap, return_lse and whether the output is new."""


def _attend_scaled(call: _Call, option: _Option, scales: Any, dtype: object, stream: object) -> Any:
    """The same of float8 operands whose scales, or whose type, the caller says."""
    numbers, given = given_scales(scales)
    call = call._replace(scales=given)
    key = (*option, *numbers, dtype)
    done = _LAUNCHES.run(call.arrays, key, stream)
    if done is not None:
        at = 3 + len(given)
        return done[at : at + 2] if option[4] else done[at]
    views = Views.of(*call[:3], _AXES, may_be_bytes=True, dtype=dtype)
    forms, arrays = (UNSCALED, ()) if scales is None else scales_of(numbers, given, views)
    return _attend_anew(call, views, option, key, stream, forms, arrays)


def _attend_anew(
    call: _Call,
    views: Views,
    option: _Option,
    key: tuple[Any, ...],
    stream: object,
    forms: tuple[Scale, ...] = UNSCALED,
    scales: tuple[ArrayView, ...] = (),
) -> Any:
    """What no launch was found for, and have it found by the key."""
    causal, scale, window, softcap, return_lse, is_new = option
    scores = Scores.of(views.q.shape[-1], causal, scale, window, softcap)
    out = empty(views.q, views.q.shape, _output_element(views)) if is_new else call.out
    target = _arrays.view(out, argument="out")
    check_output("out", target, views)
    lse = empty(views.q, _lse_shape(views.q), _FLOAT32) if return_lse else None
    layout = Layout.of(reachable(target))
    plan = plan_for(views.layouts, layout, scores, has_lse=return_lse, scales=forms)
    plan.run(views, target, None if lse is None else _arrays.view(lse), stream, scales)
    if plan.is_ready:
        memory = plan.makers_of_memory(views)
        makers = [*_makers(views, is_new=is_new, return_lse=return_lse), *memory]
        repeatable = Repeatable(plan.aim, several_arrays(makers), has_scratch=bool(memory))
        frameworks = tuple(view.framework for view in (*views, *scales, target))
        _LAUNCHES.remember(call.arrays, key, repeatable, frameworks, target.device)
    return out if lse is None else (out, lse)


_LAUNCHES = LaunchCache()


def _makers(views: Views, *, is_new: bool, return_lse: bool) -> Iterator[Callable[[], Any]]:
    """What makes the arrays that the caller does not give."""
    if is_new:
        yield maker(views.q, views.q.shape, _output_element(views))
    if return_lse:
        yield maker(views.q, _lse_shape(views.q), _FLOAT32)


def _output_element(views: Views) -> Element:
    return element(views.output_types[0])


def _lse_shape(q: ArrayView) -> tuple[int, ...]:
    batch, positions, heads, _ = q.shape
    return batch, heads, positions
