"""ops.attention_backward and ops.varlen_attention_backward against float64, on either back end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from parity import random_attention
from parity.attention_backward_oracle import Saved, assert_gradient, differentiate, saved
from parity.attention_oracle import Array, Mask
from parity.backends import Emulate
from parity.test_attention import normal, of_sms, poisoned
from parity.tile_configs import tile_configs

from tmaasync import ops
from tmaasync.emulate import scheduled
from tmaasync.emulate.launch.schedule import Policy
from tmaasync.ops._flash.backward import BackwardConfig

pytestmark = pytest.mark.chips("sm_90a", "sm_100a")

SMALL = BackwardConfig(64, 64)
OF_80_QUERIES = [
    BackwardConfig(128, 80),
    BackwardConfig(128, 80, starts_last=True, alternates=True, heads_at_once=2),
    BackwardConfig(128, 80, tiles_descend=True),
]
ALTERNATING = BackwardConfig(64, 64, starts_last=True, alternates=True, heads_at_once=2)


@pytest.fixture
def two_ctas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device so small that a CTA works on several tiles of keys."""
    of_sms(monkeypatch, 2)


def differentiated(given: list[Any], outputs: list[Any], **options: Any) -> tuple[Any, ...]:
    """Call the operation with an array for every gradient."""
    dout, q, k, v, out, lse = given
    dq, dk, dv = outputs
    return ops.attention_backward(dout, q, k, v, out, lse, dq=dq, dk=dk, dv=dv, **options)


def check(
    backend: Any,
    q: Array,
    k: Array,
    v: Array,
    mask: Mask | None = None,
    *,
    deterministic: bool = False,
    **options: Any,
) -> None:
    """One call on padded arrays, every entry of the batch against the oracle."""
    mask = mask or Mask()
    dout = normal(*q.shape, dtype=q.dtype.name, seed=9)
    each = [saved(*entry, mask, **options) for entry in zip(q, k, v, strict=True)]
    of_forward = (np.stack([one.out for one in each]), np.stack([one.lse for one in each]))
    given = [backend.array(array) for array in (dout, q, k, v, *of_forward)]
    outputs = [backend.array(poisoned(array)) for array in (q, k, v)]

    returned = differentiated(
        given,
        outputs,
        causal=mask.causal,
        window=mask.window,
        deterministic=deterministic,
        **options,
    )

    assert all(one is other for one, other in zip(returned, outputs, strict=True))
    got = [backend.host(array) for array in outputs]
    for entry in range(len(q)):
        expected = differentiate(dout[entry], q[entry], k[entry], v[entry], mask, **options)
        for gradient, wanted in zip(got, expected, strict=True):
            assert_gradient(gradient[entry], wanted)


@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [
        *((128, "bfloat16"), (8, "float16"), (64, "float16"), (64, "bfloat16")),
        *((72, "bfloat16"), (96, "float16"), (128, "float16")),
    ],
)
def test_head_dims_and_types(backend: Any, head_dim: int, dtype: str) -> None:
    q, k, v = (
        normal(2, rows, heads, head_dim, dtype=dtype, seed=seed)
        for seed, (rows, heads) in enumerate(((150, 2), (131, 1), (131, 1)))
    )

    check(backend, q, k, v)


@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize(
    ("queries", "keys", "mask", "softcap"),
    [
        (67, 200, Mask(True, (60, None)), 2.0),
        (150, 100, Mask(True), None),
        (100, 300, Mask("top_left"), None),
        (257, 257, Mask(True), 30.0),
        (300, 257, Mask(window=(0, 0)), None),
        (300, 257, Mask(window=(30, 5)), None),
        (131, 257, Mask(window=(None, 3)), None),
        (400, 257, Mask(window=(150, None)), None),
        (300, 300, Mask("top_left", (70, None)), 2.0),
    ],
)
@pytest.mark.parametrize("head_dim", [96, 64], ids=["d96", "d64"])
def test_masks_and_softcap(
    backend: Any, head_dim: int, queries: int, keys: int, mask: Mask, softcap: float | None
) -> None:
    q, k, v = (
        normal(1, rows, heads, head_dim, seed=heads + rows)
        for rows, heads in ((queries, 2), (keys, 1), (keys, 1))
    )

    check(backend, q, k, v, mask, softcap=softcap)


