"""Ring attention over a process group, and its backward."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tmaasync import ops
from tmaasync._kinds import check_flags
from tmaasync.errors import ArgumentError, ArrayTypeError, Violation
from tmaasync.ops._flash.gradients import INPUTS
from tmaasync.ops._flash.operands import Operands, Scores
from tmaasync.ops._ring_attention import length_violations
from tmaasync.torch import _group_emulated, _group_kernels
from tmaasync.torch._attention_backward import check, checked_gradients, options_of, save
from tmaasync.torch._attention_options import AXES, mask_options, reached
from tmaasync.torch._group import Group, Members, name_of
from tmaasync.torch._group_rows import lost_derivatives, unfit_group
from tmaasync.torch._plain import NUMBERS_OR_NONE
from tmaasync.torch._registry import (
    define,
    refuse_second_backward,
    register_autocast,
    register_backward,
)
from tmaasync.torch._stand_ins import stand_ins
from tmaasync.torch._tensors import require_tensors

_OPERATORS = torch.ops.tmaasync


def ring_attention(  # noqa: PLR0913 - the parameters of attention
    q: Any,
    k: Any,
    v: Any,
    *,
    group: Any = None,
    causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
) -> Any:
    """Compute attention of this rank's queries to the keys of all ranks of a group.

    This is `tmaasync.ops.ring_attention` (context parallelism) for one process per GPU, as the
    operator ``torch.ops.tmaasync.ring_attention``. With ``causal`` rank r of P holds chunk r, then
    chunk 2 P - 1 - r of the 2 P chunks of a sequence (zigzag). The backward is
    `tmaasync.ops.ring_attention_backward`, for head_dim up to 128; the log-sum-exp has none.
    Tensors that TMA cannot read are copied. Otherwise as `all_gather_matmul`.

    Args:
        q: [batch, length, heads, head_dim], bfloat16 or float16, of one shape on all ranks; with
            ``causal`` an even length. head_dim is a multiple of 8, at most 256.
        k: [batch, length, kv_heads, head_dim], for the same positions as q.
        v: As k.
        group: A process group, as in `all_gather_matmul`.
        causal: Whether a query attends only to keys up to its own position.
        scale: Factor of the scores; by default ``1 / sqrt(head_dim)``.
        return_lse: Whether to return the log-sum-exp of the scores too.
        deterministic: Whether the backward adds dq in a fixed order; also enabled by
            ``torch.use_deterministic_algorithms``.

    Returns:
        The output, contiguous, like q; with ``return_lse`` the pair (output, log-sum-exp), the
        log-sum-exp float32 [batch, heads, length].

    Raises:
        ArgumentError: As `all_gather_matmul`, as the other errors.
    """
    require_tensors(q=q, k=k, v=v)
    check_flags(causal=causal, return_lse=return_lse, deterministic=deterministic)
    if type(scale) not in NUMBERS_OR_NONE:
        Scores.of(1, causal, scale, None, None)
    options = {"causal": causal, "scale": scale, "deterministic": deterministic}
    out, lse = _OPERATORS.ring_attention(q, k, v, name_of(group), **options)
    return (out, lse) if return_lse else out


# --- kernels and fake kernels -------------------------------------------------------------------


def _run(q: Any, k: Any, v: Any, group: str, *, deterministic: bool = False, **options: Any) -> Any:
    del deterministic  # used by the backward only
    operation = functools.partial(ops.ring_attention, return_lse=True)
    named = {"q": q, "k": k, "v": v}
    return _called(group, named, options, operation, _group_kernels.ring_attention)


def _run_backward(*given: Any, **options: Any) -> Any:
    *tensors, group = given
    named = dict(zip(INPUTS, tensors, strict=True))
    operation, on_gpu = ops.ring_attention_backward, _group_kernels.ring_attention_backward
    return _called(group, named, options, operation, on_gpu)


def _called(
    group: str, tensors: dict[str, Any], options: dict[str, Any], operation: Any, on_gpu: Any
) -> Any:
    state, given = Group.of(group), tensors.values()
    key = state.key((on_gpu, *options.items()), *given)
    if (known := state.calls.get(key)) is not None:
        return known(*given)
    broken = _violations(state.members, options, tensors)
    q, k = tensors["q"], tensors["k"]
    name = "ring_attention_backward" if "dout" in tensors else "ring_attention"
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}"
    chosen = "".join(f", {option} {value}" for option, value in sorted(options.items()))
    call = f"{name} of {q.dtype}, {shapes}{chosen}"
    state.refuse(call, broken)
    if q.device.type == "cpu":
        operation = functools.partial(operation, **options)
        return _group_emulated.run(state, call, list(given), operation)
    return state.first(key, on_gpu(state, call, *given, **options), *given)


def _fake(
    q: Any, k: Any, v: Any, group: str, *, deterministic: bool = False, **options: Any
) -> Any:
    del deterministic
    ArgumentError.raise_for(_violations(Members.of(group), options, {"q": q, "k": k, "v": v}))
    batch, length, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((batch, heads, length), dtype=torch.float32)


def _fake_backward(*given: Any, **options: Any) -> Any:
    *tensors, group = given
    named = dict(zip(INPUTS, tensors, strict=True))
    ArgumentError.raise_for(_violations(Members.of(group), options, named))
    return tuple(named[name].new_empty(named[name].shape) for name in "qkv")


def _violations(
    members: Members, options: dict[str, Any], tensors: dict[str, Any]
) -> tuple[Violation, ...]:
    """Return the rules that a rank's tensors break, and its group."""
    found = tuple(unfit_group(members))
    mask = {name: value for name, value in options.items() if name != "deterministic"}
    try:
        views = stand_ins(**tensors)
        if views is None:  # a size depends on data
            return found
        if "dout" in tensors:
            found += tuple(lost_derivatives(tensors))
            operands = checked_gradients(views, AXES, mask)
        else:
            q, k, v = map(reached, views.values())
            operands = Operands.of(q, k, v, AXES)
            Scores.of(operands.q.shape[-1], **mask_options(**mask))
    except (ArgumentError, ArrayTypeError) as error:
        if not error.violations:
            raise
        return (*found, *error.violations)
    return (*found, *length_violations(operands, options.get("causal", False)))


