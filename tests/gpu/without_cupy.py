"""Run kernels and operations on torch tensors in a process where CuPy cannot be imported.

Each part is a function that checks its own results. ``python tests/gpu/without_cupy.py`` runs all
of them, or those that are named, and prints a line of JSON for each: its name, and the error or
null. In an environment made by ``pip install '.[torch]'`` it shows that this is enough.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

if __name__ == "__main__":  # pytest imports this file when it looks for doctests
    sys.modules["cupy"] = None  # type: ignore[assignment]

from tmaasync import HangError, Kernel, Swizzle, create_tma_tile, ops, trace

torch: Any = importlib.import_module("torch")

CORNER = """
#include <tmaasync/tmaasync.cuh>
extern "C" __global__ void corner(const __grid_constant__ Tile image, float* out) {
    __shared__ Tile::Shared tile;
    __shared__ tmaasync::SharedMemBarrier full;
    full.init(1), tmaasync::fence_barrier_init();
    full.expect_bytes(Tile::kBytes);
    image.async_copy(tile, full, {4, 3});
    full.wait(0);
    for (int i = 0; i < 32; ++i) out[i] = tile.data()[i];
}
"""
SCALE = """
extern "C" __global__ void scale(float* x, int n, float by) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}
"""
CLUSTER = """
#include <cooperative_groups.h>
extern "C" __global__ void ranks(int* out) {
    extern __shared__ int room[];
    const auto cluster = cooperative_groups::this_cluster();
    room[50000] = int(cluster.block_rank());
    cluster.sync();
    out[blockIdx.x] = *cluster.map_shared_rank(room + 50000, (room[50000] + 1) % 16);
    cluster.sync();
}
"""


def random(*shape: int, dtype: Any = torch.float16) -> Any:
    return torch.randn(shape, device="cuda", generator=GENERATOR).to(dtype)


def close(got: Any, wanted: Any, tolerance: float) -> None:
    assert got.is_cuda
    error = (got.double() - wanted).norm() / wanted.norm()
    assert error < tolerance, f"relative error {error}"


def attended(q: Any, k: Any, v: Any) -> Any:
    """Causal attention in float64; [batch, positions, heads, head_dim]."""
    q, k, v = (one.double().transpose(1, 2) for one in (q, k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    hidden = torch.ones(scores.shape[-2:], device="cuda", dtype=torch.bool).triu(1)
    return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(1, 2)


def corner_image() -> tuple[Any, Any, Any]:
    image = torch.arange(40, dtype=torch.float32, device="cuda").reshape(5, 8)
    wanted = torch.zeros(4, 8, device="cuda")
    wanted[:2, :4] = image[3:, 4:]
    return image, torch.full((4, 8), torch.nan, device="cuda"), wanted


# --- the parts --------------------------------------------------------------------------------


def attention() -> None:
    q = torch.zeros((1, 3, 1, 8), dtype=torch.float16, device="cuda")
    v = torch.arange(24, dtype=torch.float16, device="cuda").reshape(1, 3, 1, 8)
    assert ops.attention(q, q, v, causal=True)[0, :, 0, 0].tolist() == [0.0, 4.0, 8.0]

    q, k, v = (random(2, 777, 4, 64) for _ in range(3))
    out = ops.attention(q, k, v, causal=True)
    assert isinstance(out, torch.Tensor)
    close(out, attended(q, k, v), 2e-3)


def matmul() -> None:
    for m, n, k in ((333, 512, 264), (64, 4096, 4096), (130, 99, 72)):
        a, b = random(m, k), random(k, n)
        close(ops.matmul(a, b), a.double() @ b.double(), 2e-3)


def split_matmul() -> None:
    a, b = random(128, 16384), random(16384, 128)
    close(ops.matmul(a, b), a.double() @ b.double(), 2e-3)


def varlen_attention() -> None:
    lengths = [100, 0, 37, 263]
    q, k, v = (random(400, 2, 64) for _ in range(3))
    cumulative = torch.tensor([0, 100, 100, 137, 400], device="cuda")
    for given in (cumulative.int(), cumulative, cumulative.tolist()):
        out = ops.varlen_attention(q, k, v, given, causal=True, max_seqlen_q=263, max_seqlen_k=263)
        parts = (x.split(lengths) for x in (out, q, k, v))
        for got, *inputs in zip(*parts, strict=True):
            if len(got):
                close(got, attended(*(x[None] for x in inputs))[0], 2e-3)


def grouped_matmul() -> None:
    a, b = random(300, 128), random(3, 128, 256)
    ends = [100, 100, 300]
    wanted = torch.cat([a[:100].double() @ b[0].double(), a[100:].double() @ b[2].double()])
    for offsets in (ends, torch.tensor(ends, device="cuda"), torch.tensor(ends).int().cuda()):
        close(ops.grouped_matmul(a, b, offsets), wanted, 2e-3)


def ragged() -> None:
    padded, lengths = random(3, 8, 64), [3, 0, 6]
    wanted = torch.cat([row[:count] for row, count in zip(padded, lengths, strict=True)])
    for given in (lengths, torch.tensor(lengths, device="cuda")):
        packed = torch.full((9, 64), torch.nan, dtype=torch.float16, device="cuda")
        ops.ragged_store(padded, given, packed)
        assert (packed == wanted).all()


def user_kernel() -> None:
    image, out, wanted = corner_image()
    tile = create_tma_tile(image, (4, 8))
    kernel = Kernel(CORNER, "corner", types={"Tile": tile})
    kernel(1, 1, (tile, out))
    assert (out == wanted).all()
    for _ in range(3):  # calls like the first one, on other tensors and another stream
        with torch.cuda.stream(torch.cuda.Stream()):
            image, out, wanted = corner_image()
            image, wanted = image * 2, wanted * 2
            kernel(1, 1, (create_tma_tile(image, (4, 8)), out))
            assert (out == wanted).all()


def prepared_launch() -> None:
    x = torch.ones(1000, device="cuda")
    launch = Kernel(SCALE, "scale").prepare(8, 128, (x, 1000, 2.0))
    for _ in range(3):
        launch()
    assert (x == 8).all()


def large_launch() -> None:
    out = torch.full((32,), -1, dtype=torch.int32, device="cuda")
    Kernel(CLUSTER, "ranks")(32, 1, (out,), cluster=16, shared_mem=220 << 10)
    ranks = [(rank + 1) % 16 for rank in range(16)]
    assert out.tolist() == ranks + ranks


def captured_graph() -> None:
    x, a, b = torch.ones(1000, device="cuda"), random(256, 128), random(128, 512)
    kernels = [Kernel(SCALE, "scale")]

    def work() -> Any:
        kernels[0](8, 128, (x, 1000, 2.0))
        return ops.matmul(a, b)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    kernels.clear()  # the graph still has the function of its module
    gc.collect()
    x.fill_(3)
    a.copy_(random(256, 128))
    graph.replay()
    graph.replay()
    assert (x == 12).all()
    close(out, a.double() @ b.double(), 2e-3)


def traced_launch() -> None:
    image, out, wanted = corner_image()
    tile = create_tma_tile(image, (4, 8))
    kernel = Kernel(CORNER, "corner", types={"Tile": tile})
    with trace.record() as traces:
        kernel(1, 1, (tile, out))
    assert (out == wanted).all()
    (launch,) = traces.launches
    assert launch.kernel_name == "corner"
    assert list(launch)


def hang_report() -> None:
    image, out, wanted = corner_image()
    tile = create_tma_tile(image, (4, 8))
    without_load = CORNER.replace("    image.async_copy(tile, full, {4, 3});\n", "")
    assert without_load != CORNER
    for source, hangs in ((without_load, True), (CORNER, False), (without_load, True)):
        kernel = Kernel(source, "corner", types={"Tile": tile}, debug=True, budget_seconds=0.2)
        error = hang_of(lambda kernel=kernel: kernel(1, 1, (tile, out)))  # type: ignore[misc]
        assert (error is not None) == hangs, error
        if error is None:
            assert (out == wanted).all()
        else:
            assert error.kernel == "corner"
            assert error.waits[0].missing_bytes == 128


def hang_of(call: Callable[[], None]) -> HangError | None:
    try:
        call()
    except HangError as error:
        return error
    return None


def thread_without_context() -> None:
    x = torch.ones(1000, device="cuda")
    kernel = Kernel(SCALE, "scale")
    kernel(8, 128, (x, 1000, 2.0))
    errors: list[str] = []

    def work() -> None:
        try:
            kernel(8, 128, (x, 1000, 2.0))
            Kernel(SCALE.replace("*=", "+="), "scale")(8, 128, (x, 1000, 2.0))
        except Exception:
            errors.append(traceback.format_exc())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors, errors
    assert (x == 6).all()


def swizzled_tile_without_arrays() -> None:
    """A kernel on no array at all runs on the current device."""
    assert create_tma_tile(random(64, 64), (64, 64), swizzle=Swizzle.B128).device == 0
    Kernel('extern "C" __global__ void nothing() {}\n', "nothing")(1, 32, ())
    torch.cuda.synchronize()


PARTS: dict[str, Callable[[], None]] = {
    part.__name__: part
    for part in (
        swizzled_tile_without_arrays,
        user_kernel,
        prepared_launch,
        large_launch,
        attention,
        matmul,
        split_matmul,
        varlen_attention,
        grouped_matmul,
        ragged,
        captured_graph,
        traced_launch,
        thread_without_context,
        hang_report,
    )
}


def main(names: list[str]) -> None:
    failed = False
    for name in names:
        try:
            PARTS[name]()
            torch.cuda.synchronize()
            error = None
        except Exception:
            error, failed = traceback.format_exc(), True
        sys.stdout.write(json.dumps({"name": name, "error": error}) + "\n")
        sys.stdout.flush()
    sys.exit(failed)


if __name__ == "__main__":
    GENERATOR = torch.Generator("cuda").manual_seed(0)
    main(sys.argv[1:] or list(PARTS))
