import numpy as np
import pytest
from my_kernel import my_kernel

from tmaasync import emulate


def check(m, n, k, ctas=2):
    rng = np.random.default_rng(m)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in [(m, k), (n, k)])
    bias = rng.standard_normal(n, dtype=np.float32)
    c = np.full((m, n), np.nan, np.float16)
    my_kernel(a, b, bias, c, ctas)
    expected = np.maximum(a.astype(np.float64) @ b.T.astype(np.float64) + bias, 0)
    assert np.linalg.norm(c - expected) < 1e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize("shape", [(1, 8, 8), (128, 128, 64), (129, 136, 72), (300, 200, 320)])
def test_any_shape(shape):
    check(*shape)


@pytest.mark.parametrize("seed", range(2))
def test_any_order_of_threads_and_copies_without_a_race(seed):
    with emulate.scheduled("adversarial", seed=seed, races=True):
        check(200, 200, 200)
