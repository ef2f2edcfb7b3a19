"""A kernel that calls functions of CUDA's, each with arguments of the types that it declares."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["SIGNATURES", "kernel_text"]

SIGNATURES = Path(__file__).parents[1] / "data" / "device_functions.txt"
"""A line ``name(type, type)`` for each function, as tools/list_device_functions.py finds them."""

_HEAD = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

template <typename T>
__device__ T given(const char* in) {
    return *reinterpret_cast<const T*>(in);
}

template <typename T>
__device__ void keep(char* out, T value) {
    *reinterpret_cast<T*>(out) = value;
}

// A call that returns nothing gives this operator a void operand.
struct Kept {
    char* out;
    template <typename T>
    __device__ friend void operator,(T value, Kept kept) { keep(kept.out, value); }
};
"""


def kernel_text(signatures: Sequence[str]) -> str:
    """Return a kernel ``calls(in, out)`` that calls each function once.

    Values come from ``in``, pointers to const point there, other pointers to ``out``, and results
    go to ``out``.
    """
    calls = [_call(number, signature) for number, signature in enumerate(signatures)]
    body = "\n".join(f"    call_{number}(in, out);" for number in range(len(signatures)))
    return "\n".join(
        [
            _HEAD,
            *calls,
            'extern "C" __global__ void calls(const char* in, char* out) {',
            f"{body}\n}}",
        ]
    )


def _call(number: int, signature: str) -> str:
    name, _, types = signature.rstrip(")").partition("(")
    arguments = ", ".join(map(_argument, filter(None, types.split(", "))))
    return (
        f"__device__ void call_{number}(const char* in, char* out) {{ "
        f"{name}({arguments}), Kept{{out}}; }}"
    )


def _argument(kind: str) -> str:
    if "*" not in kind:
        return f"given<{kind}>(in)"
    if re.search(r"\bconst\b", kind):
        return f"reinterpret_cast<{kind}>(in)"
    return f"reinterpret_cast<{kind}>(out)"
