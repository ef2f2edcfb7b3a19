"""ops.attention_backward and its varlen form: what they refuse, before anything is launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tmaasync import ArgumentError, ArrayTypeError, ops
from tmaasync.ops._flash.backward import BackwardVariant, choose_backward_config, heads_on_sms

Q = np.ones((2, 6, 4, 64), np.float16)
K = np.ones((2, 9, 2, 64), np.float16)
LSE = np.ones((2, 4, 6), np.float32)
GIVEN: dict[str, Any] = {"dout": Q, "q": Q, "k": K, "v": K, "out": Q, "lse": LSE}


def call(**changed: Any) -> Any:
    return ops.attention_backward(**{**GIVEN, **changed})


def wide(array: Any) -> Any:
    """The same shape, with columns of a head that are not contiguous."""
    return np.ones((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)[..., ::2]


LARGE = np.ones((1, 4, 1, 136), np.float16)
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a head of 136": (
        lambda: ops.attention_backward(
            LARGE, LARGE, LARGE, LARGE, LARGE, np.ones((1, 1, 4), np.float32)
        ),
        r"q.shape\[-1\] is 136; the backward has kernels for heads of up to 128 columns",
    ),
    "dout of another shape": (
        lambda: call(dout=Q[:1]),
        r"dout.shape is \(1, 6, 4, 64\); q has shape \(2, 6, 4, 64\). Pass an array like q",
    ),
    "an expanded dout": (
        lambda: call(dout=np.broadcast_to(Q[:1], Q.shape)),
        r"dout's stride 0 is 0 bytes.*Copy the array",
    ),
    "columns apart": (lambda: call(out=wide(Q)), r"out's last stride is 4.*Copy the array"),
    "lse of another shape": (
        lambda: call(lse=LSE.swapaxes(1, 2)),
        r"lse.shape is \(2, 6, 4\); ops.attention returns it for this q in shape \(2, 4, 6\)",
    ),
    "lse with gaps": (
        lambda: call(lse=np.ones((2, 4, 12), np.float32)[..., ::2]),
        r"lse's strides is .*; it must be contiguous",
    ),
    "dk of another shape": (lambda: call(dk=np.empty_like(Q)), r"dk.shape is .*like k"),
    "dv over v": (lambda: call(dv=K), r"dv .*shares memory with k|dv .*v"),
    "two gradients in one array": (
        lambda: (lambda own: call(dk=own, dv=own))(np.empty_like(K)),
        r"dk .*dv",
    ),
    "a scale of 0": (lambda: call(scale=0), r"scale is 0"),
    "deterministic in words": (lambda: call(deterministic="yes"), r"deterministic"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named_with_its_rule(what: str) -> None:
    run, message = WRONG[what]

    with pytest.raises(ArgumentError, match=message):
        run()


def test_every_wrong_shape_is_listed() -> None:
    with pytest.raises(ArgumentError, match=r"(?s)dout.shape.*out.shape.*lse.shape"):
        call(dout=Q[:1], out=Q[:, :1], lse=LSE[0])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dout": Q.astype(np.float32)}, "dout holds float32 and q float16"),
        ({"lse": LSE.astype(np.float64)}, "lse holds float64; ops.attention returns it as float32"),
        ({"dq": np.empty(Q.shape, np.float32)}, "dq holds float32 and q float16"),
        ({name: array.astype(np.float32) for name, array in GIVEN.items()}, "q holds float32"),
    ],
)
def test_types_that_the_kernels_lack(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ArrayTypeError, match=message):
        call(**changed)


def test_a_gradient_that_cannot_be_written() -> None:
    dq = np.empty_like(Q)
    dq.flags.writeable = False

    with pytest.raises(ArgumentError, match="dq"):
        call(dq=dq)


def test_sequences_that_leave_their_arrays() -> None:
    q, k, lse = Q[0], K[0], LSE[0]

    with pytest.raises(ArgumentError, match="cu_seqlens_k"):
        ops.varlen_attention_backward(q, q, k, k, q, lse, [0, 6], [0, 10])
    with pytest.raises(ArgumentError, match="cu_seqlens_q describes 1"):
        ops.varlen_attention_backward(q, q, k, k, q, lse, [0, 6], [0, 4, 9])


@pytest.mark.parametrize(
    ("variant", "keys", "starts_last", "heads"),
    [
        (BackwardVariant(), 16384, True, 2),
        (BackwardVariant(), 4096, True, 4),
        (BackwardVariant(), 1024, True, 8),
        (BackwardVariant(has_right=True), 1024, True, 16),
        (BackwardVariant(has_right=True), 8192, True, 4),
        (BackwardVariant(has_right=True), 16384, True, 2),
        (BackwardVariant(is_deterministic=True), 1024, True, 16),
        (BackwardVariant(is_deterministic=True), 8192, True, 4),
        (BackwardVariant(is_deterministic=True, has_right=True), 1024, False, 4),
        (BackwardVariant(is_deterministic=True, has_right=True), 16384, False, 2),
    ],
)
def test_longer_heads_are_worked_on_fewer_at_a_time(
    variant: BackwardVariant, keys: int, starts_last: bool, heads: int
) -> None:
    """The orders that were fastest on an H200, of 16 heads of 128 columns."""
    config = choose_backward_config(
        128, variant, shares_kv_heads=False, heads_on_sms=heads_on_sms(keys, 132)
    )

    assert (config.starts_last, config.heads_at_once) == (starts_last, heads)
    assert config.tiles_descend == (variant.is_deterministic and variant.is_masked)


@pytest.mark.parametrize(
    ("variant", "keys", "block_m"),
    [
        (BackwardVariant(), 1024, 80),
        (BackwardVariant(has_right=True), 8192, 64),
        (BackwardVariant(has_right=True), 16384, 80),
        (BackwardVariant(has_right=True, has_left=True), 16384, 64),
        (BackwardVariant(has_right=True, has_softcap=True), 16384, 64),
        (BackwardVariant(has_right=True, is_packed=True), 16384, 64),
        (BackwardVariant(has_right=True, is_deterministic=True), 16384, 64),
    ],
)
def test_a_causal_mask_has_blocks_of_80_queries_in_long_heads(
    variant: BackwardVariant, keys: int, block_m: int
) -> None:
    config = choose_backward_config(
        128, variant, shares_kv_heads=False, heads_on_sms=heads_on_sms(keys, 132)
    )

    assert config.block_m == block_m


@pytest.mark.parametrize(("keys", "heads"), [(2048, 8), (4096, 4), (8192, 2), (16384, 1)])
def test_deterministic_gqa_works_on_the_heads_that_fill_the_sms(keys: int, heads: int) -> None:
    """The orders that were fastest on an H200 and an H100, of 8 KV heads of 128 columns."""
    config = choose_backward_config(
        128,
        BackwardVariant(is_deterministic=True),
        shares_kv_heads=True,
        heads_on_sms=heads_on_sms(keys, 132),
    )

    assert (config.starts_last, config.heads_at_once) == (True, heads)
