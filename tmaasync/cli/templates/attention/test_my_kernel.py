import numpy as np
import pytest
from my_kernel import inputs, my_kernel, reference

from tmaasync import emulate


def check(length, heads, head_dim, ctas=3):
    q, k, v, slopes = inputs(length, heads, head_dim)
    o = np.full_like(q, np.nan)
    my_kernel(q, k, v, o, slopes, ctas)
    assert abs(o - reference(q, k, v, slopes)).max() < 5e-3


@pytest.mark.parametrize("shape", [(1, 1, 64), (128, 2, 64), (300, 3, 64), (200, 2, 128)])
def test_any_shape(shape):
    check(*shape)


@pytest.mark.parametrize("seed", range(2))
def test_any_order_of_threads_and_copies_without_a_race(seed):
    with emulate.scheduled("adversarial", seed=seed, races=True):
        check(200, 2, 64, ctas=1)
