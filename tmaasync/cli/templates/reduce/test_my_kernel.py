import numpy as np
import pytest
from my_kernel import my_kernel

from tmaasync import emulate


def check(rows, columns, dtype=np.float32, ctas_per_column=2):
    # Whole numbers: adding them up is exact in any order.
    x = np.random.default_rng(rows).integers(-8, 9, (rows, columns)).astype(dtype)
    out = np.full(columns, np.nan, np.float32)
    my_kernel(x, out, ctas_per_column)
    assert np.array_equal(out, x.sum(axis=0, dtype=np.float64))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(1, 8), (32, 128), (33, 136), (1000, 520)])
def test_any_shape(shape, dtype):
    check(*shape, dtype)


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_threads_and_copies_without_a_race(seed):
    with emulate.scheduled("adversarial", seed=seed, races=True):
        check(200, 260)
