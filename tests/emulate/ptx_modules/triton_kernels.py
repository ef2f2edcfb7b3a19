# mypy: ignore-errors
# ruff: noqa: N803, T201
"""Triton kernels, whose PTX is next to this file.

``python triton_kernels.py`` writes it again; it needs Triton (3.9.0 wrote these files) and no GPU.
"""

import triton
import triton.language as tl
from recorded import record
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    a = tl.load(x + row * columns + i, mask=i < columns, other=-float("inf"))
    e = tl.exp(a - tl.max(a, 0))
    tl.store(out + row * columns + i, e / tl.sum(e, 0), mask=i < columns)


@triton.jit
def gemm(a, b, c, depth, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n = tl.program_id(0) * M, tl.program_id(1) * N
    total = tl.zeros((M, N), tl.float32)
    for k in range(0, depth, K):
        total = tl.dot(a.load([m, k]), b.load([k, n]), total)
    c.store([m, n], total.to(tl.float16))


def write(kernel, types, constants, aligned=()):
    at = {name: (kernel.arg_names.index(name),) for name in (*constants, *aligned)}
    source = ASTSource(
        kernel,
        {name: types.get(name, "constexpr") for name in kernel.arg_names},
        {at[name]: value for name, value in constants.items()},
        {at[name]: [["tt.divisibility", 16]] for name in aligned},
    )
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    code = made.asm["ptx"].partition("\t.section\t.debug_loc")[0]
    code = code.partition("\t.section\t.debug_abbrev")[0]  # the rest names folders
    if "$L__info_string0" in code:  # the name of an inlined function, which ptxas looks up
        name = ",".join(map(str, made.name.encode()))
        code += f"\t.section\t.debug_str\n\t{{\n$L__info_string0:\n.b8 {name},0\n\t}}\n"
    record(kernel.__name__, code)
    print(kernel.__name__, made.metadata.shared, "bytes of shared memory")


if __name__ == "__main__":
    write(softmax, {"x": "*fp32", "out": "*fp32", "columns": "i32"}, {"BLOCK": 1024}, ("x", "out"))
    shapes = {"a": "128, 64", "b": "64, 128", "c": "128, 128"}
    types = {name: f"tensordesc<fp16[{shape}]>" for name, shape in shapes.items()}
    write(gemm, types | {"depth": "i32"}, {"M": 128, "N": 128, "K": 64})