# --- backward -----------------------------------------------------------------------------------


def _save(ctx: Any, results: Any, q: Any, k: Any, v: Any, group: str, **options: Any) -> None:
    save(ctx, results, q, k, v, **options)
    ctx.group = group


def _check(needs: Any, q: Any, k: Any, v: Any, group: str, **options: Any) -> None:
    del group
    check(needs, q, k, v, **options)


def _backward(ctx: Any, grad: Any, grad_of_lse: Any) -> tuple[Any, ...]:
    del grad_of_lse  # the log-sum-exp is not differentiable
    refuse_second_backward("ring_attention", "torch's attention")
    operator = _OPERATORS.ring_attention_backward.default
    return (*operator(grad, *ctx.saved_tensors, ctx.group, **options_of(ctx)), None)


_OPTIONS = "str group, *, bool causal=False, float? scale=None, bool deterministic=False"

define(
    "ring_attention_backward",
    f"{', '.join(f'Tensor {name}' for name in INPUTS)}, {_OPTIONS}",
    _run_backward,
    _fake_backward,
    returns="(Tensor, Tensor, Tensor)",
    other_returns=None,
)
define(
    "ring_attention",
    f"Tensor q, Tensor k, Tensor v, {_OPTIONS}",
    _run,
    _fake,
    returns="(Tensor, Tensor)",
    other_returns=None,
    is_differentiable=True,
)
register_backward("ring_attention", _run, _save, _backward, check=_check)
register_autocast("ring_attention", operands=3)
