"""ops.matmul with epilogues against float64, on either back end; every array lies among NaNs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from parity.backends import Emulate
from parity.random_matmuls import KINDS, OTHER_TYPES, Kind, Problem
from parity.tile_configs import tile_configs

from tmaasync import emulate, ops


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(1, 2, 3, 4, 7, 8, 11, 13)
@pytest.mark.parametrize("kind", [*KINDS, *OTHER_TYPES], ids=str)
def test_every_kind(backend: Any, kind: Kind) -> None:
    few_rows = kind.activation in {"relu", "gelu_tanh"}

    Problem(kind, 37 if few_rows else 131, 75 if few_rows else 137, 72, 5).check(backend)


def test_the_addend_passes_through_the_stages_without_a_race(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So few CTAs that stages are used again and again, by operands and by the addend."""
    few = replace(emulate.LIMITS, sms=2)
    monkeypatch.setattr(emulate, "LIMITS", few)

    with (
        tile_configs(lambda config: replace(config, cluster=1, side_by_side=False)),
        emulate.scheduled("adversarial", seed=1, races=True),
    ):
        Problem(Kind("float16", beta=1.0, output="float32"), 300, 520, 136, 5).check(Emulate())


# An output of 45 columns is written through a staging copy.
@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(0, 2)
@pytest.mark.parametrize(("columns", "b_is_batch"), [(48, True), (48, False), (45, False)])
def test_a_batch_has_an_epilogue_too(backend: Any, columns: int, b_is_batch: bool) -> None:
    rng = np.random.default_rng(11)
    shapes = (3, 70, 40), ((3, 40, columns) if b_is_batch else (40, columns)), (3, 70, columns)
    a, b, c = (rng.integers(-4, 5, shape).astype(np.float16) for shape in shapes)
    bias = rng.integers(-4, 5, columns).astype(np.float32)
    out = backend.array(c)

    ops.matmul(
        backend.array(a), backend.array(b), c=out, bias=backend.array(bias), activation="relu",
        out=out,
    )  # fmt: skip

    wanted = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + c + bias, 0)
    assert np.array_equal(backend.host(out), wanted)


def test_a_batch_with_one_matrix_may_be_copied(backend: Any) -> None:
    rng = np.random.default_rng(12)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((2, 3, 5), (5, 8)))
    out = backend.array(np.full((2, 3, 8), np.nan, np.float16))

    ops.matmul(backend.array(a), backend.array(b), out=out)

    assert np.array_equal(backend.host(out), a.astype(np.float64) @ b.astype(np.float64))


def test_nothing_to_add_up_leaves_the_rest(backend: Any) -> None:
    a, b = (backend.array(np.zeros(shape, np.float16)) for shape in ((5, 0), (0, 16)))
    c = backend.array(np.full((5, 16), -3, np.float16))

    got = ops.matmul(a, b, c=c, beta=2.0, bias=backend.array(np.arange(16, dtype=np.float32)))

    assert np.array_equal(backend.host(got), np.tile(np.arange(16) - 6.0, (5, 1)))


def test_an_addend_that_does_not_count_is_not_read(backend: Any) -> None:
    a, b = (backend.array(np.ones(shape, np.float16)) for shape in ((5, 8), (8, 16)))
    c = backend.array(np.full((5, 16), np.nan, np.float16))

    assert (backend.host(ops.matmul(a, b, c=c, beta=0)) == 8).all()
