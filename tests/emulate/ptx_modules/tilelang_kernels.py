# mypy: ignore-errors
# ruff: noqa: N812
"""Functions of tilelang for test_tilelang.py."""

import tilelang
import tilelang.language as T


def gemm(m, n, k):
    @T.prim_func
    def gemm(
        a: T.Tensor((m, k), "float16"),
        b: T.Tensor((k, n), "float16"),
        c: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(T.ceildiv(n, 64), T.ceildiv(m, 64), threads=128) as (x, y):
            s_a = T.alloc_shared((64, 32), "float16")
            s_b = T.alloc_shared((32, 64), "float16")
            sums = T.alloc_fragment((64, 64), "float32")
            T.clear(sums)
            for step in T.Pipelined(T.ceildiv(k, 32), num_stages=2):
                T.copy(a[y * 64, step * 32], s_a)
                T.copy(b[step * 32, x * 64], s_b)
                T.gemm(s_a, s_b, sums)
            T.copy(sums, c[y * 64, x * 64])

    return gemm


def add(n):
    @T.prim_func
    def add(
        a: T.Tensor((n,), "float32"), b: T.Tensor((n,), "float32"), c: T.Tensor((n,), "float32")
    ):
        with T.Kernel(T.ceildiv(n, 256), threads=128) as x:
            for i in T.Parallel(256):
                c[x * 256 + i] = a[x * 256 + i] + b[x * 256 + i]

    return add


def add_of_any_size():
    return add(T.dynamic("n"))


def softmax(m, n):
    @T.prim_func
    def softmax(x: T.Tensor((m, n), "float32"), out: T.Tensor((m, n), "float32")):
        with T.Kernel(m, threads=128) as row:
            own = T.alloc_fragment((1, n), "float32")
            top = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.copy(x[row, 0], own)
            T.reduce_max(own, top, dim=1)
            for i, j in T.Parallel(1, n):
                own[i, j] = T.exp(own[i, j] - top[i])
            T.reduce_sum(own, total, dim=1)
            for i, j in T.Parallel(1, n):
                own[i, j] = own[i, j] / total[i]
            T.copy(own, out[row, 0])

    return softmax


def overwrite(n):
    @T.prim_func
    def overwrite(a: T.Tensor((n,), "float32"), c: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 256), threads=128) as x:
            for i in T.Parallel(256):
                c[x] = a[x * 256 + i]  # c[x * 256 + i]

    return overwrite


compiled_gemm = tilelang.jit(out_idx=[-1])(gemm)
compiled_overwrite = tilelang.jit(overwrite)


@tilelang.jit
def eager_add(a, b):
    n = T.const("n")
    a: T.Tensor[[n], T.float32]
    b: T.Tensor[[n], T.float32]
    c = T.empty([n], "float32")
    with T.Kernel(T.ceildiv(n, 256), threads=128) as x:
        for i in T.Parallel(256):
            c[x * 256 + i] = a[x * 256 + i] + b[x * 256 + i]
    return c
