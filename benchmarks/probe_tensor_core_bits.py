"""Whether wgmma and mma.sync give the bits of tensor_core_model.py, form by form.

Runs each form on random and adversarial tiles, and counts the accumulators that differ from the
model's by family of operands. On a GPU it writes section "tensor_core_bits" of the results. With
--keep FOLDER the first operands and results of each form are written there, one npz a form.

    python benchmarks/probe_tensor_core_bits.py --tiles 6600   # on a GPU, 10^7 cases of each form
    python benchmarks/probe_tensor_core_bits.py --tiles 2 --emulate
"""

from __future__ import annotations

import argparse
import importlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from result_files import Row
from tensor_core_model import BF16, E4M3, E5M2, F16, F32, TF32, Element, Model, model_of, multiply
from tensor_core_operands import FAMILIES, drawn

from tmaasync import Kernel

Array = Any  # of NumPy or CuPy

_THREADS = 128


@dataclass(frozen=True)
class Form:
    """One instruction: its name, the types of A, B and the accumulators, and K."""

    instruction: str  # "wgmma ss", "wgmma rs" or "mma.sync"
    a: Element
    b: Element
    out: Element
    k: int

    def __str__(self) -> str:
        return f"{self.instruction} k{self.k} {self.out.name} {self.a.name} {self.b.name}"

    @property
    def entry(self) -> str:
        return str(self).replace(" ", "_").replace(".", "_")

    @property
    def types(self) -> tuple[Element, Element, Element]:
        return self.a, self.b, self.out

    @property
    def model(self) -> Model:
        return model_of(self.instruction.split()[0], self.a)

    @property
    def is_wgmma(self) -> bool:
        return self.instruction != "mma.sync"

    @property
    def rows(self) -> int:
        return 64 if self.is_wgmma else 16

    @property
    def row_words(self) -> int:
        return self.k * self.a.bytes // 4

    @property
    def registers(self) -> int:
        """Of a thread for its four accumulators."""
        return 4 if self.out is F32 else 2


