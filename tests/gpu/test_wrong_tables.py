"""Numbers on the device beyond int32, and new keys without room: reported, and no context is lost.

``tests/parity/test_wrong_tables.py`` has the tables that kernels read in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import ArgumentError, ops

cupy = pytest.importorskip("cupy")
torch: Any = pytest.importorskip("torch")

import tmaasync.torch as operators  # noqa: E402

WRAPPED = 2**32 + 60
EARLIER = "of an earlier call is wrong about sequence"
# Lengths before three new keys in a cache of 256, and the sequences that have room.
LENGTHS = [
    ([0, 100, 253, 7], (0, 1, 2, 3)),
    ([256, -1, 254, 2**31 - 1], ()),
    ([-(2**31), 5, 257, 253], (1, 3)),
]


def draw(*shape: int) -> Any:
    return torch.randn(shape, device="cuda", dtype=torch.float16)


def on_device(library: str, numbers: list[int], dtype: str = "int64") -> Any:
    array = cupy.asarray(np.array(numbers, dtype))
    return array if library == "cupy" else torch.from_dlpack(array)


@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_numbers_of_64_bits_do_not_wrap_around(library: str, dtype: str) -> None:
    x, b = draw(100, 1, 64), draw(2, 64, 64)
    given = (x, x[:, 0].contiguous(), b)
    rows, flat, matrices = given if library == "torch" else map(cupy.from_dlpack, given)
    wrong, right = (on_device(library, one, dtype) for one in ([0, 60, WRAPPED], [0, 60, 100]))
    groups = (on_device(library, one, dtype) for one in ([60, WRAPPED], [60, 100]))
    padded = ops.ragged_load(flat, [60, 40], max_length=60)
    packed = flat * 0

    def attend(sums: Any) -> Any:
        return ops.varlen_attention(rows, rows, rows, sums, None, 100)

    def store(sums: Any) -> Any:
        return ops.ragged_store(padded, cu_seqlens=sums, out=packed)

    attend(wrong), store(wrong)
    assert not bool(packed[60:].any())
    for call in (attend, store):
        with pytest.raises(ArgumentError, match=f"{EARLIER} 1"):
            call(right)
        call(right)
    assert bool((packed == flat).all())

    beyond, ends = groups
    cut = ops.grouped_matmul(flat, matrices, beyond)
    torch.cuda.synchronize()
    with pytest.raises(ArgumentError, match=r"offsets\[1\] of an earlier call is wrong"):
        ops.grouped_matmul(flat, matrices, ends)
    assert bool((cut == ops.grouped_matmul(flat, matrices, ends)).all())


@pytest.mark.parametrize(("lengths", "with_room"), LENGTHS, ids=str)
@pytest.mark.parametrize("paged", [False, True])
def test_new_keys_without_room_are_left_out(
    lengths: list[int], with_room: tuple[int, ...], paged: bool
) -> None:
    q, added = draw(4, 3, 2, 64), [draw(4, 3, 2, 64) for _ in range(2)]
    caches = [draw(*((16, 64) if paged else (4, 256)), 2, 64) for _ in range(2)]
    table: Any = torch.randperm(16, device="cuda").int().view(4, 4) if paged else None
    before = [one.clone() for one in caches]

    def call(numbers: Any) -> Any:
        given = torch.tensor(numbers, device="cuda", dtype=torch.int32)
        options = {"cache_seqlens": given, "block_table": table, "causal": True}
        return operators.flash_attn_with_kvcache(q, *caches, *added, **options)

    call(lengths)
    torch.cuda.synchronize()

    for index, length in enumerate(lengths):
        for old, now, new in zip(before, caches, added, strict=True):
            pages = table[index].long() if paged else [index]
            own, wanted = (one[pages].reshape(256, 2, 64) for one in (now, old.clone()))
            if index in with_room:
                wanted[length : length + 3] = new[index]
            assert torch.equal(own, wanted)
    if len(with_room) < 4:
        before = [one.clone() for one in caches]
        with pytest.raises(ArgumentError, match=EARLIER):
            call([0, 0, 0, 0])
        assert all(map(torch.equal, before, caches))
    assert not call([0, 0, 0, 0]).isnan().any()


@pytest.mark.parametrize("wrong", [-1, 16, 2**31 - 1])
@pytest.mark.parametrize("name", ["block_table", "cache_batch_idx"])
def test_new_keys_of_a_page_that_does_not_exist_are_left_out(wrong: int, name: str) -> None:
    q, added = draw(2, 1, 2, 64), [draw(2, 1, 2, 64) for _ in range(2)]
    caches = [draw(16, 64, 2, 64) for _ in range(2)]
    before = [one.clone() for one in caches]
    right = [[2, 3], [4, 5]] if name == "block_table" else [2, 4]
    numbers = [[2, 3], [wrong, 5]] if name == "block_table" else [2, wrong]
    lengths = torch.tensor([9, 3], device="cuda", dtype=torch.int32)

    def call(entries: Any) -> Any:
        given = {name: torch.tensor(entries, device="cuda", dtype=torch.int32)}
        options = {"cache_seqlens": lengths, **given}
        return operators.flash_attn_with_kvcache(q, *caches, *added, **options)

    call(numbers)
    torch.cuda.synchronize()

    for old, now, new in zip(before, caches, added, strict=True):
        old[2, 9] = new[0, 0]
        assert torch.equal(now, old)
    with pytest.raises(ArgumentError, match=f"{EARLIER} 1"):
        call(right)
    call(right)


def test_max_seqlen_near_2_31_with_many_keys() -> None:
    q, k = draw(1, 1, 64), draw(600_000, 1, 64)
    of_q, of_k = (torch.tensor([0, end], device="cuda").int() for end in (1, 600_000))

    found = ops.varlen_attention(q, k, k, of_q, of_k, 2**31 - 1, 2**31 - 1)

    wanted = ops.attention(q[None], k[None], k[None])[0]
    assert (found.float() - wanted.float()).norm() < 1e-2 * wanted.float().norm()
