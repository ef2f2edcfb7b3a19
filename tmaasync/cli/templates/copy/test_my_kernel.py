import numpy as np
import pytest
from my_kernel import my_kernel

from tmaasync import emulate


def check(rows, columns, dtype=np.float32, ctas=2):
    x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(dtype)
    y = np.full_like(x, np.nan)
    my_kernel(x, y, 0.5, ctas)
    assert np.array_equal(y, x * dtype(0.5))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(1, 8), (32, 128), (33, 136), (300, 520)])
def test_any_shape(shape, dtype):
    check(*shape, dtype)


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_threads_and_copies_without_a_race(seed):
    with emulate.scheduled("adversarial", seed=seed, races=True):
        check(200, 260)
