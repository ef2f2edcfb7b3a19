"""Matrix descriptors, against the bit fields of the PTX ISA written out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmaasync.errors import ArgumentError
from tmaasync.modes import Swizzle
from tmaasync.wgmma import MatrixDescriptor

sixteenths = st.integers(0, 2**14 - 1)


@given(address=sixteenths, leading=sixteenths, stride=sixteenths)
def test_every_field_lands_in_its_own_bits(address: int, leading: int, stride: int) -> None:
    descriptor = MatrixDescriptor(
        address=16 * address,
        leading_bytes=16 * leading,
        stride_bytes=16 * stride,
        swizzle=Swizzle.B128,
    )

    bits = f"{descriptor.encode():064b}"[::-1]

    assert int(bits[0:14][::-1], 2) == address
    assert int(bits[16:30][::-1], 2) == leading
    assert int(bits[32:46][::-1], 2) == stride
    assert bits[62:64] == "10"


@pytest.mark.parametrize(
    ("swizzle", "layout"),
    [(Swizzle.NONE, 0), (Swizzle.B128, 1), (Swizzle.B64, 2), (Swizzle.B32, 3)],
)
def test_wgmma_numbers_swizzles_from_the_widest(swizzle: Swizzle, layout: int) -> None:
    descriptor = MatrixDescriptor(address=0, leading_bytes=0, stride_bytes=0, swizzle=swizzle)

    assert descriptor.encode() >> 62 == layout


@pytest.mark.parametrize("field", ["address", "leading_bytes", "stride_bytes"])
@pytest.mark.parametrize("value", [8, -16, 16 << 14])
def test_a_field_that_does_not_fit_is_named(field: str, value: int) -> None:
    fields = {"address": 0, "leading_bytes": 16, "stride_bytes": 1024} | {field: value}

    with pytest.raises(ArgumentError, match=f"{field} is {value}; .* multiple of 16"):
        MatrixDescriptor(**fields, swizzle=Swizzle.B128).encode()


def test_a_swizzle_of_sm_100_is_refused_by_name() -> None:
    descriptor = MatrixDescriptor(
        address=0, leading_bytes=0, stride_bytes=0, swizzle=Swizzle.B128_ATOM_32B
    )

    with pytest.raises(ArgumentError, match=r"B128_ATOM_32B; it exists on sm_100"):
        descriptor.encode()
