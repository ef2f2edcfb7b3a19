"""Expressions of CUDA C++, each for all elements of some arrays, on either back end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tmaasync import Kernel

__all__ = ["evaluated"]

_TYPES = {
    "uint16": "unsigned short",
    "int32": "int",
    "uint32": "unsigned",
    "int64": "long long",
    "uint64": "unsigned long long",
    "float32": "float",
    "float64": "double",
}


def evaluated(
    backend: Any, codes: Sequence[str], arrays: Mapping[str, Any], result: Any, *, prelude: str = ""
) -> Any:
    """Return one row of results for each expression.

    Args:
        backend: Runs the kernel.
        codes: The expressions; they name the arrays' elements as the arrays are named.
        arrays: All of one length, of at most 1024.
        result: The type to which the expressions are converted.
        prelude: Comes before the kernel.
    """
    count = len(next(iter(arrays.values())))
    type_of = {name: _TYPES[array.dtype.name] for name, array in arrays.items()}
    parameters = "".join(f"const {kind}* in_{name}, " for name, kind in type_of.items())
    values = "".join(f"    const {kind} {name} = in_{name}[i];\n" for name, kind in type_of.items())
    stores = "".join(
        f"    out[{row * count} + i] = static_cast<Result>({code});\n"
        for row, code in enumerate(codes)
    )
    text = (
        "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <cuda_fp8.h>\n"
        f"using Result = {_TYPES[np.dtype(result).name]};\n{prelude}\n"
        f'extern "C" __global__ void all({parameters}Result* out) {{\n'
        f"    const unsigned i = threadIdx.x;\n{values}{stores}}}\n"
    )
    out = backend.array(np.full((len(codes), count), 77, result))
    Kernel(text, "all")(1, count, (*map(backend.array, arrays.values()), out))
    return backend.host(out)
