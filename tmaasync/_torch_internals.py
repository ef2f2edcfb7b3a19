"""Torch's private entry points, each with its public fallback: nothing else here knows them.

They are what torch.compile's own code calls, and save most of a call's host time (measured on an
H200's host by benchmarks/bench_host.py, 2026-11-21: a cached matmul costs 0.50 of torch.matmul).
Another release of torch may lack any of them. Torch is found in ``sys.modules``: where it was never
imported there are no tensors.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

LEAST_RELEASE = (2, 7)
"""The oldest release that the tests of tmaasync.torch were run with (2026-11-24); pyproject.toml
names it too. Its torch.compile refuses a caller's output together with ``return_lse=True``."""


def tensor_guard(tensors: Sequence[Any]) -> Callable[..., bool] | None:
    """Return a test whether other tensors look like these, types to strides.

    One call for all tensors, at a quarter of the cost of reading shape, strides and type of each.
    It keeps no tensor, and is stricter than it needs to be: ``requires_grad``, inference mode and
    autocast have to be as they were. Grad mode it does not compare, so in grad mode the test of
    tensors that require grad fails. None where torch lacks the test, or where the test refuses the
    tensors themselves: fingerprints are the fallback.
    """
    torch = sys.modules["torch"]
    try:
        guards = torch._C._dynamo.guards.TensorGuards
        check: Callable[..., bool] = guards(
            *tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None
        ).check
        if check(*tensors) is not True:
            return None
        # A Python function, but for tensors that require grad alone, such as parameters.
        return _outside_grad_mode(check) if any(one.requires_grad for one in tensors) else check
    except (AttributeError, TypeError, RuntimeError):
        return None


def _outside_grad_mode(check: Callable[..., bool]) -> Callable[..., bool]:
    is_grad_enabled = sys.modules["torch"].is_grad_enabled
    return lambda *tensors: not is_grad_enabled() and check(*tensors)


def refuse_old_release() -> None:
    """Raise an ImportError for a release of torch whose dispatcher lacks what operators need."""
    release = sys.modules["torch"].__version__
    if release < LEAST_RELEASE:
        least = ".".join(map(str, LEAST_RELEASE))
        raise ImportError(
            f"tmaasync.torch needs torch {least} or later, but this is torch {release}. "
            f"Install a later one: pip install 'torch>={least}'"
        )


def tensor_allocator(shape: tuple[int, ...], dtype: object, device: int) -> Callable[[], Any]:
    """Return what makes contiguous uninitialised tensors on a CUDA device.

    At a quarter of the cost of its fallback, ``torch.empty``. The private function knows the
    current device alone, which is the right one as a rule.
    """
    torch = sys.modules["torch"]
    fallback = functools.partial(torch.empty, shape, dtype=dtype, device=f"cuda:{device}")
    try:
        current_device = torch._C._cuda_getDevice
        allocate = torch._C._dynamo.guards._empty_strided_cuda
    except AttributeError:
        return fallback
    sizes = [max(size, 1) for size in shape]
    strides = tuple(math.prod(sizes[dimension + 1 :]) for dimension in range(len(sizes)))

    def make() -> Any:
        return allocate(shape, strides, dtype) if current_device() == device else fallback()

    return make


def current_stream() -> Callable[[int], int]:
    """Return a function that reads the handle of a device's current stream.

    A tenth of the cost of its fallback, which makes a Stream object.
    """
    torch = sys.modules["torch"]
    raw: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw or (lambda device: int(torch.cuda.current_stream(device).cuda_stream))


def refuse_tracing(function: Callable[..., Any], instead: str) -> None:
    """Have torch.compile not trace into a function, and its error with fullgraph=True say why.

    They are the attributes that torch.compiler.disable leaves. Another release of torch may ignore
    them, and trace into the function.
    """
    vars(function)["_torchdynamo_disable"] = True
    vars(function)["_torchdynamo_disable_msg"] = f"in compiled code call {instead}"


