"""Registration of tmaasync.ops operations as ``torch.library`` operators."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from tmaasync import _arrays
from tmaasync._torch_internals import (
    any_requires_grad,
    below_autograd,
    forward_mode,
    plain_keysets,
    recorded,
    refuse_old_release,
)
from tmaasync.errors import ArgumentError
from tmaasync.torch._autocast import cast_operands
from tmaasync.torch._order import keep_order, lowered_in_order

refuse_old_release()

_LIBRARY = torch.library.Library("tmaasync", "DEF")
_BACK_ENDS = ("CPU", "CUDA")
_TRANSFORMS = ("FuncTorchDynamicLayerFrontMode", "Batched")
"""Dispatch keys of calls inside transforms of torch.func, and of the tensors that torch.autograd
calls a backward with for is_grads_batched=True; others never see them."""
# Compiled code must pass tensors with their eager-mode strides, because TMA has stride rules.
_TAGS = (
    torch.Tag.pt2_compliant_tag,
    getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order),
)


def define(
    name: str,
    arguments: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    *,
    returns: str = "Tensor",
    other_returns: str | None = "",
    is_differentiable: bool = False,
) -> None:
    """Define ``tmaasync::<name>`` and, for a caller's output, ``tmaasync::<name>.out``.

    Args:
        name: The name of both operators; or ``<name>.<overload>``, an overload without ``.out``.
        arguments: The schema of the arguments.
        run: Takes the arguments, and the caller's output as ``out``. It calls an operation of
            tmaasync.ops, which in grad mode rejects tensors that require grad.
        fake: Takes the same arguments, including ``out``. It checks them as ``run`` does, and
            returns tensors without memory that describe new results.
        returns: The schema of the results, the output first.
        other_returns: The schema of the results of ``.out``; None if there is no ``.out``.
        is_differentiable: Whether the caller registers a backward; ``.out`` has none.
    """
    checked = _refusing_gradients(fake)
    own_fake = fake if is_differentiable else checked
    has_group = "str group" in arguments  # all of whose ranks make the same calls
    own_fake = lowered_in_order(own_fake) if has_group else own_fake
    _define(name, f"({arguments}) -> {returns}", run, own_fake)
    if has_group:
        keep_order(_overload(name))
    if not is_differentiable:
        # The operation rejects tensors that need a backward, so no Python call is needed here.
        _LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")
    if other_returns is None:
        return

    def run_into(*given: Any, out: Any, **options: Any) -> Any:
        results = run(*given, out=out, **options)
        torch.autograd.graph.increment_version(out)
        return _without_first(results)

    def fake_into(*given: Any, out: Any, **options: Any) -> Any:
        return _without_first(checked(*given, **options, out=out))

    separator = ", " if "*" in arguments else ", *, "
    schema = f"({arguments}{separator}Tensor(a!) out) -> ({other_returns})"
    _define_changing(f"{name}.out", schema, run_into, fake_into)


def register_autocast(name: str, operands: int) -> None:
    """Make ``torch.autocast`` cast an operator's first ``operands`` arguments, except in ``.out``.

    This matches torch's own matmul and attention. Without autocast it costs nothing.
    """
    operator = _overload(name)
    for back_end in _BACK_ENDS:
        kind = back_end.lower()

        def cast(*given: Any, kind: str = kind, **options: Any) -> Any:
            if options.get("precision") is None:  # else the caller requests float32 operands
                given = (*cast_operands(given[:operands]), *given[operands:])
            with torch.autocast(kind, enabled=False):
                return operator(*given, **options)

        _LIBRARY.impl(name, cast, f"Autocast{back_end}")


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.tmaasync, packet), overload or "default")


def define_in_place(
    name: str, arguments: str, run: Callable[..., Any], fake: Callable[..., None]
) -> None:
    """Define ``tmaasync::<name>``, which changes its first argument and returns nothing.

    Args:
        name: The name of the operator.
        arguments: The schema of the arguments; the first one is annotated as mutated.
        run: Takes the arguments. It calls an operation of tmaasync.ops, which in grad mode rejects
            tensors that require grad.
        fake: Takes the same arguments, and checks them.
    """

    def run_into(target: Any, *given: Any, **options: Any) -> None:
        run(target, *given, **options)
        torch.autograd.graph.increment_version(target)

    _define_changing(name, f"({arguments}) -> ()", run_into, _refusing_gradients(fake))


def _define_changing(
    name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]
) -> None:
    """Define an operator that mutates an argument.

    The operation itself rejects tensors with a negative bit: torch's own fallback for lazy negation
    requires the mutated tensor among the results.
    """
    _define(name, schema, run, fake)
    for key in ("Autograd", "Negative"):
        _LIBRARY.impl(name, torch.library.fallthrough_kernel, key)


def _define(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    _LIBRARY.define(name + schema, tags=_TAGS)
    for back_end in _BACK_ENDS:
        _LIBRARY.impl(name, run, back_end)
    packet, *_ = name.split(".")
    # torch.func.grad and jvp would unwrap tensors before the kernel, and return zeros.
    for key in _TRANSFORMS:
        _LIBRARY.impl(name, functools.partial(_refuse_transforms, packet), key)
    torch.library.register_fake(f"tmaasync::{name}", _on_meta(packet, fake), lib=_LIBRARY)


def _on_meta(name: str, fake: Callable[..., Any]) -> Callable[..., Any]:
    """Return the fake kernel, which rejects calls that mix meta tensors with others.

    The dispatcher calls it if any tensor is on meta; results with memory would be uninitialised.
    """

    @functools.wraps(fake)
    def checked(*given: Any, **options: Any) -> Any:
        tensors = [one for one in (*given, *options.values()) if isinstance(one, torch.Tensor)]
        devices = sorted({str(one.device) for one in tensors})
        if "meta" in devices and len(devices) > 1:
            raise ArgumentError.broken(
                f"the tensors of tmaasync::{name}",
                f"on {' and '.join(devices)}",
                "tensors on meta have no memory",
                "Move all of them to one device",
                verb="lie",
            )
        return fake(*given, **options)

    return checked


def _refuse_transforms(name: str, *given: Any, **options: Any) -> None:
    del given, options
    raise ArgumentError(
        f"tmaasync::{name} is called inside a transform of torch.func, or for several gradients at "
        "once (is_grads_batched=True), for which it has no rule. For gradients call "
        "tensor.backward() or torch.autograd.grad, one at a time; instead of vmap pass a batch."
    )


def _refusing_gradients(fake: Callable[..., Any]) -> Callable[..., Any]:
    """Return a fake kernel that rejects tensors that need a backward, as the operation does."""
    signature = inspect.signature(fake)

    @functools.wraps(fake)
    def checked(*given: Any, **options: Any) -> Any:
        for argument, value in signature.bind(*given, **options).arguments.items():
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, torch.Tensor):
                    _arrays.require_no_derivative(one, argument)
        return fake(*given, **options)

    return checked


def _without_first(results: Any) -> Any:
    if not isinstance(results, tuple):
        return None
    return results[1] if len(results) == 2 else results[1:]


def define_with_backward(
    name: str,
    arguments: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    save: Callable[..., None],
    backward: Callable[..., tuple[Any, ...]],
) -> None:
    """Define an operator without ``.out``, and register its backward."""
    define(name, arguments, run, fake, other_returns=None, is_differentiable=True)
    register_backward(name, run, save, backward)


def register_backward(  # noqa: C901 - one closure for each dispatch key
    name: str,
    run: Callable[..., Any],
    save: Callable[..., None],
    backward: Callable[..., tuple[Any, ...]],
    *,
    check: Callable[..., None] | None = None,
    first: tuple[str, Callable[..., Any]] | None = None,
) -> None:
    """Register the backward of an operator.

    Unlike ``torch.library.register_autograd``, a call in eager mode goes from autograd directly to
    ``run`` without a second dispatch (10 us less per call).

    Args:
        name: The name of the operator.
        run: As in `define`.
        save: Takes autograd's context, the results, and the arguments of the call. It saves what
            the backward needs. The context's ``needs`` has a bool per positional argument;
            ``is_plain`` says whether the call went directly to ``run``.
        backward: Takes the context and the gradients of the results. It returns a gradient, or
            None, for each positional argument of the operator, even if the call passed fewer.
        check: Takes the context's ``needs`` and the arguments of the call. It rejects arguments
            without a backward before any launch.
        first: The name and the ``run`` of an operator with the same arguments that returns only
            the first result. If a gradient is needed, it calls this operator.
    """
    operator = _overload(name)
    plain, requires_grad, is_grad_enabled = (
        plain_keysets(),
        any_requires_grad(),
        torch.is_grad_enabled,
    )
    forward = forward_mode()

    function = _autograd_function(name, run, save, backward, check)
    apply_plain = recorded(function)

    def run_or_record(keyset: Any, *given: Any, **options: Any) -> Any:
        call, apply = run, apply_plain
        if keyset.raw_repr() not in plain:
            call, apply = functools.partial(below_autograd, operator, keyset), function.apply
        if not (is_grad_enabled() and requires_grad(*given)):
            return call(*given, **options)
        if forward._current_level >= 0:
            _refuse_tangents(operator, given)
        return apply(call, options, *given)

    _LIBRARY.impl(name, run_or_record, "Autograd", with_keyset=True)
    if first is None:
        return
    other, run_other = getattr(torch.ops.tmaasync, first[0]).default, first[1]

    def run_or_record_first(keyset: Any, *given: Any, **options: Any) -> Any:
        if is_grad_enabled() and requires_grad(*given):
            return run_or_record(keyset, *given, **options)[0]
        call = run_other
        if keyset.raw_repr() not in plain:
            call = functools.partial(below_autograd, other, keyset)
        return call(*given, **options)

    _LIBRARY.impl(first[0], run_or_record_first, "Autograd", with_keyset=True)


def _autograd_function(
    name: str,
    run: Callable[..., Any],
    save: Callable[..., None],
    backward: Callable[..., tuple[Any, ...]],
    check: Callable[..., None] | None,
) -> Any:
    """Return the autograd Function, with the operator's name in torch's errors and profilers."""

    def run_and_save(ctx: Any, call: Callable[..., Any], options: Any, *given: Any) -> Any:
        ctx.needs, ctx.is_plain = ctx.needs_input_grad[2:], call is run
        if check is not None:
            check(ctx.needs, *given, **options)
        results = call(*given, **options)
        save(ctx, results, *given, **options)
        return results

    def run_backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return (None, None, *backward(ctx, *grads))

    packet, *_ = name.split(".")
    methods = {"forward": staticmethod(run_and_save), "backward": staticmethod(run_backward)}
    title, bases = packet.title().replace("_", ""), (torch.autograd.Function,)
    return types.new_class(title, bases, exec_body=lambda body: body.update(methods))


def _refuse_tangents(operator: Any, given: tuple[Any, ...]) -> None:
    for argument, one in zip(operator._schema.arguments, given, strict=False):
        if isinstance(one, torch.Tensor):
            _arrays.require_no_tangent(one, argument.name)


def refuse_second_backward(name: str, instead: str) -> None:
    """Reject a second derivative: grad mode is on in a backward with ``create_graph``."""
    if torch.is_grad_enabled():
        raise ArgumentError(
            f"create_graph=True: the backward of tmaasync::{name} cannot be differentiated again. "
            f"Leave create_graph out, or use {instead} where you need second derivatives."
        )
