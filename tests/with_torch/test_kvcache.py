"""New keys of flash_attn_with_kvcache whose lengths and blocks the host cannot check."""

from __future__ import annotations

from typing import Any

import pytest

from tmaasync import ArgumentError

torch: Any = pytest.importorskip("torch")

import tmaasync.torch as operators  # noqa: E402
from tmaasync.ops._allocation import saturated_int32  # noqa: E402
from tmaasync.torch._flash_attn_kvcache import append  # noqa: E402

MOST = 2**31 - 1
BEYOND = {
    "int64": ([0, 60, 2**32 + 60, -(2**40)], [0, 60, MOST, -MOST - 1]),
    "uint64": ([0, 60, 2**32 + 60, 2**63 + 60], [0, 60, MOST, MOST]),
    "uint32": ([0, 60, 2**31 + 60, 2**32 - 1], [0, 60, MOST, MOST]),
}
ROWS, NEW = 8, 3
CAPACITY = 4 * ROWS


@pytest.mark.parametrize("dtype", BEYOND)
def test_numbers_beyond_int32_are_the_nearest(dtype: str) -> None:
    given, wanted = BEYOND[dtype]

    found = saturated_int32(torch.tensor(given, dtype=getattr(torch, dtype)))

    assert found.tolist() == wanted
    assert found.dtype == torch.int32


@pytest.mark.parametrize("wrong_page", [-1, 16, MOST])
@pytest.mark.parametrize(
    "lengths",
    [
        [0, 5, CAPACITY - NEW, 9],
        [CAPACITY, -1, CAPACITY - NEW + 1, MOST],
        [-(2**40), 6, 2**32 + 5, -NEW],
        [7, 7, 7, 7],
    ],
    ids=str,
)
def test_new_keys_are_written_where_there_is_room_and_nowhere_else(
    lengths: list[int], wrong_page: int
) -> None:
    table = torch.arange(16).int().view(4, 4)
    table[3, 1] = wrong_page
    caches = [torch.randn(16, ROWS, 2, 8) for _ in range(2)]
    new = [torch.randn(4, NEW, 2, 8) for _ in range(2)]
    wanted = [one.clone() for one in caches]
    for index, length in enumerate(lengths):
        positions = range(length, length + NEW)
        if length < 0 or positions.stop > CAPACITY:
            continue
        if index == 3 and any(position // ROWS == 1 for position in positions):
            continue
        for position, (cache, keys) in (
            (p, pair) for p in positions for pair in zip(wanted, new, strict=True)
        ):
            cache[table[index, position // ROWS], position % ROWS] = keys[index, position - length]
    given = torch.tensor(lengths)

    append(
        list(zip(caches, new, strict=True)), table, given, (given >= 0) & (given <= CAPACITY - NEW)
    )

    for cache, expected in zip(caches, wanted, strict=True):
        assert torch.equal(cache, expected)


def test_more_keys_than_32_bits_count_are_refused_by_name() -> None:
    q, cache = torch.zeros(4, 1, 1, 8).half(), torch.zeros(1, 8, 1, 8).half()
    table = torch.zeros(1, 1).int().expand(4, 1 << 26)

    with pytest.raises(ArgumentError, match=r"cache_seqlens is 2147483648 keys in all; .* at most"):
        operators.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=1 << 29, block_table=table)
    with pytest.raises(ArgumentError, match=r"k\.shape\[1\] is 9; a sequence's cache has 8 rows"):
        operators.flash_attn_with_kvcache(
            q[:1], cache, cache, cache.expand(1, 8, 1, 8).repeat(1, 2, 1, 1)[:, :9],
            cache.repeat(1, 2, 1, 1)[:, :9], cache_seqlens=0,
        )  # fmt: skip
