"""Operations captured into CUDA graphs: replayed on new contents they give the new results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tmaasync import ops

cupy = pytest.importorskip("cupy")

Arrays = list[Any]
ROUNDING = 5e-4  # of one rounding to float16, relative to the Frobenius norm, with room
LENGTHS = [0, 7, 3, 64]


@dataclass(frozen=True)
class Job:
    """An operation from inputs to an output, all float16, and what it gives in float64."""

    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    call: Callable[..., Any]
    reference: Callable[..., Any]
    error: float = ROUNDING


def expected_matmul(a: Any, b: Any) -> Any:
    return a @ b


def convolution(images: Any, filters: Any) -> Any:
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    _, height, width, _ = images.shape
    return sum(
        padded[:, r : r + height, s : s + width] @ filters[:, r, s].T
        for r in range(3)
        for s in range(3)
    )


def matmul(a: Any, b: Any, out: Any) -> None:
    ops.matmul(a, b, out=out)


JOBS = {
    "matmul": Job(((512, 256), (256, 384)), (512, 384), matmul, expected_matmul),
    "matmul of many tiles": Job(((3000, 512), (512, 2048)), (3000, 2048), matmul, expected_matmul),
    "skinny matmul": Job(((8, 512), (512, 1024)), (8, 1024), matmul, expected_matmul),
    "matmul with a transpose": Job(
        ((512, 256), (384, 256)),
        (512, 384),
        lambda a, b, out: ops.matmul(a, b.T, out=out),
        lambda a, b: a @ b.T,
    ),
    "copy": Job(((999, 37),), (999, 37), ops.copy, lambda a: a, 0),
    "copy of columns": Job(
        ((1000, 96),),
        (1000, 48),
        lambda a, out: ops.copy(a[:, 16:64], out),
        lambda a: a[:, 16:64],
        0,
    ),
    "convolution": Job(
        ((2, 20, 24, 32), (64, 3, 3, 32)),
        (2, 20, 24, 64),
        lambda images, filters, out: ops.conv2d(images, filters, padding=1, out=out),
        convolution,
    ),
}


def draw(shape: tuple[int, ...], seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


class WithCupy:
    """Captured on a stream of CuPy's."""

    def __init__(self) -> None:
        self.stream = cupy.cuda.Stream(non_blocking=True)

    def array(self, values: Any) -> Any:
        array = cupy.asarray(values)
        cupy.cuda.Device().synchronize()
        return array

    def fill(self, array: Any, values: Any) -> None:
        array[...] = cupy.asarray(values)
        cupy.cuda.Device().synchronize()

    def host(self, array: Any) -> Any:
        return cupy.asnumpy(array)

    def captured(self, run: Callable[[], object]) -> Callable[[], None]:
        with self.stream:
            run()
            self.stream.synchronize()
            self.stream.begin_capture()
            run()
            graph = self.stream.end_capture()

        def replay() -> None:
            graph.launch(self.stream)
            self.stream.synchronize()

        return replay


class WithTorch:
    """Captured by torch.cuda.graph, which forbids everything that could wait or allocate."""

    def __init__(self) -> None:
        self.torch = pytest.importorskip("torch")

    def array(self, values: Any) -> Any:
        return self.torch.from_numpy(values).cuda()

    def fill(self, array: Any, values: Any) -> None:
        array.copy_(self.torch.from_numpy(np.array(values, np.float16)))
        self.torch.cuda.synchronize()

    def host(self, array: Any) -> Any:
        return array.cpu().numpy()

    def captured(self, run: Callable[[], object]) -> Callable[[], None]:
        run()
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            run()

        def replay() -> None:
            graph.replay()
            self.torch.cuda.synchronize()

        return replay


@pytest.fixture(params=[WithCupy, WithTorch])
def framework(request: pytest.FixtureRequest) -> Any:
    return request.param()


def relative_error(got: Any, wanted: Any) -> float:
    return float(np.linalg.norm(got.astype(np.float64) - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("name", JOBS)
def test_a_captured_operation_follows_its_inputs(name: str, framework: Any) -> None:
    job = JOBS[name]
    inputs = [framework.array(draw(shape, i)) for i, shape in enumerate(job.inputs)]
    out = framework.array(draw(job.output, 10))
    replay = framework.captured(lambda: job.call(*inputs, out))

    for seed in (20, 30):
        values = [draw(shape, seed + i) for i, shape in enumerate(job.inputs)]
        for array, new in zip(inputs, values, strict=True):
            framework.fill(array, new)
        framework.fill(out, np.nan * np.ones(job.output))
        replay()
        wanted = job.reference(*(value.astype(np.float64) for value in values))
        assert relative_error(framework.host(out), wanted) <= job.error


def test_captured_matmuls_run_one_after_the_other(framework: Any) -> None:
    """The second reads what the first writes, and may start before that has ended."""
    shapes = (512, 256), (256, 512), (512, 256)
    inputs = [framework.array(draw(shape, i)) for i, shape in enumerate(shapes)]
    between, out = (framework.array(draw(shape, 5)) for shape in ((512, 512), (512, 256)))

    def chain() -> None:
        ops.matmul(*inputs[:2], out=between)
        ops.matmul(between, inputs[2], out=out)

    replay = framework.captured(chain)

    for seed in range(40, 60, 4):
        values = [draw(shape, seed + i) for i, shape in enumerate(shapes)]
        for array, new in zip(inputs, values, strict=True):
            framework.fill(array, new)
        framework.fill(between, np.nan * np.ones((512, 512)))
        replay()
        a, b, c = (value.astype(np.float64) for value in values)
        wanted = (a @ b).astype(np.float16).astype(np.float64) @ c
        assert relative_error(framework.host(out), wanted) < 2 * ROUNDING


def test_a_captured_packing_follows_the_lengths_on_the_device(framework: Any) -> None:
    padded = framework.array(draw((4, 64, 32), 1))
    sums = framework.array(np.array([0, *np.cumsum(LENGTHS)], np.int32))
    out = framework.array(draw((sum(LENGTHS), 32), 2))
    replay = framework.captured(lambda: ops.ragged_store(padded, out=out, cu_seqlens=sums))

    values = draw((4, 64, 32), 20)
    framework.fill(padded, values)
    framework.fill(out, np.nan * np.ones((sum(LENGTHS), 32)))
    replay()

    rows = [sequence[:length] for sequence, length in zip(values, LENGTHS, strict=True)]
    assert np.array_equal(framework.host(out), np.concatenate(rows))


@pytest.mark.parametrize("columns", [384, 33])
def test_torch_keeps_the_memory_that_a_captured_matmul_allocates(columns: int) -> None:
    """A new output, and, with 33 columns, the copies of what TMA cannot reach."""
    framework = WithTorch()
    a = framework.array(draw((512, 256), 1))
    b = framework.array(draw((256, columns), 2))
    results: list[Any] = []
    replay = framework.captured(lambda: results.append(ops.matmul(a, b)))

    for seed in (20, 30):
        values = draw((512, 256), seed), draw((256, columns), seed + 1)
        framework.fill(a, values[0])
        framework.fill(b, values[1])
        replay()
        wanted = values[0].astype(np.float64) @ values[1].astype(np.float64)
        assert relative_error(framework.host(results[-1]), wanted) < ROUNDING