def plain_keysets() -> frozenset[int]:
    """Return the dispatch keys of calls that autograd would pass straight to a CPU or CUDA kernel.

    Any other keys mean a mode, a transform, tracing, or tensors without ordinary memory. They are
    the bits of a ``DispatchKeySet``, as its ``raw_repr`` gives them.
    """
    library = sys.modules["torch"]._C
    names = (("CPU", "AutogradCPU"), ("CUDA", "AutogradCUDA"))
    pairs = [
        [library.DispatchKeySet(library.DispatchKey.__members__[one]) for one in pair]
        for pair in names
    ]
    return frozenset((back_end | autograd).raw_repr() for back_end, autograd in pairs)


def below_autograd(operator: Any, keyset: Any, *given: Any, **options: Any) -> Any:
    """Call what an operator has for the dispatch keys after autograd's.

    By the entry points that ``torch.library.register_autograd`` uses, from torch 2.4 on.
    """
    library = sys.modules["torch"]._C
    with library._AutoDispatchBelowAutograd():
        return operator.redispatch(keyset & library._after_autograd_keyset, *given, **options)


def dispatch_modes() -> Callable[[], int]:
    """Return a function that counts the modes which see each call (``TorchDispatchMode``).

    Where torch lacks it, there is always one.
    """
    count: Callable[[], int] | None = getattr(
        sys.modules["torch"]._C, "_len_torch_dispatch_stack", None
    )
    return count or (lambda: 1)


class _NoLevel:
    _current_level = -1


class _AnyLevel:
    _current_level = 0


def forward_mode() -> Any:
    """Return an object whose ``_current_level`` is negative where no tensor has a tangent.

    It is the module ``torch.autograd.forward_ad``; a look costs 0.02 us. Where torch lacks the
    level, it is never negative, and `has_tangent` looks at the tensor.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return _NoLevel
    module = torch.autograd.forward_ad
    return module if hasattr(module, "_current_level") else _AnyLevel


def has_tangent(tensor: Any) -> bool:
    """Whether torch would compute a tangent (a forward-mode derivative) of its functions."""
    if forward_mode()._current_level < 0:
        return False
    try:
        unpacked = sys.modules["torch"].autograd.forward_ad.unpack_dual(tensor)
    except RuntimeError:  # while torch.func.linearize traces, autograd does not know the tensor
        return True
    return unpacked.tangent is not None


def is_batched() -> Callable[[Any], bool]:
    """Return a test whether a tensor is one of ``torch.autograd.grad(..., is_grads_batched=True)``.

    Where torch lacks the test, none is.
    """
    library = sys.modules["torch"]._C
    test: Callable[[Any], bool] | None = getattr(
        getattr(library, "_functorch", None), "is_legacy_batchedtensor", None
    )
    return test or (lambda tensor: False)


def known_size(size: Any) -> int | None:
    """Return a size; of a symbol the number that it stands for while torch traces, with no guard.

    None where there is no number, because it depends on data.
    """
    if isinstance(size, int):
        return size
    hint = getattr(size.node, "hint", None)
    return hint if isinstance(hint, int) else None


def recorded(function: Any) -> Callable[..., Any]:
    """Return ``function.apply`` of an autograd Function, without its look for torch.func.

    For callers that know of no transform; it saves 1.6 of 5.4 us.
    """
    base = sys.modules["torch"].autograd.Function
    apply: Callable[..., Any] | None = getattr(super(base, function), "apply", None)
    return apply or function.apply


def any_requires_grad() -> Callable[..., bool]:
    """Return a test whether any of its arguments is a tensor that requires grad.

    A tenth of the cost of its fallback.
    """
    torch = sys.modules["torch"]
    test: Callable[..., bool] | None = getattr(torch._C, "_any_requires_grad", None)

    def look(*given: Any) -> bool:
        return any(isinstance(one, torch.Tensor) and one.requires_grad for one in given)

    return test or look
