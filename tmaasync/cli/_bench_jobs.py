"""Jobs of ``tmaasync bench``: an operation, and its torch and CuPy peers on the same arrays."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from tmaasync import ops
from tmaasync._elements import Element
from tmaasync._hardware import INT32_LIMIT
from tmaasync.errors import ArgumentError


class Operation(StrEnum):
    MATMUL = "matmul"
    ATTENTION = "attention"
    COPY = "copy"


_SIDES = {
    Operation.MATMUL: ("M N K", (4096, 4096, 4096)),
    Operation.ATTENTION: ("BATCH POSITIONS HEADS HEAD_DIM", (4, 4096, 16, 128)),
    Operation.COPY: ("the sides of an array", (16384, 16384)),
}
_TENSOR_CORE_TYPES = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Request:
    """An operation on arrays of these sides and this type."""

    operation: Operation
    sides: tuple[int, ...]
    element: Element
    is_causal: bool

    @classmethod
    def of(
        cls, operation: Operation, sides: Sequence[int], element: Element, is_causal: bool
    ) -> Request:
        """Return the job, with the operation's own sides if none are given.

        Raises:
            ArgumentError: The operation has other sides, or not this type.
        """
        what, usual = _SIDES[operation]
        given = tuple(sides) or usual
        is_fixed = operation is not Operation.COPY
        if is_fixed and len(given) != len(usual):
            raise ArgumentError.broken(
                f"{len(given)} sides",
                "given",
                f"{operation} has {len(usual)}",
                f"Pass {what}, or none for {' '.join(map(str, usual))}",
                verb="are",
            )
        if not all(0 < side < INT32_LIMIT for side in given):
            raise ArgumentError.broken(
                "sides",
                " ".join(map(str, given)),
                "each must be 1 or more, and below 2**31",
                f"Pass {what}",
                verb="are",
            )
        if is_fixed and element.name not in _TENSOR_CORE_TYPES:
            raise ArgumentError.broken(
                "dtype",
                element.name,
                f"{operation} is compared in {' and '.join(_TENSOR_CORE_TYPES)}",
                "Pass one",
            )
        return cls(operation, given, element, is_causal)

    @property
    def work(self) -> float:
        """Operations of a matmul or of attention; bytes read and written by a copy."""
        if self.operation is Operation.COPY:
            return 2.0 * math.prod(self.sides) * self.element.itemsize
        if self.operation is Operation.MATMUL:
            return 2.0 * math.prod(self.sides)
        batch, positions, heads, head_dim = self.sides
        seen = positions * (positions + 1) // 2 if self.is_causal else positions**2
        return 4.0 * batch * heads * head_dim * seen

    @property
    def unit(self) -> str:
        """Unit of the throughput: 10**12 units of work a second."""
        return "TB/s" if self.operation is Operation.COPY else "TFLOP/s"


@dataclass(frozen=True, slots=True)
class Job:
    """The candidates by name, ours first, and why others are absent."""

    candidates: dict[str, Callable[[], Any]]
    absent: dict[str, str] = field(default_factory=dict)


class Libraries(NamedTuple):
    """The libraries that tmaasync is compared with, and why some are absent.

    ``cupy`` has the arrays of all; ``torch`` is None where it does not take part.
    """

    cupy: Any
    torch: Any
    absent: dict[str, str]


def libraries() -> Libraries:
    """Import CuPy, and torch if it has a device."""
    cupy = importlib.import_module("cupy")
    if importlib.util.find_spec("torch") is None:
        return Libraries(cupy, None, {"torch": "it is not installed"})
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return Libraries(cupy, None, {"torch": "it was built without CUDA, or finds no device"})
    return Libraries(cupy, torch, {})


def prepare(request: Request, others: Libraries | None = None) -> Job:
    """Make the arrays on CuPy's current device, and run every candidate once.

    Raises:
        ArgumentError: The arrays do not fit into the device's memory.
    """
    others = others or libraries()
    try:
        job = _PREPARE[request.operation](request, others)
        for run in job.candidates.values():
            run()
    except others.cupy.cuda.memory.OutOfMemoryError:
        raise ArgumentError.broken(
            "sides",
            " ".join(map(str, request.sides)),
            "the device has no memory for arrays of that size",
            "Pass smaller ones",
            verb="are",
        ) from None
    return job


def _copy(request: Request, others: Libraries) -> Job:
    # CuPy and torch copy bits of every size, but do not have every type.
    cupy, torch, absent = others
    whole = _normal(cupy, (-(-math.prod(request.sides) * request.element.itemsize // 4),))
    bits = whole.view(f"u{request.element.itemsize}")
    source = bits[: math.prod(request.sides)].reshape(request.sides)
    target = cupy.empty_like(source)
    candidates = {"tmaasync": lambda: ops.copy(source, target)}
    if torch is not None:
        theirs = [torch.from_dlpack(array.view(np.uint8)) for array in (target, source)]
        candidates["torch"] = lambda: theirs[0].copy_(theirs[1])
    candidates["cupy"] = lambda: cupy.copyto(target, source)
    return Job(candidates, absent)


def _matmul(request: Request, others: Libraries) -> Job:
    """Multiply A[M, K] by the transpose of B[N, K], as the weights of a layer are stored."""
    cupy, torch, absent = others
    m, n, k = request.sides
    kind = request.element.dtype
    a, b = _normal(cupy, (m, k)).astype(kind), _normal(cupy, (n, k), seed=1).astype(kind)
    out = cupy.empty((m, n), kind)
    candidates = {"tmaasync": lambda: ops.matmul(a, b.T, out=out)}
    if torch is not None:
        left, right, theirs = (_as_torch(torch, array, request) for array in (a, b, out))
        candidates["torch"] = lambda: torch.matmul(left, right.T, out=theirs)
    if _runs(lambda: cupy.matmul(a, b.T, out=out)):
        candidates["cupy"] = lambda: cupy.matmul(a, b.T, out=out)
    else:
        absent = absent | {"cupy": f"it has no matmul of {request.element.name}"}
    return Job(candidates, absent)


def _attention(request: Request, others: Libraries) -> Job:
    cupy, torch, absent = others
    kind = request.element.dtype
    q, k, v = (_normal(cupy, request.sides, seed).astype(kind) for seed in range(3))
    out = cupy.empty_like(q)
    is_causal = request.is_causal
    candidates = {"tmaasync": lambda: ops.attention(q, k, v, causal=is_causal, out=out)}
    if torch is not None:
        theirs = [_as_torch(torch, array, request).transpose(1, 2) for array in (q, k, v)]
        attend = torch.nn.functional.scaled_dot_product_attention
        candidates["torch"] = lambda: attend(*theirs, is_causal=is_causal)
    return Job(candidates, absent | {"cupy": "it has no attention"})


_PREPARE = {
    Operation.MATMUL: _matmul,
    Operation.ATTENTION: _attention,
    Operation.COPY: _copy,
}


# --- arrays -----------------------------------------------------------------------------------


def _normal(cupy: Any, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Normally distributed numbers; on zeros the chip would clock higher."""
    return cupy.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def _as_torch(torch: Any, array: Any, request: Request) -> Any:
    """Return the same memory as a tensor, through integers, which every version exchanges."""
    return torch.from_dlpack(array.view(np.int16)).view(getattr(torch, request.element.name))


def _runs(call: Callable[[], object]) -> bool:
    try:
        call()
    except Exception:  # TypeError, ValueError or cuBLAS's own, by CuPy's version
        return False
    return True
