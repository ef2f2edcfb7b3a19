"""What CUDA's device functions return for drawn arguments, and a digest of it for each signature.

A call takes its arguments from numbers of their type: ordinary ones, special ones, and any bits. An
atomic function gets an element for each thread, and the digest is of its result and of what the
element then holds. NaNs count as one value.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from parity.device_calls import SIGNATURES

from tmaasync import Kernel

__all__ = ["APPROXIMATE", "digests", "kernel", "results", "signatures"]

THREADS = 64
DIGEST_BYTES = 4
_SLOT_BYTES = 16  # of one argument
_ARGUMENTS = 5
_RESULT_BYTES = 32  # the result, and what the element of an atomic function then holds
_CHUNKS = 4  # kernels

# Not of the arguments alone, or ends the launch, or returns nothing. The order of jn and yn is the
# number of their steps.
_LEFT_OUT = re.compile(
    r"__(?:trap|brkpt|nanosleep|activemask|sync|barrier|threadfence|cluster|prof|pm|cvta|is[A-Z])"
    r"|clock|jnf?\(|ynf?\(|free|malloc|mem(?:cpy|set)|nan|__shfl(?!_)|printf|vprintf|__assert"
)
_ATOMIC = re.compile(r"atomic\w+\((?!const)[\w ]+\*")

_KINDS = {
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "__half": np.dtype(np.float16),
    "__nv_bfloat16": np.dtype(ml_dtypes.bfloat16),
    "bits": np.dtype(np.uint8),
}
_KIND_OF = re.compile(r"(float|double)[234]?$|(__half)2?$|(__nv_bfloat16)2?$")
# Values of enumerations.
_CHOICES = {"cudaRoundMode": 4, "__nv_saturation_t": 2, "__nv_fp8_interpretation_t": 2}

_HEAD = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

struct Slot { char bytes[5][16]; };  // of each kind of number

template <typename T>
__device__ T given(const Slot* arguments, int index, int kind) {
    return *reinterpret_cast<const T*>(arguments[index].bytes[kind]);
}

__device__ float one_nan(float x) { return x == x ? x : __int_as_float(0x7fc00000); }
__device__ double one_nan(double x) { return x == x ? x : __longlong_as_double(0x7ff8ll << 48); }
__device__ __half one_nan(__half x) {
    return (__half_as_ushort(x) & 0x7fff) <= 0x7c00 ? x : __ushort_as_half(0x7fff);
}
__device__ __nv_bfloat16 one_nan(__nv_bfloat16 x) {
    return (__bfloat16_as_ushort(x) & 0x7fff) <= 0x7f80 ? x : __ushort_as_bfloat16(0x7fff);
}
__device__ __half2 one_nan(__half2 x) {
    return __halves2half2(one_nan(__low2half(x)), one_nan(__high2half(x)));
}
__device__ __nv_bfloat162 one_nan(__nv_bfloat162 x) {
    return __halves2bfloat162(one_nan(__low2bfloat16(x)), one_nan(__high2bfloat16(x)));
}
__device__ float2 one_nan(float2 x) { return make_float2(one_nan(x.x), one_nan(x.y)); }
__device__ float4 one_nan(float4 x) {
    return make_float4(one_nan(x.x), one_nan(x.y), one_nan(x.z), one_nan(x.w));
}
template <typename T>
__device__ T one_nan(T x) { return x; }

template <typename T>
__device__ void keep(char* out, T value) {
    *reinterpret_cast<T*>(out) = one_nan(value);
}
// What returns nothing gives this a void operand.
struct Kept {
    char* out;
    template <typename T>
    __device__ friend void operator,(T value, Kept kept) { keep(kept.out, value); }
};
"""


def signatures() -> tuple[str, ...]:
    """Return the signatures that have a digest."""
    return tuple(
        signature
        for signature in SIGNATURES.read_text().splitlines()
        if not _LEFT_OUT.match(signature) and signature.count("*") == bool(_ATOMIC.match(signature))
    )


def kernel(chunk: int, chunks: int) -> Kernel:
    """Return the kernel that calls each `chunks`-th signature, from this one on."""
    return Kernel(_text(signatures()[chunk::chunks]), "calls")


def results(backend: Any, chunks: int = _CHUNKS) -> Any:
    """Return the bytes that each signature gave each thread, by as many kernels."""
    given = backend.array(_arguments())
    count = len(signatures())
    in_order = np.empty((count, THREADS, _RESULT_BYTES), np.uint8)
    for chunk in range(chunks):
        own = len(range(chunk, count, chunks))
        out = backend.array(np.zeros((own, THREADS, _RESULT_BYTES), np.uint8))
        kernel(chunk, chunks)(1, THREADS, (given, out))
        in_order[chunk::chunks] = backend.host(out)
    return in_order