def test_without_keys_there_are_zeros(backend: Any) -> None:
    q, k = normal(1, 5, 1, 128, dtype="bfloat16"), normal(1, 0, 1, 128, dtype="bfloat16")

    check(backend, q, k, k)


@pytest.mark.gpu
def test_slices_of_one_array_go_in_and_nothing_outside_the_gradients_changes(backend: Any) -> None:
    together, dout = normal(2, 150, 3, 2, 64), normal(2, 150, 2, 64, seed=5)
    each = [saved(one[:, 0], one[:, 1], one[:, 2], Mask()) for one in together]
    of_forward = (np.stack([one.out for one in each]), np.stack([one.lse for one in each]))
    around = backend.array(np.full((2, 152, 3, 4, 72), np.nan, np.float16))
    inner = [around[:, 1:151, i, 1:3, :64] for i in range(3)]
    given = backend.array(together)

    qkv = [given[:, :, i] for i in range(3)]
    differentiated([backend.array(dout), *qkv, *map(backend.array, of_forward)], inner)

    got = backend.host(around)
    for entry in range(2):
        own_q, own_k, own_v = (together[entry, :, i] for i in range(3))
        for i, wanted in enumerate(differentiate(dout[entry], own_q, own_k, own_v, Mask())):
            assert_gradient(got[entry, 1:151, i, 1:3, :64], wanted)
    got[:, 1:151, :, 1:3, :64] = np.nan
    assert np.isnan(got).all()


# --- packed -----------------------------------------------------------------------------------


def check_packed(
    backend: Any, problem: random_attention.Problem, *, deterministic: bool = False
) -> list[Array]:
    """One call on packed arrays with NaN around every operand, and no byte changed elsewhere."""
    sums = [np.concatenate([[0], np.cumsum(rows)]) for rows in (problem.queries, problem.keys)]
    heads = (problem.heads, problem.heads, problem.kv_heads, problem.kv_heads)
    totals = [sums[0], sums[0], sums[1], sums[1]]
    dout, q, k, v = (
        problem.packed(int(total[-1]) + 9, count, seed)
        for seed, (total, count) in enumerate(zip(totals, heads, strict=True))
    )
    for array, total in zip((dout, q, k, v), totals, strict=True):
        array[total[-1] :] = np.nan
    out, lse = map(backend.array, _saved(problem, q, k, v, sums))
    dq, dk, dv = (backend.array(poisoned(array)) for array in (q, k, v))

    ops.varlen_attention_backward(
        *(backend.array(dout), backend.array(q), backend.array(k), backend.array(v)),
        *(out, lse, sums[0], sums[1]),
        deterministic=deterministic,
        dq=dq,
        dk=dk,
        dv=dv,
        **problem.options,
    )

    got = [backend.host(array) for array in (dq, dk, dv)]
    for index in range(len(problem.queries)):
        rows, keys = (slice(*total[index : index + 2]) for total in sums)
        own = (dout[rows], q[rows], k[keys], v[keys])
        expected = differentiate(*own, problem.mask, softcap=problem.softcap)
        for gradient, place, wanted in zip(got, (rows, keys, keys), expected, strict=True):
            assert_gradient(gradient[place], wanted)
    for gradient, total in zip(got, (sums[0], sums[1], sums[1]), strict=True):
        assert np.isnan(gradient[total[-1] :].astype(np.float32)).all()
    return got


