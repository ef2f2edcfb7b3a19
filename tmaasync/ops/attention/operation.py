"""ops.attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync.ops._launches import LaunchCache, Repeatable, several_arrays
from tmaasync.ops._plans import Layout
from tmaasync.ops._results import empty, maker
from tmaasync.ops.attention.arguments import Views, check_output, reachable
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
    out: Any = None,
    stream: object = None,
) -> Any:
    """Attend: ``softmax(scale * q @ k.T + mask) @ v``, head by head, with sums in fp32.

    On the arrays' GPU, or, in host memory, on the emulator. The columns of a head are contiguous;
    batch, positions and heads may have any strides that are multiples of 16 bytes, so slices of one
    array of queries, keys and values serve as they are, and other orders after a transpose.

    Args:
        q: [batch, positions, heads, head_dim], bfloat16 or float16; head_dim a multiple of 8 up to
            256.
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
        out: Where to: an array like q. By default a new contiguous one.
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
    arrays = (q, k, v) if out is None else (q, k, v, out)
    done = _LAUNCHES.run(arrays, option, stream)
    if done is not None:
        return done[3:5] if return_lse else done[3]
    views = Views.of(q, k, v, _AXES)
    scores = Scores.of(views.q.shape[-1], causal, scale, window, softcap)
    is_new = out is None
    if is_new:
        out = empty(views.q, views.q.shape, views.q.element)
    target = _arrays.view(out, argument="out")
    check_output("out", target, views)
    lse = empty(views.q, _lse_shape(views.q), _FLOAT32) if return_lse else None
    plan = plan_for(views.layouts, Layout.of(reachable(target)), scores, has_lse=return_lse)
    plan.run(views, target, None if lse is None else _arrays.view(lse), stream)
    if plan.is_ready:
        frameworks = (*views.frameworks, target.framework)
        parts = plan.maker_of_parts(views.q)
        makers = _makers(views.q, parts, is_new=is_new, return_lse=return_lse)
        has_parts = parts is not None
        repeatable = Repeatable(plan.aim, several_arrays(makers), has_scratch=has_parts)
        _LAUNCHES.remember(arrays, option, repeatable, frameworks, target.device)
    return out if lse is None else (out, lse)


_LAUNCHES = LaunchCache()


def _makers(
    q: ArrayView, parts: Callable[[], Any] | None, *, is_new: bool, return_lse: bool
) -> Iterator[Callable[[], Any]]:
    """What makes the arrays that the caller does not give, the last of them ``parts``."""
    if is_new:
        yield maker(q, q.shape, q.element)
    if return_lse:
        yield maker(q, _lse_shape(q), _FLOAT32)
    if parts is not None:
        yield parts


def _lse_shape(q: ArrayView) -> tuple[int, ...]:
    batch, positions, heads, _ = q.shape
    return batch, heads, positions