def digests(given: Any) -> dict[str, str]:
    """Return the digest of each signature's `results`, but for functions that are approximate."""
    return {
        signature: hashlib.blake2b(bytes_of.tobytes(), digest_size=DIGEST_BYTES).hexdigest()
        for signature, bytes_of in zip(signatures(), given, strict=True)
        if signature.partition("(")[0] not in APPROXIMATE
    }


def _arguments() -> Any:
    rng = np.random.default_rng(2026)
    given = np.zeros((THREADS, _ARGUMENTS, len(_KINDS), _SLOT_BYTES), np.uint8)
    for index, kind in enumerate(_KINDS.values()):
        numbers = rng.integers(0, 256, (THREADS, _ARGUMENTS, _SLOT_BYTES), np.uint8)
        if kind.kind != "u":
            count = _SLOT_BYTES // kind.itemsize
            drawn = rng.normal(0, 3, (THREADS, _ARGUMENTS, count)).astype(kind)
            special = np.array([0, -0.0, 1, -1, 0.5, np.inf, -np.inf, np.nan, 2.5, 300]).astype(
                kind
            )
            drawn[::5] = rng.choice(special, drawn[::5].shape)
            numbers[THREADS // 4 :] = drawn.view(np.uint8)[THREADS // 4 :]
        given[:, :, index] = numbers
    return given


def _text(chosen: Sequence[str]) -> str:
    calls = "".join(_call(number, signature) for number, signature in enumerate(chosen))
    rows = "".join(
        f"    call_{number}(own, out + {number} * {THREADS * _RESULT_BYTES});\n"
        for number in range(len(chosen))
    )
    return (
        f"{_HEAD}{calls}"
        'extern "C" __global__ void calls(const Slot* arguments, char* out) {\n'
        f"    const Slot* const own = arguments + threadIdx.x * {_ARGUMENTS};\n"
        f"    out += threadIdx.x * {_RESULT_BYTES};\n{rows}}}\n"
    )


def _call(number: int, signature: str) -> str:
    name, _, types = signature.rstrip(")").partition("(")
    kinds = list(filter(None, types.split(", ")))
    before = ""
    if _ATOMIC.match(signature):
        element = kinds[0].rstrip("*").strip()
        target = f"reinterpret_cast<{element}*>(out + 16)"
        before = f"*{target} = {_argument(name, 0, element)}; "
    arguments = ", ".join(
        target if "*" in kind else _argument(name, index, kind) for index, kind in enumerate(kinds)
    )
    return (
        f"__device__ __noinline__ void call_{number}(const Slot* given_, char* out) "
        f"{{ {before}{name}({arguments}), Kept{{out}}; }}\n"
    )


def _argument(name: str, index: int, kind: str) -> str:
    if name.endswith("_sync") and index == 0:
        return "0xffffffff"
    if name.startswith("__shfl") and index == 3:
        return "16"
    found = _KIND_OF.fullmatch(kind)
    number = list(_KINDS).index(next(filter(None, found.groups()), "") if found else "bits")
    if kind in _CHOICES:
        byte = f"given<unsigned char>(given_, {index}, {number})"
        return f"static_cast<{kind}>({byte} % {_CHOICES[kind]})"
    return f"given<{kind}>(given_, {index}, {number})"


# Of the C library, which differs from the chip's in the last digits.
_OF_THE_C_LIBRARY = re.compile(
    r"(?:a?(?:sin|cos|tan)h?(?:pi)?|atan2|exp(?:2|10|m1)?|log(?:2|10|1p)?|pow|cbrt|rsqrt|hypot"
    r"|r?norm(?:3d|4d)?|normcdf(?:inv)?|rcbrt|rhypot|erfc?(?:inv|x)?|[lt]gamma|[jy][01]|cyl_bessel_i[01]|div(?:ide)?)f?"
)
_FAST = re.compile(
    r"__(?:exp|exp10|log|log2|log10|pow|sin|cos|tan|tanh|fdivide)f|fdividef"
    r"|h2?(?:exp|exp2|exp10|log|log2|log10|sin|cos|tanh|tanh_approx|rsqrt|rcp|sqrt)"
)
APPROXIMATE = frozenset(
    name
    for name in (signature.partition("(")[0] for signature in signatures())
    if _OF_THE_C_LIBRARY.fullmatch(name) or _FAST.fullmatch(name)
)
"""Functions whose errors `test_mathematics` bounds: the chip's bits are not the emulator's."""
