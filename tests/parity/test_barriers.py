"""An mbarrier goes through the same phases on the host class, the emulator and the chip."""

from __future__ import annotations

from typing import Any

import numpy as np
from parity.barrier_sequences import CALLS, differing, sequence

SEQUENCES = range(300)


def test_random_lives_of_a_barrier(backend: Any) -> None:
    assert list(differing(backend, SEQUENCES)) == []


def test_the_sequences_use_every_call_and_complete_many_phases() -> None:
    drawn = [sequence(number) for number in SEQUENCES]

    kinds = np.concatenate([one.calls["kind"] for one in drawn])
    changes = sum(int(np.count_nonzero(np.diff(one.seen & 3))) for one in drawn)

    assert set(kinds) == set(range(19))
    assert changes > 8 * len(drawn)
    assert any((one.seen & 4).any() for one in drawn)
    assert all(len(one.calls) == CALLS for one in drawn)
