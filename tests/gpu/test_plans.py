"""Plans found again on the chip: in any thread, and whatever else the arrays' framework does."""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import _driver, ops
from tmaasync.ops._plans import PlanCache
from tmaasync.ops.gemm import operation

cupy = pytest.importorskip("cupy")
SIDE = 256


def random(seed: int) -> Any:
    values = np.random.default_rng(seed).standard_normal((SIDE, SIDE)).astype(np.float32)
    return values.astype(ml_dtypes.bfloat16)


def is_product(c: Any, a: Any, b: Any) -> bool:
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    error = np.linalg.norm(cupy.asnumpy(c).astype(np.float64) - wanted)
    return bool(error < 4e-3 * np.linalg.norm(wanted))


def test_threads_that_share_a_plan_get_their_own_products() -> None:
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
    out.fill(np.nan)
    cupy.cuda.Device().synchronize()
    handle = cupy.cuda.get_current_stream().ptr
    arrays = (a, b, out)
    found = operation._PLANS.find(arrays, None, handle)
    assert found is not None
    plan, addresses, stream = found
    seen: list[int | None] = []

    def launch() -> None:
        seen.append(_driver.current_device())
        plan.start(addresses, stream)

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    cupy.cuda.Device().synchronize()

    assert seen == [None]
    assert is_product(out, cupy.asnumpy(a), cupy.asnumpy(b))


def test_torch_tells_layouts_apart_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    cache: PlanCache[Any] = PlanCache()
    monkeypatch.setattr(operation, "_PLANS", cache)
    a, b = (torch.randn(SIDE, SIDE, device="cuda").half() for _ in range(2))
    out = torch.empty(SIDE, SIDE, device="cuda", dtype=torch.float16)
    wanted = a.double() @ b.double()

    ops.matmul(a, b, out=out)

    assert cache._guesses, "this torch has no guards: the host pays three times as much"
    guard, _ = cache._guesses[id(b)]
    assert guard.check(a, b, out)
    others = {
        "shape": b[:128],
        "strides": b.t(),
        "type": b.bfloat16(),
        "negated": torch._neg_view(b),
        "host": b.cpu(),
        "padded": torch.empty(SIDE, 512, device="cuda").half()[:, :SIDE],
    }
    for what, other in others.items():
        assert not guard.check(a, other, out), what
        # The guess by the identity of the second tensor stands, and is not believed.
        cache._guesses = {id(other): cache._guesses[id(b)]}
        assert cache.find((a, other, out), None, None) is None, what
        cache._guesses = {id(b): cache._guesses[id(other)]}
    for mode in (torch.inference_mode(), torch.no_grad(), torch.autocast("cuda")):
        with mode:
            out.zero_()
            ops.matmul(a, b, out=out)
        assert ((out.double() - wanted).norm() / wanted.norm()).item() < 1e-3
    weights = torch.nn.Parameter(b)
    for _ in range(2):
        out.zero_()
        ops.matmul(a, weights, out=out)
        assert ((out.double() - wanted).norm() / wanted.norm()).item() < 1e-3