def _saved(
    problem: random_attention.Problem, q: Array, k: Array, v: Array, sums: list[Array]
) -> tuple[Array, Array]:
    """The output and the log-sum-exp of all sequences, NaN after the last."""
    out = poisoned(q)
    lse = np.full((problem.heads, len(q)), np.nan, np.float32)
    for index in range(len(problem.queries)):
        rows, keys = (slice(*total[index : index + 2]) for total in sums)
        own: Saved = saved(q[rows], k[keys], v[keys], problem.mask, softcap=problem.softcap)
        out[rows], lse[:, rows] = own.out, own.lse
    return out, lse


def drawn(number: int, **options: Any) -> random_attention.Problem:
    return replace(random_attention.draw(number, small=True), **options)


LENGTHS = {
    "edges of a tile": ((127, 128, 129, 1), (127, 128, 129, 1)),
    "empty ones": ((67, 0, 130, 1), (150, 3, 0, 61)),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.usefixtures("two_ctas")
def test_packed_sequences(backend: Any, name: str) -> None:
    queries, keys = LENGTHS[name]
    problem = drawn(
        0, queries=queries, keys=keys, heads=2, kv_heads=1, mask=Mask(True), softcap=None
    )

    with scheduled("adversarial", seed=len(name), races=True):
        check_packed(backend, problem, deterministic=True)


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("number", range(30))
def test_random_packed_sequences(backend: Any, number: int, deterministic: bool) -> None:
    head_dim = (64, 128, 96, 72)[number % 4]
    problem = drawn(number, head_dim=head_dim)

    check_packed(backend, problem, deterministic=deterministic)


@pytest.mark.slow
@pytest.mark.on_the_cpu(1, 3)
@pytest.mark.parametrize(
    ("config", "mask"),
    [
        (OF_80_QUERIES[0], Mask()),
        (OF_80_QUERIES[1], Mask(causal=True)),
        (OF_80_QUERIES[1], Mask()),
        (OF_80_QUERIES[2], Mask()),
    ],
    ids=["first", "alternating, causal", "alternating", "down"],
)
@pytest.mark.usefixtures("two_ctas")
def test_blocks_of_80_queries(backend: Any, config: BackwardConfig, mask: Mask) -> None:
    """Their dQ is computed transposed."""
    lengths = {"queries": (79, 80, 81, 1, 200, 0), "keys": (127, 128, 129, 200, 1, 3)}
    problem = drawn(0, **lengths, head_dim=128, heads=2, kv_heads=1, mask=mask, softcap=None)

    with tile_configs(lambda _: config), scheduled("adversarial", seed=3, races=True):
        check_packed(backend, problem)


@pytest.mark.slow
@pytest.mark.usefixtures("two_ctas")
@pytest.mark.parametrize(
    ("config", "deterministic"),
    [(SMALL, False), (ALTERNATING, True)],
    ids=["", "alternating, deterministic"],
)
def test_many_tiles_of_a_cta_under_many_schedules(
    config: BackwardConfig, deterministic: bool
) -> None:
    """Tiles of keys that follow each other in a CTA, of two KV heads with two query heads each."""
    q, k, v = normal(1, 130, 4, 64), *(normal(1, 200, 2, 64, seed=i) for i in (1, 2))

    for seed in range(2):
        with tile_configs(lambda _: config), scheduled("adversarial", seed=seed, races=True):
            check(Emulate(), q, k, v, deterministic=deterministic)


# --- the same bits ----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_order_of_a_deterministic_dq_is_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of CTAs that run at once, and their order."""
    problem = drawn(
        3, queries=(200, 70), keys=(300, 140), heads=2, kv_heads=1, mask=Mask(True), softcap=None
    )
    schedules: list[tuple[int, Policy]] = [(1, "round_robin"), (3, "random"), (8, "adversarial")]
    found = []
    for seed, (ctas, policy) in enumerate(schedules):
        of_sms(monkeypatch, ctas)
        with tile_configs(lambda config: config), scheduled(policy, seed=seed):
            found.append(check_packed(Emulate(), problem, deterministic=True))

    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one.view(np.uint16), same.view(np.uint16))
