"""Tensor maps, encoded by the driver.

The one place where axis order is reversed: everything above runs outermost first, the driver takes
innermost first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tmaasync._driver import bindings
from tmaasync._driver.devices import device_limits, on_device
from tmaasync._hardware import HOPPER
from tmaasync.errors import BackendError
from tmaasync.tensormap import Im2colSpec, TensorMapSpec


def encode(spec: TensorMapSpec | Im2colSpec, device: int = 0) -> bytes:
    """Return the 128 bytes of a legal spec, from the driver, for kernels on a device.

    Raises:
        DriverError: The driver refuses the spec.
        BackendError: There is no driver or no device, or its maps do not start with the address.
    """
    with on_device(device):  # which threads of autograd may lack
        map_ = _encode_tiled(spec) if isinstance(spec, TensorMapSpec) else _encode_im2col(spec)
    words = [int(word) for word in map_.opaque]
    capability = device_limits(device).compute_capability
    if capability != HOPPER:
        words = _checked(words, spec.address, capability)
    return b"".join(word.to_bytes(8, "little") for word in words)


# Known issue in NVIDIA's release notes of driver 595.71.05: on Blackwell the driver may set this
# bit by the size of the allocation, and accesses to a small one fault. NVIDIA's workaround is to
# clear it. It is cleared in every map, since launches move a map to arrays in other allocations.
_BLACKWELL_MAJORS = (10, 11, 12)
_ALLOCATION_BIT = 85


def _checked(words: list[int], address: int, capability: tuple[int, int]) -> list[int]:
    """Return a map of a chip that was not tested, after a check of what launches rely on."""
    if words[0] != address:
        raise BackendError(
            f"a tensor map of compute capability {capability[0]}.{capability[1]} does not start "
            "with the address of its array, which launches replace there. Use BulkTile, or run on "
            "an H100 or H200."
        )
    if capability[0] in _BLACKWELL_MAJORS:
        word, bit = divmod(_ALLOCATION_BIT, 64)
        words[word] &= ~(1 << bit)
    return words


def _encode_tiled(spec: TensorMapSpec) -> Any:
    driver = bindings.driver()
    return bindings.call(
        "cuTensorMapEncodeTiled",
        *_tensor(spec),
        _innermost_first(driver.cuuint32_t, spec.box_shape),
        *_access(spec),
    )


def _encode_im2col(spec: Im2colSpec) -> Any:
    if spec.wide:
        return _encode_im2col_wide(spec)
    return bindings.call(
        "cuTensorMapEncodeIm2col",
        *_tensor(spec),
        list(reversed(spec.lower_corner)),
        list(reversed(spec.upper_corner)),
        spec.channels_per_pixel,
        spec.pixels_per_column,
        *_access(spec),
    )


def _encode_im2col_wide(spec: Im2colSpec) -> Any:
    strides, interleave, *rest = _access(spec)
    return bindings.call(
        "cuTensorMapEncodeIm2colWide",
        *_tensor(spec),
        spec.lower_corner[-1],
        spec.upper_corner[-1],
        spec.channels_per_pixel,
        spec.pixels_per_column,
        strides,
        interleave,
        bindings.driver().CUtensorMapIm2ColWideMode(int(spec.wide == "w128")),
        *rest,
    )


def _tensor(spec: TensorMapSpec | Im2colSpec) -> tuple[Any, ...]:
    driver = bindings.driver()
    # A rank-1 map has no stride, but the bindings turn an empty list into a null pointer, which the
    # driver refuses: any legal value serves (measured on an H200, driver 580).
    strides = _innermost_first(driver.cuuint64_t, spec.strides_bytes or (16,))
    return (
        driver.CUtensorMapDataType(int(spec.dtype)),
        len(spec.shape),
        spec.address,
        _innermost_first(driver.cuuint64_t, spec.shape),
        strides,
    )


def _access(spec: TensorMapSpec | Im2colSpec) -> tuple[Any, ...]:
    driver = bindings.driver()
    element_strides = spec.element_strides or (1,) * len(spec.shape)
    return (
        _innermost_first(driver.cuuint32_t, element_strides),
        driver.CUtensorMapInterleave(int(spec.interleave)),
        driver.CUtensorMapSwizzle(int(spec.swizzle)),
        driver.CUtensorMapL2promotion(int(spec.l2_promotion)),
        driver.CUtensorMapFloatOOBfill(int(spec.oob_fill)),
    )


def _innermost_first(integer: Any, values: Sequence[int]) -> list[Any]:
    return [integer(value) for value in reversed(values)]
