"""Plans found again on the chip: in any thread, and whatever else the arrays' framework does."""

from __future__ import annotations

import functools
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import ArgumentError, _arrays, _driver, ops
from tmaasync._elements import element
from tmaasync.ops import _matmul
from tmaasync.ops._allocation import allocator
from tmaasync.ops._call_cache import CallCache

cupy = pytest.importorskip("cupy")
SIDE = 256


def random(seed: int) -> Any:
    values = np.random.default_rng(seed).standard_normal((SIDE, SIDE)).astype(np.float32)
    return values.astype(ml_dtypes.bfloat16)


def is_product(c: Any, a: Any, b: Any) -> bool:
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    error = np.linalg.norm(cupy.asnumpy(c).astype(np.float64) - wanted)
    return bool(error < 4e-3 * np.linalg.norm(wanted))


def test_threads_that_share_a_plan_get_their_own_results() -> None:
    matrices = [random(seed) for seed in range(9)]
    b = cupy.asarray(matrices[8])
    ops.matmul(b, b, out=cupy.empty_like(b))
    wrong: list[int] = []
    done: list[int] = []

    def multiply(index: int) -> None:
        # A thread begins without a context; the plan brings it.
        context_at_first = _driver.current_device()
        stream = cupy.cuda.Stream(non_blocking=True)
        a = cupy.asarray(matrices[index])
        cupy.cuda.Device().synchronize()
        for _ in range(50):
            out = cupy.full((SIDE, SIDE), np.nan, ml_dtypes.bfloat16)
            cupy.cuda.Device().synchronize()
            ops.matmul(a, b, out=out, stream=stream)
            stream.synchronize()
            if not is_product(out, matrices[index], matrices[8]):
                wrong.append(index)
        if context_at_first is None:
            done.append(index)

    threads = [threading.Thread(target=multiply, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong
    assert sorted(done) == list(range(8))


def test_a_thread_without_a_context_may_launch() -> None:
    a, b, out = (cupy.asarray(random(seed)) for seed in range(3))
    ops.matmul(a, b, out=out)
    handle = cupy.cuda.get_current_stream().ptr
    seen: list[tuple[int | None, bool]] = []

    def launch() -> None:
        before = _driver.current_device()
        seen.append((before, _matmul._CALLS.run((a, b, out), (None, False), handle) is not None))

    for _ in range(3):  # a place is new, gets a launch of its own, and has it
        out.fill(np.nan)
        cupy.cuda.Device().synchronize()
        thread = threading.Thread(target=launch)
        thread.start()
        thread.join()
        cupy.cuda.Device().synchronize()
        assert is_product(out, cupy.asnumpy(a), cupy.asnumpy(b))

    assert seen == [(None, True)] * 3


def test_torch_distinguishes_layouts_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    cache = CallCache()
    monkeypatch.setattr(_matmul, "_CALLS", cache)
    a, b = (torch.randn(SIDE, SIDE, device="cuda").half() for _ in range(2))
    out = torch.empty(SIDE, SIDE, device="cuda", dtype=torch.float16)
    wanted = a.double() @ b.double()

    ops.matmul(a, b, out=out)

    assert cache._likely, "this torch has no guards: the host pays three times as much"
    ((check, *_),) = cache._likely[None, False]
    assert check(a, b, out)
    others = {
        "shape": b[:128],
        "strides": b.t(),
        "type": b.bfloat16(),
        "negated": torch._neg_view(b),
        "host": b.cpu(),
        "padded": torch.empty(SIDE, 512, device="cuda").half()[:, :SIDE],
    }
    for what, other in others.items():
        assert not check(a, other, out), what
        assert cache.run((a, other, out), (None, False), None) is None, what
    for mode in (torch.inference_mode(), torch.no_grad(), torch.autocast("cuda")):
        with mode:
            out.zero_()
            ops.matmul(a, b, out=out)
        assert ((out.double() - wanted).norm() / wanted.norm()).item() < 1e-3
    weights = torch.nn.Parameter(b)
    for _ in range(2):
        out.zero_()
        with torch.no_grad():
            ops.matmul(a, weights, out=out)
        assert ((out.double() - wanted).norm() / wanted.norm()).item() < 1e-3
        with pytest.raises(ArgumentError, match="requires grad"):
            ops.matmul(a, weights, out=out)


@pytest.mark.parametrize("framework", ["cupy", "torch"])
@pytest.mark.parametrize("is_new", [False, True])
def test_a_matmul_with_an_epilogue_finds_its_launch_for_any_factors(
    framework: str, is_new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    tensors = [torch.randn(SIDE, SIDE, device="cuda").half() for _ in range(3)]
    tensors += [torch.randn(SIDE, device="cuda").half(), torch.full((1,), 0.5, device="cuda")]
    a, b, c, bias, scale = tensors
    given = tensors if framework == "torch" else [cupy.from_dlpack(one) for one in tensors]

    def multiply(alpha: float, beta: float, activation: str | None) -> None:
        out = None
        if not is_new:
            out = cupy.full((SIDE, SIDE), cupy.nan, cupy.float16)
            out = torch.from_dlpack(out) if framework == "torch" else out
        operands = dict(zip(("a", "b", "c", "bias", "scale_b"), given, strict=True))
        got = ops.matmul(**operands, alpha=alpha, beta=beta, activation=activation, out=out)
        assert is_new or got is out
        torch.cuda.synchronize()
        wanted = alpha * scale.double() * (a.double() @ b.double()) + beta * c.double()
        wanted += bias.double()
        wanted = wanted.relu() if activation else wanted
        tensor = torch.from_dlpack(got).double()
        assert ((tensor - wanted).norm() / wanted.norm()).item() < 1e-3

    ops.matmul(*given[:2])
    for activation in (None, "relu"):
        multiply(1.0, 1.0, activation)
        multiply(2.0, 1.0, activation)
    monkeypatch.setattr(_matmul, "_multiply", None)  # which makes an operation

    for _ in range(3):
        for activation in (None, "relu"):
            for alpha, beta in ((2.0, 1.0), (-0.25, 3.0), (0.7, -1.0)):
                multiply(alpha, beta, activation)
                ops.matmul(*given[:2])


def test_an_addend_that_is_the_output_is_found_again() -> None:
    torch = pytest.importorskip("torch")
    a, b = (torch.randn(SIDE, SIDE, device="cuda").half() for _ in range(2))
    sums = torch.zeros(SIDE, SIDE, device="cuda")
    for turn in range(5):
        ops.matmul(a, b, c=sums, out=sums)
        wanted = (turn + 1) * (a.double() @ b.double())
        assert ((sums.double() - wanted).norm() / wanted.norm()).item() < 1e-4

    whole = torch.zeros(2 * SIDE, SIDE, device="cuda")
    with pytest.raises(ArgumentError, match="overlap"):
        ops.matmul(a, b, c=whole[1 : SIDE + 1], out=whole[:SIDE])


def test_launches_found_again_go_to_the_stream_of_the_moment_and_into_its_graph() -> None:
    torch = pytest.importorskip("torch")
    q, k, v = (torch.randn(1, 128, 2, 64, device="cuda").half() for _ in range(3))
    out = torch.empty_like(q)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(array.double().transpose(1, 2) for array in (q, k, v))
    ).transpose(1, 2)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(3):
        for stream in streams:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(2_000_000)
                out.fill_(torch.nan)  # a launch on another stream would be overwritten
                assert ops.attention(q, k, v, out=out) is out
                stream.synchronize()
            assert ((out.double() - wanted).norm() / wanted.norm()).item() < 6e-3
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            ops.attention(q, k, v, out=out)
    out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()

    assert ((out.double() - wanted).norm() / wanted.norm()).item() < 6e-3
    with pytest.raises(ArgumentError, match="out overlaps k"):
        ops.attention(q, k, v, out=k)


def test_torch_makes_outputs_as_its_own_compiler_does() -> None:
    torch = pytest.importorskip("torch")
    like = _arrays.view(torch.zeros(4, 16, device="cuda").half()[:, :8])
    make = allocator(like, (2, 3, 1, 8), element(ml_dtypes.bfloat16))

    assert not isinstance(make, functools.partial), "torch.empty: a new output costs 1 us more"
    wanted = torch.empty(2, 3, 1, 8, device="cuda", dtype=torch.bfloat16)
    for mode in (torch.inference_mode(), torch.no_grad(), torch.enable_grad()):
        with mode:
            made, other = make(), make()
            assert made.is_inference() == torch.empty_like(wanted).is_inference()
        assert made.data_ptr() != other.data_ptr()
        assert (made.shape, made.stride()) == (wanted.shape, wanted.stride())
        assert (made.dtype, made.device) == (wanted.dtype, wanted.device)
        assert not made.requires_grad


@pytest.mark.parametrize("framework", ["torch", "cupy"])
@pytest.mark.parametrize("columns", [SIDE, 100])
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_matmuls_without_out_have_an_output_each(
    framework: str, columns: int, dtype: str | None
) -> None:
    """Rows of 100 columns are padded; no other array has the memory after them."""
    xp = pytest.importorskip(framework)
    values = [np.random.default_rng(seed).standard_normal((SIDE, SIDE)) for seed in range(2)]
    make = xp.from_numpy if framework == "torch" else xp.asarray
    a, whole = (make(one.astype(np.float16)) for one in values)
    a, b = (a.cuda(), whole.cuda()) if framework == "torch" else (a, whole)
    b = b[:, :columns]
    wanted = a.astype(np.float64) @ b.astype(np.float64) if framework == "cupy" else None
    wanted = a.double() @ b.double() if wanted is None else wanted

    outs = [ops.matmul(a, b, dtype=dtype) for _ in range(5)]

    places = {out.data_ptr() if framework == "torch" else out.data.ptr for out in outs}
    assert len(places) == 5
    for out in outs:
        assert out.shape == (SIDE, columns)
        assert str(out.dtype).removeprefix("torch.") == (dtype or "float16")
        away = out.double() - wanted if framework == "torch" else out.astype(np.float64) - wanted
        assert float((away**2).sum() ** 0.5) < 1e-3 * float((wanted**2).sum() ** 0.5)
