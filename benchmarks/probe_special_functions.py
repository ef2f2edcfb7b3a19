"""Whether ex2, lg2, rcp, rsqrt and tanh with .approx give the emulator's bits, for every input.

A GPU runs each instruction beside the emulator's function, compiled for the GPU, on all 2^32 floats
and 2^16 halves. Section "special_functions" of the results has the inputs that differ, and a digest
of results that the tests compare on the CPU.

    python benchmarks/probe_special_functions.py
"""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path
from typing import Any

import numpy as np

from tmaasync import Kernel

FOLDER = Path(__file__).parents[1] / "tmaasync" / "emulate" / "device" / "tmaasync_emulate"
# Instructions on floats, and the function of special_functions.hpp that stands for each.
OF_FLOATS = {
    f"{name}.approx{suffix}.f32": f"{name}_approx<{is_ftz}>(x)"
    for name in ("ex2", "lg2", "rcp", "rsqrt")
    for suffix, is_ftz in (("", "false"), (".ftz", "true"))
} | {"tanh.approx.f32": "tanh(x)"}
OF_HALVES = ("ex2.approx.f16", "ex2.approx.ftz.bf16", "tanh.approx.f16", "tanh.approx.bf16")
INSTRUCTIONS = (*OF_FLOATS, *OF_HALVES)

Array = Any  # of NumPy or CuPy

_EACH = """
extern "C" __global__ void each(const TYPE* x, TYPE* y) {
    const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    asm volatile("INSTRUCTION %0, %1;" : "=LETTER"(y[at]) : "LETTER"(x[at]));
}
"""

# A block takes the floats of a sign and exponent.
_COMPARED = """
extern "C" __global__ void compared(unsigned long long* different, unsigned* first) {
    for (unsigned j = threadIdx.x; j < 1u << 23; j += blockDim.x) {
        const unsigned bits = blockIdx.x << 23 | j;
        const float x = __uint_as_float(bits), wanted = tmaasync_emulate::special::FUNCTION;
        float got;
        asm volatile("INSTRUCTION %0, %1;" : "=f"(got) : "f"(x));
        if (__float_as_uint(got) == __float_as_uint(wanted)) continue;
        atomicAdd(different, 1);
        atomicMin(first, bits);
    }
}
"""


def results(xp: Any, instruction: str) -> Array:
    """Return the bits of results: of all halves, or of 2^16 floats of all kinds."""
    is_float = instruction in OF_FLOATS
    text = _EACH.replace("INSTRUCTION", instruction)
    text = text.replace("TYPE", "float" if is_float else "unsigned short")
    text = text.replace("LETTER", "f" if is_float else "h")
    x = xp.arange(1 << 16, dtype=xp.uint32)
    x = (x * xp.uint32((1 << 16) + 1)).view(xp.float32) if is_float else x.astype(xp.uint16)
    y = xp.zeros_like(x)
    Kernel(text, name="each")(256, 256, (x, y))
    return y.view(xp.uint32) if is_float else y


def digest(bits: Array) -> str:
    array = np.asarray(bits.get() if hasattr(bits, "get") else bits)
    return hashlib.sha256(array.tobytes()).hexdigest()


def differing(cupy: Any, instruction: str) -> tuple[int, str | None]:
    """Return how many of all floats differ, and the bits of the least."""
    headers = [FOLDER / f"special_function{end}.hpp" for end in ("_tables", "s", "_unit")]
    text = "\n".join(path.read_text() for path in headers)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    kernel = _COMPARED.replace("INSTRUCTION", instruction)
    kernel = kernel.replace("FUNCTION", OF_FLOATS[instruction])
    code = "\n".join(["#define __builtin_clzll __clzll", *lines, kernel])
    count, first = cupy.zeros(1, cupy.uint64), cupy.full(1, 2**32 - 1, cupy.uint32)
    Kernel(code, name="compared", options=["-default-device"])(512, 512, (count, first))
    return int(count[0]), hex(int(first[0])) if count[0] else None


def main() -> None:
    cupy, race = (importlib.import_module(name) for name in ("cupy", "race"))
    with race.recorded("special_functions") as rows:
        for instruction in INSTRUCTIONS:
            row: dict[str, Any] = {"case": instruction}
            if instruction in OF_FLOATS:
                count, first = differing(cupy, instruction)
                row |= {"inputs": 2**32, "differ": count}
                print(instruction, count, first, flush=True)
            rows.append(row | {"results_sha256": digest(results(cupy, instruction))})


if __name__ == "__main__":
    main()
