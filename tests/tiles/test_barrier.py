"""The mbarrier protocol against an oracle that keeps nothing but four integers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmaasync.barrier import MAX_ARRIVALS, MAX_TX_COUNT, SharedMemBarrier
from tmaasync.errors import ProtocolError


@st.composite
def legal_calls(draw: st.DrawFn) -> tuple[int, list[tuple[str, int, int]]]:
    """Draw a count, and calls as (name, argument, phase after the call by the PTX text)."""
    count = draw(st.integers(1, 4))
    pending, tx_count, phase = count, 0, 0
    calls = []
    for _ in range(draw(st.integers(0, 40))):
        names = ["expect_tx", "complete_tx", "complete_transaction"]
        names += ["arrive", "expect_bytes", "expect_bytes_relaxed"] * (pending > 0)
        name = draw(st.sampled_from(names))
        if name == "arrive":
            argument = draw(st.integers(1, pending))
            pending -= argument
        else:
            # Often just the bytes that are missing, so that phases do complete.
            argument = draw(st.sampled_from([abs(tx_count), 0, 16, 64]))
            tx_count += -argument if name.startswith("complete") else argument
            pending -= name.startswith("expect_bytes")
        if (pending, tx_count) == (0, 0):
            pending, phase = count, phase + 1
        calls.append((name, argument, phase))
    return count, calls


@given(legal_calls())
def test_any_legal_sequence_goes_through_the_phases_of_the_oracle(
    drawn: tuple[int, list[tuple[str, int, int]]],
) -> None:
    count, calls = drawn
    barrier = SharedMemBarrier(count)

    for call, (name, argument, phase) in enumerate(calls):
        before = barrier.phase
        token = getattr(barrier, name)(argument)

        assert barrier.phase == phase
        for parity in (0, 1):
            # A new waiter each time: what a waiter has seen is another test's matter.
            assert barrier.test_wait(parity, waiter=f"{call}") == (phase % 2 != parity)
        assert token is None or barrier.test_wait(token) == (phase > before)


def test_a_fresh_barrier_passes_parity_1_and_blocks_parity_0() -> None:
    barrier = SharedMemBarrier()

    assert barrier.try_wait(1, waiter="producer")
    assert not barrier.try_wait(0, waiter="consumer")


def test_expect_bytes_arrives_and_expect_tx_does_not() -> None:
    barrier = SharedMemBarrier(2)

    barrier.expect_bytes(64)
    assert (barrier.pending_arrivals, barrier.tx_count) == (1, 64)
    barrier.expect_tx(32)
    assert (barrier.pending_arrivals, barrier.tx_count) == (1, 96)


def test_bytes_may_land_before_they_are_expected() -> None:
    barrier = SharedMemBarrier()

    barrier.complete_tx(128)
    assert (barrier.phase, barrier.tx_count) == (0, -128)
    barrier.expect_bytes(128)
    assert barrier.phase == 1


def test_the_phase_stays_open_until_both_the_arrivals_and_the_bytes_are_in() -> None:
    barrier = SharedMemBarrier(2)
    barrier.expect_bytes(64)
    barrier.complete_tx(64)
    assert barrier.phase == 0
    barrier.arrive()
    assert barrier.phase == 1


def test_phases_are_counted_beyond_their_parity() -> None:
    barrier = SharedMemBarrier()
    for phase in range(5):
        assert barrier.phase == phase
        barrier.arrive()


def test_a_waiter_that_sees_every_phase_waits_on_alternating_parities() -> None:
    barrier = SharedMemBarrier()
    for phase in range(5):
        assert not barrier.test_wait(phase & 1)
        barrier.arrive()
        barrier.wait(phase & 1)
        barrier.wait(phase & 1)  # asking again is no mistake


@pytest.mark.parametrize(("arrivals", "parity"), [(2, 0), (3, 0), (3, 1), (4, 0), (4, 1)])
def test_a_parity_that_skips_a_phase_is_refused(arrivals: int, parity: int) -> None:
    barrier = SharedMemBarrier(name="full[1]")
    barrier.arrive()
    barrier.wait(0, waiter="consumer")
    for _ in range(arrivals - 1):
        barrier.arrive()

    with pytest.raises(ProtocolError, match=r"full\[1\]: consumer .* phase 1 was skipped"):
        barrier.test_wait(parity, waiter="consumer")


def test_what_one_waiter_has_seen_binds_no_other() -> None:
    barrier = SharedMemBarrier()
    barrier.arrive()
    barrier.wait(0, waiter="a")
    barrier.arrive()

    assert not barrier.test_wait(0, waiter="b")


def test_a_token_names_its_own_phase_and_expires_one_phase_later() -> None:
    barrier = SharedMemBarrier(2)
    token = barrier.arrive()
    assert not barrier.test_wait(token)
    barrier.arrive()
    assert barrier.try_wait(token)
    barrier.arrive(2)

    with pytest.raises(ProtocolError, match=r"phase 0 .* only phases 1 and 2"):
        barrier.test_wait(token)


def test_a_token_of_another_barrier_is_refused() -> None:
    token = SharedMemBarrier(name="empty[0]").arrive()

    with pytest.raises(ProtocolError, match=r"empty\[0\]"):
        SharedMemBarrier().test_wait(token)


def test_a_wait_that_nobody_will_end_says_what_is_missing() -> None:
    barrier = SharedMemBarrier(2, name="full[0]")
    barrier.expect_bytes(512)

    with pytest.raises(ProtocolError, match="1 of 2 arrivals and 512 bytes are missing"):
        barrier.wait(0)


def test_a_wait_says_when_more_bytes_landed_than_were_expected() -> None:
    barrier = SharedMemBarrier()
    barrier.expect_bytes(16)
    barrier.complete_tx(32)

    with pytest.raises(ProtocolError, match="announcement of 16 bytes that have landed"):
        barrier.wait(0)


@pytest.mark.parametrize("count", [0, -1, MAX_ARRIVALS + 1])
def test_a_count_out_of_range_is_named_with_its_range(count: int) -> None:
    with pytest.raises(ProtocolError, match=f"count is {count}; it must be from 1 to 1048575"):
        SharedMemBarrier(count)


def test_an_arrival_beyond_the_count_is_refused_and_changes_nothing() -> None:
    barrier = SharedMemBarrier(1, name="full[2]")
    barrier.expect_bytes(64)

    with pytest.raises(ProtocolError, match=r"full\[2\]: an arrival of 1 where 0 of 1"):
        barrier.expect_bytes(64)
    assert (barrier.phase, barrier.pending_arrivals, barrier.tx_count) == (0, 0, 64)


def test_more_arrivals_at_once_than_are_pending_are_refused() -> None:
    with pytest.raises(ProtocolError, match="an arrival of 3 where 2 of 2"):
        SharedMemBarrier(2).arrive(3)


@pytest.mark.parametrize("count", [0, -1, MAX_ARRIVALS + 1])
def test_an_arrival_of_nobody_or_of_too_many_is_refused(count: int) -> None:
    with pytest.raises(ProtocolError, match=f"arrive of count {count}"):
        SharedMemBarrier(2).arrive(count)


@pytest.mark.parametrize(("call", "sign"), [("expect_tx", 1), ("complete_tx", -1)])
def test_a_tx_count_out_of_range_is_refused_and_changes_nothing(call: str, sign: int) -> None:
    barrier = SharedMemBarrier()
    getattr(barrier, call)(MAX_TX_COUNT)

    with pytest.raises(ProtocolError, match=f"tx-count would be {sign * (MAX_TX_COUNT + 1)}"):
        getattr(barrier, call)(1)
    assert barrier.tx_count == sign * MAX_TX_COUNT


@pytest.mark.parametrize("size_bytes", [-1, MAX_TX_COUNT + 1])
@pytest.mark.parametrize("call", ["expect_bytes", "expect_tx", "complete_tx"])
def test_bytes_out_of_range_are_refused(call: str, size_bytes: int) -> None:
    with pytest.raises(ProtocolError, match=f"size_bytes is {size_bytes}"):
        getattr(SharedMemBarrier(), call)(size_bytes)


@pytest.mark.parametrize("parity", [-1, 2])
def test_a_parity_other_than_0_or_1_is_refused(parity: int) -> None:
    with pytest.raises(ProtocolError, match=f"parity is {parity}"):
        SharedMemBarrier().test_wait(parity)


_USES = {
    "arrive": (),
    "expect_bytes": (16,),
    "expect_tx": (16,),
    "complete_tx": (16,),
    "test_wait": (0,),
    "try_wait": (0,),
    "wait": (0,),
    "inval": (),
}


@pytest.mark.parametrize("use", _USES)
def test_no_use_before_init(use: str) -> None:
    with pytest.raises(ProtocolError, match=r"before init\(\) or after inval\(\)"):
        getattr(SharedMemBarrier(None), use)(*_USES[use])


@pytest.mark.parametrize("use", _USES)
def test_no_use_after_inval(use: str) -> None:
    barrier = SharedMemBarrier()
    barrier.inval()

    with pytest.raises(ProtocolError, match=r"before init\(\) or after inval\(\)"):
        getattr(barrier, use)(*_USES[use])


def test_a_barrier_in_use_is_not_initialised_again() -> None:
    with pytest.raises(ProtocolError, match=r"Call inval\(\) first"):
        SharedMemBarrier().init(2)


def test_after_inval_and_init_the_life_begins_anew() -> None:
    barrier = SharedMemBarrier()
    barrier.arrive()
    barrier.wait(0)
    barrier.invalidate()
    barrier.init(3)

    assert (barrier.phase, barrier.count, barrier.pending_arrivals) == (0, 3, 3)
    for _ in range(2):
        barrier.arrive(3)
    assert not barrier.test_wait(0)  # a waiter is not bound by what it saw before inval


def test_the_representation_shows_the_state() -> None:
    barrier = SharedMemBarrier(2, name="full[0]")
    barrier.expect_bytes(64)

    assert repr(barrier) == (
        "SharedMemBarrier(full[0]: phase 0, 1 of 2 arrivals pending, tx-count 64)"
    )
    assert "not initialised" in repr(SharedMemBarrier(None))
