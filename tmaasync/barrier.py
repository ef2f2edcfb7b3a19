"""The mbarrier protocol in plain Python: arrivals, expected bytes, phases.

In each phase a barrier counts pending arrivals, and expected bytes that have not landed yet (the
tx-count). When both counts reach zero, the phase completes and the next one begins with all its
arrivals pending. A wait identifies a phase by its parity only, so it can refer only to the current
phase or the previous one:

| barrier is in | ``wait(0)`` | ``wait(1)`` |
|---|---|---|
| phase 0 (fresh), 2, 4, ... | waits for this phase | returns at once |
| phase 1, 3, 5, ... | returns at once | waits for this phase |

| call | arrivals | bytes |
|---|---|---|
| ``arrive(n)`` | n arrive | - |
| ``expect_bytes(b)`` | one arrives | b more are expected |
| ``expect_tx(b)`` | - | b more are expected |
| ``complete_tx(b)``, ``complete_transaction(b)``, a TMA load | - | b have landed |

Bytes may land before they are expected: the tx-count is then negative, and the phase stays open as
long as an arrival is pending. (PTX ISA, "Parallel synchronization instructions: mbarrier".)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tmaasync._kinds import check_integers, is_integer, shown
from tmaasync.errors import ProtocolError

__all__ = ["MAX_ARRIVALS", "MAX_TX_COUNT", "ArrivalToken", "BarrierWord", "SharedMemBarrier"]

MAX_ARRIVALS = 2**20 - 1
MAX_TX_COUNT = 2**20 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierWord:
    """The 64-bit state of an initialised barrier; each operation returns the next word.

    >>> word = BarrierWord.for_count(1).expect_bytes(128)
    >>> word.phase, word.missing
    (0, '128 bytes')
    >>> word.complete_tx(128).phase
    1
    """

    count: int
    pending: int
    tx_count: int = 0
    phase: int = 0
    name: str = field(default="barrier", compare=False)

    @classmethod
    def for_count(cls, count: int, name: str = "barrier") -> BarrierWord:
        """Return a fresh word in phase 0, with ``count`` arrivals per phase."""
        check_integers(count=count)
        if not 1 <= count <= MAX_ARRIVALS:
            raise ProtocolError(
                f"{name}: count is {count}; it must be from 1 to {MAX_ARRIVALS}. "
                "Pass the number of arrivals that complete one phase."
            )
        return cls(count=count, pending=count, name=name)

    @property
    def missing(self) -> str:
        """The pending arrivals and bytes of the current phase, as text for a message."""
        arrivals = f"{self.pending} of {self.count} arrivals" if self.pending else ""
        if self.tx_count < 0:
            landed = f"the announcement of {-self.tx_count} bytes that have landed"
        else:
            landed = f"{self.tx_count} bytes" if self.tx_count else ""
        return " and ".join(part for part in (arrivals, landed) if part)

    def has_completed(self, parity: int) -> bool:
        """Return whether a wait on this parity would return."""
        return self.phase & 1 != parity

    def arrive(self, count: int = 1) -> BarrierWord:
        """Count ``count`` arrivals."""
        return self._next(count, 0)

    def expect_bytes(self, size_bytes: int) -> BarrierWord:
        """Expect more bytes and take one arrival, as one operation."""
        return self._next(1, _checked_bytes(self.name, size_bytes))

    def expect_tx(self, size_bytes: int) -> BarrierWord:
        """Expect more bytes without arriving."""
        return self._next(0, _checked_bytes(self.name, size_bytes))

    def complete_tx(self, size_bytes: int) -> BarrierWord:
        """Credit bytes that have landed."""
        return self._next(0, -_checked_bytes(self.name, size_bytes))

    def _next(self, arrivals: int, size_bytes: int) -> BarrierWord:
        pending, tx_count = self.pending - arrivals, self.tx_count + size_bytes
        if pending < 0:
            raise ProtocolError(
                f"{self.name}: an arrival of {arrivals} where {self.pending} of {self.count} are "
                f"pending in phase {self.phase}. Initialise the barrier with the arrivals of "
                "one phase, and wait for the phase before arriving again."
            )
        if not -MAX_TX_COUNT <= tx_count <= MAX_TX_COUNT:
            raise ProtocolError(
                f"{self.name}: tx-count would be {tx_count} in phase {self.phase}; it must stay "
                f"within -{MAX_TX_COUNT} to {MAX_TX_COUNT}. Expect exactly the bytes that the "
                "loads of one phase bring."
            )
        if pending == 0 and tx_count == 0:
            return BarrierWord(
                count=self.count, pending=self.count, phase=self.phase + 1, name=self.name
            )
        return BarrierWord(
            count=self.count, pending=pending, tx_count=tx_count, phase=self.phase, name=self.name
        )


@dataclass(frozen=True, slots=True, eq=False)
class ArrivalToken:
    """The opaque state that an arrival returns: its barrier and its phase."""

    _barrier: SharedMemBarrier
    _phase: int


class SharedMemBarrier:
    """One mbarrier, with the method names of the device's ``SharedMemBarrier``.

    Nothing here blocks or races: one Python thread plays all the roles, and ``waiter`` names the
    role that waits. Behaviour that the hardware leaves undefined raises ``ProtocolError`` and
    leaves the barrier unchanged. A remote arrival in a cluster (``arrive_cluster``) is an
    ``arrive`` on that CTA's object. Memory order and scope do not affect phases, hence the aliases.

    >>> full = SharedMemBarrier(count=1, name="full[0]")
    >>> token = full.expect_bytes(4096)
    >>> full.try_wait(0)
    False
    >>> full.complete_tx(4096)
    >>> full.try_wait(0), full.test_wait(token), full.phase
    (True, True, 1)
    """

    __slots__ = ("_name", "_seen", "_word")

    def __init__(self, count: int | None = 1, *, name: str = "barrier") -> None:
        """Initialise a barrier for ``count`` arrivals per phase; with ``None``, call ``init``."""
        self._name = name
        self._word: BarrierWord | None = None
        self._seen: dict[str, int] = {}
        if count is not None:
            self.init(count)

    def __repr__(self) -> str:
        if self._word is None:
            return f"SharedMemBarrier({self._name}: not initialised)"
        return (
            f"SharedMemBarrier({self._name}: phase {self.phase}, "
            f"{self.pending_arrivals} of {self.count} arrivals pending, tx-count {self.tx_count})"
        )

    @property
    def count(self) -> int:
        """The number of arrivals per phase."""
        return self._live_word().count

    @property
    def phase(self) -> int:
        """The number of phases completed since ``init``, not just its parity."""
        return self._live_word().phase

    @property
    def pending_arrivals(self) -> int:
        """The number of arrivals still pending in the current phase."""
        return self._live_word().pending

    @property
    def tx_count(self) -> int:
        """Bytes expected minus bytes landed in the current phase."""
        return self._live_word().tx_count

    def init(self, count: int = 1) -> None:
        """Begin phase 0, with ``count`` arrivals per phase."""
        if self._word is not None:
            raise ProtocolError(
                f"{self._name}: init of a barrier that is in use (phase {self.phase}). "
                "Call inval() first, or construct it with SharedMemBarrier(None)."
            )
        self._word = BarrierWord.for_count(count, self._name)
        self._seen = {}

    def inval(self) -> None:
        """Invalidate the barrier, so that its memory can be reused."""
        self._live_word()
        self._word = None

    invalidate = inval

    def arrive(self, count: int = 1) -> ArrivalToken:
        """Count ``count`` arrivals; `test_wait` accepts the returned token."""
        word = self._live_word()
        check_integers(count=count)
        if not 1 <= count <= MAX_ARRIVALS:
            raise ProtocolError(
                f"{self._name}: arrive of count {count}; it must be from 1 to {MAX_ARRIVALS}. "
                "Leave out an arrival of zero threads."
            )
        return self._advance(word.arrive(count))

    def expect_bytes(self, size_bytes: int) -> ArrivalToken:
        """Expect bytes in this phase and arrive once (``mbarrier.arrive.expect_tx``)."""
        return self._advance(self._live_word().expect_bytes(size_bytes))

    expect_bytes_relaxed = expect_bytes

    def expect_tx(self, size_bytes: int) -> None:
        """Expect bytes in this phase without arriving (``mbarrier.expect_tx``)."""
        self._advance(self._live_word().expect_tx(size_bytes))

    def complete_tx(self, size_bytes: int) -> None:
        """Credit landed bytes, as a TMA load does, or in place of a load that is left out."""
        self._advance(self._live_word().complete_tx(size_bytes))

    complete_transaction = complete_tx

    def test_wait(self, phase: int | ArrivalToken, *, waiter: str = "the waiter") -> bool:
        """Return whether the phase of this parity, or of this token, has completed.

        ``waiter`` names the role that asks. A role must test every phase in turn, because a parity
        does not distinguish a phase from the one two phases later.
        """
        word = self._live_word()
        if isinstance(phase, ArrivalToken):
            return self._test_token(word, phase)
        asked = self._phase_meant(word, phase)
        seen = self._seen.get(waiter, asked)
        if asked > seen + 1:
            raise ProtocolError(
                f"{self._name}: {waiter} waits on parity {phase}, which now means phase {asked}, "
                f"but last saw phase {seen} complete: phase {seen + 1} was skipped. Wait once for "
                "every phase (step a PipelineState), and arrive only after waiting."
            )
        if asked < word.phase:
            self._seen[waiter] = asked
        return asked < word.phase

    try_wait = test_wait

    def wait(self, phase: int | ArrivalToken, *, waiter: str = "the waiter") -> None:
        """Return if the phase has completed; raise if not, as no other thread can complete it."""
        if not self.test_wait(phase, waiter=waiter):
            word = self._live_word()
            raise ProtocolError(
                f"{self._name}: {waiter} would wait for ever on phase {word.phase}; "
                f"{word.missing} are missing. Let them happen before the wait."
            )

    wait_acquire = wait
    wait_relaxed = wait

    def _live_word(self) -> BarrierWord:
        if self._word is None:
            raise ProtocolError(
                f"{self._name}: used before init() or after inval(). Call init(count) first."
            )
        return self._word

    def _advance(self, word: BarrierWord) -> ArrivalToken:
        token = ArrivalToken(self, self.phase)
        self._word = word
        return token

    def _test_token(self, word: BarrierWord, token: ArrivalToken) -> bool:
        if token._barrier is not self or not 0 <= word.phase - token._phase <= 1:
            raise ProtocolError(
                f"{self._name}: the token is of phase {token._phase} of {token._barrier._name}; "
                f"only phases {word.phase - 1} and {word.phase} of {self._name} differ in parity. "
                "Test a token before the phase after its own completes."
            )
        return token._phase < word.phase

    def _phase_meant(self, word: BarrierWord, parity: int) -> int:
        if not is_integer(parity) or parity not in (0, 1):
            raise ProtocolError(
                f"{self._name}: parity is {shown(parity)}; it must be 0 or 1. Pass "
                "PipelineState.phase, or the phase number modulo 2."
            )
        return word.phase - 1 if word.has_completed(parity) else word.phase


def _checked_bytes(name: str, size_bytes: int) -> int:
    check_integers(size_bytes=size_bytes)
    if not 0 <= size_bytes <= MAX_TX_COUNT:
        raise ProtocolError(
            f"{name}: size_bytes is {size_bytes}; it must be from 0 to {MAX_TX_COUNT}. "
            "Split larger transfers over several phases."
        )
    return int(size_bytes)
