"""The rules that a launch may relax, by name; docs/emulator_rules.md has the source of each."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from tmaasync._kinds import is_sequence, shown
from tmaasync.emulate.abi import RULE_NAMES
from tmaasync.errors import ArgumentError

RULES = {
    "cp-async-at-exit": "a thread ends while its cp.async are in flight",
    "store-at-exit": "a thread ends while TMA may still read the source of its store",
    "load-at-exit": "a CTA ends, and nothing has waited for a load into it",
    "bytes-at-exit": "a CTA ends while a barrier expects bytes, or has more than it expects",
    "wgmma-at-exit": "a thread ends, and has not waited for its wgmma",
    "exit-before-peer": "a CTA ends while a peer of its cluster may access its shared memory",
    "init-without-fence": "no fence makes mbarrier.init visible to TMA",
    "write-without-proxy-fence": "no proxy fence makes a write visible to TMA or wgmma",
    "map-without-acquire": "a tensor map changes, and its reader has not acquired it",
    "poll-without-acquire": "a flag is polled, and no fence follows before bytes are read again",
    "plain-access-to-atomic": "an ordinary access and an atomic operation are not ordered",
    "block-scope-atomic": "two blocks use an atomic operation whose scope is one block",
    "same-value-stores": "two threads store the same value to the same bytes without an order",
    "read-only-load": "__ldg() or ld.global.nc reads what the launch has written",
    "unwritten-shared": "shared memory is read that nothing has written",
    "mbarrier-read": "a thread or a TMA copy reads the bytes of an mbarrier in use",
    "wait-parity": "a wait names another parity than 0 and 1",
    "unwritten-accumulators": "wgmma adds to accumulators that nothing has written",
    "wgmma-registers": "registers of wgmma are used without a fence or a wait",
    "wgmma-swizzle": "wgmma reads a tile with another swizzle than its map's",
    "pdl-wait": "a launch with pdl=True uses an array ahead of griddepcontrol.wait",
    "syncthreads-apart": "threads of a warp wait at __syncthreads() of several lines",
    "elect-of-part": "lanes of a warp have ended when it elects",
    "shuffle-source": "a shuffle reads from a lane that does not take part",
    "replicated-load": "threads load bytes that one of their block stores without a barrier",
    "other-array": "a subscript of a pointer parameter leads into another array",
    "tcgen05-fence": "a fence of tcgen05 is missing next to a barrier",
    "tcgen05-by-lanes": "several lanes of a warp issue an instruction of tcgen05 for one thread",
    "tcgen05-at-exit": "a CTA ends while its tcgen05 operations may be in flight",
    "tensor-memory-lanes": "tcgen05.ld or tcgen05.st names lanes other than its warp's",
    "tensor-memory-growth": "a tcgen05.alloc asks for more columns than the one before",
    "unwritten-tensor-memory": "tensor memory is read that nothing has written",
    "response-without-proxy-fence": (
        "no proxy fence lies between a read of a response of try_cancel and the next one there"
    ),
    "ctaid-of-failure": "the block of a response of try_cancel is taken that has no cluster",
    "tcgen05-proxy-fence": "no proxy fence makes a write visible to tcgen05",
    "tcgen05-pair-start": "a pair allocates before it is known that its other CTA runs",
}
"""A rule is broken when this happens."""


OF_COMPILERS = frozenset(
    {"init-without-fence", "replicated-load", "same-value-stores", "wait-parity"}
)
"""Rules that compilers of PTX break by design, and whose source has no place for a remedy.

Triton issues TMA loads after ``mbarrier.init`` and ``bar.sync``, without a fence. Several warps of
its replicated layouts store one value, and each thread loads a scalar that one of them stores. The
waits of its warp-specialised loops name parity -1 for 1. A launch of a PTX module notes them by
default."""

UNPUNISHED = frozenset({"tcgen05-fence", "tcgen05-pair-start", "tcgen05-proxy-fence"})
"""Rules that public kernels break and that chips do not punish as far as known.

Both fences of tcgen05 compile to no instruction. CUTLASS's tutorial 01 for Blackwell multiplies
what threads have stored, after ``__syncthreads()`` alone. A launch notes these rules by default,
and a full search for races reports them."""

UNPUNISHED_BY_BLACKWELL = frozenset({"init-without-fence"})
"""Rules that chips with tensor memory do not punish either: CUTLASS's tutorials break this one."""


def name_of(rule: int) -> str | None:
    """Return the name of a rule; None for no rule."""
    return RULE_NAMES[rule] if rule else None


def checked(names: Collection[str]) -> frozenset[str]:
    """Return the names of rules.

    Raises:
        ArgumentError: They are no collection of names, or no rule has one of them.
    """
    if isinstance(names, str) or not (is_sequence(names) or isinstance(names, (set, frozenset))):
        raise ArgumentError.broken(
            "tolerate", shown(names), "it must be a set of names", 'Pass {"exit-before-peer"}'
        )
    for name in names:
        if name in RULES:
            continue
        close = difflib.get_close_matches(str(name), RULES, 1)
        remedy = f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(RULES)}"
        raise ArgumentError.broken("tolerate", shown(name), "no rule has this name", remedy)
    return frozenset(names)


def bits_of(names: Iterable[str]) -> int:
    """Return one bit for each rule."""
    return sum(1 << RULE_NAMES.index(name) for name in names)
