"""The rules that a launch may relax, by name; docs/emulator_rules.md has the source of each."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from tmaasync._kinds import is_sequence, shown
from tmaasync.emulate.abi import Rule
from tmaasync.errors import ArgumentError

RULES = {
    Rule.CP_ASYNC_AT_EXIT: "a thread ends while its cp.async are in flight",
    Rule.STORE_AT_EXIT: "a thread ends while TMA may still read the source of its store",
    Rule.LOAD_AT_EXIT: "a CTA ends, and nothing has waited for a load into it",
    Rule.BYTES_AT_EXIT: "a CTA ends while a barrier expects bytes, or has more than it expects",
    Rule.WGMMA_AT_EXIT: "a thread ends, and has not waited for its wgmma",
    Rule.EXIT_BEFORE_PEER: "a CTA ends while a peer of its cluster may access its shared memory",
    Rule.INIT_WITHOUT_FENCE: "no fence makes mbarrier.init visible to TMA",
    Rule.WRITE_WITHOUT_PROXY_FENCE: "no proxy fence makes a write visible to TMA or wgmma",
    Rule.MAP_WITHOUT_ACQUIRE: "a tensor map changes, and its reader has not acquired it",
    Rule.POLL_WITHOUT_ACQUIRE: "a flag is polled, and no fence follows before data are read",
    Rule.PLAIN_ACCESS_TO_ATOMIC: "an ordinary access and an atomic operation are not ordered",
    Rule.BLOCK_SCOPE_ATOMIC: "two blocks use an atomic operation whose scope is one block",
    Rule.SAME_VALUE_STORES: "two threads store the same value to the same bytes without an order",
    Rule.READ_ONLY_LOAD: "__ldg() or ld.global.nc reads what the launch has written",
    Rule.UNWRITTEN_SHARED: "shared memory is read that nothing has written",
    Rule.MBARRIER_READ: "a thread or a TMA copy reads the bytes of an mbarrier in use",
    Rule.WAIT_PARITY: "a wait names another parity than 0 and 1",
    Rule.UNWRITTEN_ACCUMULATORS: "wgmma adds to accumulators that nothing has written",
    Rule.WGMMA_REGISTERS: "registers of wgmma are used without a fence or a wait",
    Rule.WGMMA_SWIZZLE: "wgmma reads a tile with another swizzle than its map's",
    Rule.PDL_WAIT: "a launch with pdl=True uses an array ahead of griddepcontrol.wait",
    Rule.SYNCTHREADS_APART: "threads of a warp wait at __syncthreads() of several lines",
    Rule.ELECT_OF_PART: "lanes of a warp have ended when it elects",
    Rule.SHUFFLE_SOURCE: "a shuffle reads from a lane that does not take part",
    Rule.REPLICATED_LOAD: "threads load bytes that one of their block stores without a barrier",
    Rule.OTHER_ARRAY: "a subscript of a pointer parameter leads into another array",
    Rule.TCGEN05_FENCE: "a fence of tcgen05 is missing next to a barrier",
    Rule.TCGEN05_BY_LANES: "several lanes of a warp issue an instruction of tcgen05 for one thread",
    Rule.TCGEN05_AT_EXIT: "a CTA ends while its tcgen05 operations may be in flight",
    Rule.TENSOR_MEMORY_LANES: "tcgen05.ld or tcgen05.st names lanes other than its warp's",
    Rule.TENSOR_MEMORY_GROWTH: "a tcgen05.alloc asks for more columns than the one before",
    Rule.UNWRITTEN_TENSOR_MEMORY: "tensor memory is read that nothing has written",
    Rule.RESPONSE_WITHOUT_PROXY_FENCE: (
        "no proxy fence lies between a read of a response of try_cancel and the next one there"
    ),
    Rule.CTAID_OF_FAILURE: "the block of a response of try_cancel is taken that has no cluster",
    Rule.TCGEN05_PROXY_FENCE: "no proxy fence makes a write visible to tcgen05",
    Rule.TCGEN05_PAIR_START: "a pair allocates before it is known that its other CTA runs",
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
    return Rule(rule).name.lower().replace("_", "-") if rule else None


_BY_NAME = {name: rule for rule in RULES if (name := name_of(rule))}


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
        if name in _BY_NAME:
            continue
        close = difflib.get_close_matches(str(name), _BY_NAME, 1)
        remedy = f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(_BY_NAME)}"
        raise ArgumentError.broken("tolerate", shown(name), "no rule has this name", remedy)
    return frozenset(names)


def bits_of(names: Iterable[str]) -> int:
    """Return one bit for each rule."""
    return sum(1 << _BY_NAME[name] for name in names)
