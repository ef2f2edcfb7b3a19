"""Our encoder and the driver's write the same 128 bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from strategies import im2col_specs, tiled_specs

from tmaasync import _driver
from tmaasync.tensormap import Im2colSpec, TensorMapSpec


@pytest.fixture(scope="module", autouse=True)
def context() -> None:
    cupy = pytest.importorskip("cupy")
    cupy.zeros(1)


@given(spec=tiled_specs() | im2col_specs())
def test_our_bytes_are_the_drivers(spec: TensorMapSpec | Im2colSpec) -> None:
    assert spec.encode() == _driver.encode(spec)