def _forms() -> tuple[Form, ...]:
    wide = [(F16, F16, F32, 16), (BF16, BF16, F32, 16), (F16, F16, F16, 16), (TF32, TF32, F32, 8)]
    float8 = [(E4M3, E4M3, F32, 32), (E5M2, E5M2, F32, 32), (E4M3, E5M2, F16, 32)]
    of_warp = [*wide, *float8, (E5M2, E4M3, F32, 32)]
    return (
        *(Form(f"wgmma {place}", *one) for one in wide + float8 for place in ("ss", "rs")),
        *(Form("mma.sync", *one) for one in of_warp),
        *(Form("mma.sync", a, b, out, k // 2) for a, b, out, k in of_warp),
    )


FORMS = _forms()


# --- kernels -------------------------------------------------------------------------------------


def _list(first: int, count: int) -> str:
    return "{" + ", ".join(f"%{first + i}" for i in range(count)) + "}"


def _operands(letter: str, name: str, count: int) -> str:
    return ", ".join(f'"{letter}"({name}[{i}])' for i in range(count))


def _mma_sync(form: Form) -> str:
    n, a_words, b_words = form.registers, form.row_words // 2, form.row_words // 4
    names = (form.out.name, form.a.name, form.b.name, form.out.name)
    opcode = f"mma.sync.aligned.m16n8k{form.k}.row.col.{'.'.join(names)}"
    letter = "f" if form.out is F32 else "r"
    sums = _list(0, n)
    a, b = _list(n, a_words), _list(n + a_words, b_words)
    return f"""
    unsigned x[{a_words}], y[{b_words}];
    for (int i = 0; i < {a_words}; ++i) {{
        x[i] = a[(row + i % 2 * 8) * {form.row_words} + i / 2 * 4 + lane % 4];
    }}
    for (int i = 0; i < {b_words}; ++i) y[i] = b[lane / 4 * {form.row_words} + i * 4 + lane % 4];
    asm volatile("{opcode} {sums}, {a}, {b}, {sums};"
        : {_operands("+" + letter, "s", n)}
        : {_operands("r", "x", a_words)}, {_operands("r", "y", b_words)});
"""


def _wgmma(form: Form) -> str:
    """Neither operand is swizzled: eight rows of 16 bytes lie together."""
    n = form.registers
    names = ".".join((form.out.name, form.a.name, form.b.name))
    transposes = "ss" in form.instruction and form.a.bytes == 2
    modifiers = "p, 1, 1"
    if form.a.bytes == 2:
        modifiers += ", 0, 0" if transposes else ", 0"
    if "ss" in form.instruction:
        a, b, inputs = f"%{n}", f"%{n + 1}", '"l"(descriptor(left)), "l"(descriptor(right))'
    else:
        a, b = _list(n, 4), f"%{n + 4}"
        inputs = f'{_operands("r", "x", 4)}, "l"(descriptor(right))'
    letter = "f" if form.out is F32 else "r"
    pins = _operands("+" + letter, "s", n)
    return f"""
    __syncthreads();
    for (int i = threadIdx.x; i < 512; i += {_THREADS}) left[placed(i)] = a[i];
    if (threadIdx.x < 64) right[placed(threadIdx.x)] = b[threadIdx.x];
    unsigned x[4];
    for (int i = 0; i < 4; ++i) x[i] = a[(row + i % 2 * 8) * 8 + i / 2 * 4 + lane % 4];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{{ .reg .pred p; setp.eq.b32 p, 0, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n8k{form.k}.{names} "
        "{_list(0, n)}, {a}, {b}, {modifiers}; }}"
        : {pins} : {inputs} : "memory");
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    asm volatile("" : {pins} :: "memory");
"""


_COMMON = """
__device__ unsigned long long descriptor(const unsigned* tile) {
    return __cvta_generic_to_shared(tile) >> 4 | 8ull << 16 | 16ull << 32;
}
__device__ int placed(int word) {
    const int row = word / 8, k = word % 8;
    return row / 8 * 64 + k / 4 * 32 + row % 8 * 4 + k % 4;
}
"""


def source(form: Form) -> str:
    """A kernel that executes the instruction once on each tile; words are of 32 bits."""
    kind = "float" if form.out is F32 else "unsigned"
    at = "c[i / 2 * 8 * 8 + i % 2]" if form.out is F32 else "c[i * 8 * 4]"
    step = "row * 8 + lane % 4 * 2" if form.out is F32 else "row * 4 + lane % 4"
    out_words = form.rows * 8 * form.out.bytes // 4
    shared = "__shared__ __align__(128) unsigned left[512], right[64];" if form.is_wgmma else ""
    first = "blockIdx.x" if form.is_wgmma else f"blockIdx.x * {_THREADS // 32} + threadIdx.x / 32"
    count = "gridDim.x" if form.is_wgmma else f"gridDim.x * {_THREADS // 32}"
    row = "threadIdx.x / 32 * 16 + lane / 4" if form.is_wgmma else "lane / 4"
    return f"""{_COMMON}
extern "C" __global__ void {form.entry}(
    const unsigned* all_a, const unsigned* all_b, const {kind}* all_c, {kind}* all_d, int tiles
) {{
    {shared}
    const int lane = threadIdx.x % 32, row = {row};
    for (int tile = {first}; tile < tiles; tile += {count}) {{
    const unsigned* a = all_a + tile * {form.rows * form.row_words};
    const unsigned* b = all_b + tile * {8 * form.row_words};
    const {kind}* c = all_c + tile * {out_words} + {step};
    {kind} s[{form.registers}];
    for (int i = 0; i < {form.registers}; ++i) s[i] = {at};
    {_wgmma(form) if form.is_wgmma else _mma_sync(form)}
    {kind}* const d = all_d + tile * {out_words} + {step};
    for (int i = 0; i < {form.registers}; ++i) {at.replace("c[", "d[")} = s[i];
    }}
}}
"""


def _words(bits: Array, element: Element) -> Array:
    """Bits in words, packed as the type is in memory."""
    kinds = {1: np.uint8, 2: np.uint16, 4: np.uint32}
    return np.ascontiguousarray(bits.astype(kinds[element.bytes])).view(np.uint32)


def run(xp: Any, form: Form, a: Array, b: Array, c: Array) -> Array:
    """Return D's bits; a [tiles, rows, K], b [tiles, 8, K] and c [tiles, rows, 8] are bits."""
    tiles = a.shape[0]
    kind = np.float32 if form.out is F32 else np.uint32
    arrays = [xp.asarray(_words(*pair)) for pair in ((a, form.a), (b, form.b))]
    addends = xp.asarray(_words(c, form.out).view(kind))
    d = xp.zeros_like(addends)
    blocks = min(tiles, 1024) if xp is not np else 2
    Kernel(source(form), form.entry)(blocks, _THREADS, (*arrays, addends, d, np.int32(tiles)))
    host = d if xp is np else d.get()
    return host.view(np.uint32 if form.out is F32 else np.uint16).astype(np.uint32).reshape(c.shape)


# --- comparison ----------------------------------------------------------------------------------


def mismatches(xp: Any, form: Form, operands: tuple[Array, ...], bits: Array) -> dict[str, int]:
    """Accumulators that differ from the model's, by family; families without any are left out."""
    a, b, c = (xp.asarray(part) for part in operands)
    differs = multiply(xp, a, b, c, form.types, form.model) != xp.asarray(bits).astype(xp.int64)
    by_family = differs.reshape(len(FAMILIES), -1).sum(axis=1).tolist()
    found = zip(FAMILIES, by_family, strict=True)
    return {family.__name__: count for family, count in found if count}


def keep(folder: Path, form: Form, operands: tuple[Array, ...], bits: Array) -> None:
    """Write the first tiles of each family, in the container's type."""
    containers = {1: np.uint8, 2: np.uint16, 4: np.uint32}
    saved = {}
    for name, part, element in zip("abcd", (*operands, bits), (*form.types, form.out), strict=True):
        by_family = part.reshape(len(FAMILIES), -1, *part.shape[1:])
        kept = by_family[:, : max(1, 800 // form.rows)]
        saved[name] = kept.astype(containers[element.bytes])
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / f"{form.entry}.npz", **saved)


def operands_of(form: Form, tiles: int, seed: int) -> tuple[Array, Array, Array]:
    """A, B and C: in each family `tiles` of 16 rows, or as many rows in larger tiles."""
    return drawn(seed, form.types, (form.rows, 8, form.k), max(1, tiles * 16 // form.rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiles", type=int, default=1000, help="of 16 rows in each family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--only", default="", help="forms whose name has this")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    xp: Any = importlib.import_module("numpy" if options.emulate else "cupy")
    rows: list[Row] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        forms: list[tuple[Form, Future[Any]]] = [
            (form, pool.submit(operands_of, form, options.tiles, options.seed + number))
            for number, form in enumerate(FORMS)
            if options.only in str(form)
        ]
        while forms:
            form, drawing = forms.pop(0)
            operands = drawing.result()
            bits = run(xp, form, *operands)
            if options.keep:
                keep(options.keep, form, operands, bits)
            wrong = mismatches(xp, form, operands, bits)
            rows.append(
                {
                    "case": str(form),
                    "accumulators": bits.size,
                    "mismatches": wrong,
                    "model": asdict(form.model),
                    "seed": options.seed,
                }
            )
            print(f"{form}: {bits.size} accumulators, wrong: {wrong or 0}", flush=True)
    if not options.emulate:
        print(importlib.import_module("race").record("tensor_core_bits", rows))


if __name__ == "__main__":
    main()
