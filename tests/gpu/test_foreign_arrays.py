"""Arrays of frameworks we do not know, by protocol alone, on the chip."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from fake_arrays import ByDlpack

from tmaasync import _arrays, create_tma_tile, ops

cupy = pytest.importorskip("cupy")


class ByInterface:
    """Device memory that says what it is through ``__cuda_array_interface__`` only."""

    def __init__(self, array: Any, stream: int) -> None:
        self._array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__ | {"stream": stream}


def test_a_copy_waits_for_the_stream_that_the_interface_names() -> None:
    producer = cupy.cuda.Stream(non_blocking=True)
    with producer:
        source = cupy.zeros(1 << 24, np.float32)
        for _ in range(100):
            source += 1

    target = cupy.zeros(1 << 24, np.float32)
    ops.copy(ByInterface(source, producer.ptr), target)

    assert (cupy.asnumpy(target) == 100).all()


def test_a_dlpack_array_is_read() -> None:
    source = cupy.arange(4096, dtype=np.float32).reshape(64, 64)

    target = ops.copy(ByDlpack(source))

    assert (cupy.asarray(target) == source).all()


def test_torch_float8_and_bfloat16_are_described_as_what_they_are() -> None:
    torch = pytest.importorskip("torch")
    for dtype, name in ((torch.float8_e4m3fn, "float8_e4m3fn"), (torch.bfloat16, "bfloat16")):
        tensor = torch.randn(64, 64, device="cuda").to(dtype)

        tile = create_tma_tile(tensor, (16, 64))
        copied = ops.copy(tensor)

        assert tile.element.name == name
        assert (copied.view(torch.uint8) == tensor.view(torch.uint8)).all()


def test_jax_arrays_are_read() -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip(f"JAX runs on {jax.default_backend()}")
    source = jax.numpy.arange(4096, dtype=np.float32).reshape(64, 64) * 2

    target = ops.copy(source)

    assert (cupy.asnumpy(cupy.asarray(target)) == np.asarray(source)).all()


def test_the_device_of_an_interface_is_found_in_a_thread_without_a_context() -> None:
    array = cupy.zeros((64, 64), np.float32)
    seen = []

    thread = threading.Thread(
        target=lambda: seen.append(_arrays.view(ByInterface(array, 1)).device)
    )
    thread.start()
    thread.join()

    assert seen == [array.device.id]
