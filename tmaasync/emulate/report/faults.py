"""Write the sentence of a fault from its kind and its facts."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

from tmaasync.emulate.abi import Mention, MentionKind, Operation, text_of
from tmaasync.emulate.report.sentences import SENTENCES
from tmaasync.errors import EmulatedAccess

OPERATIONS = {
    Operation.READ: "ordinary read",
    Operation.WRITE: "ordinary write",
    Operation.ATOMIC: "atomic operation",
    Operation.STMATRIX: "stmatrix",
    Operation.TMA_LOAD: "TMA load",
    Operation.TMA_STORE: "TMA store",
    Operation.TMA_REDUCE: "TMA reduction",
    Operation.WGMMA: "wgmma",
    Operation.BARRIER_INIT: "mbarrier.init",
    Operation.BARRIER_USE: "mbarrier operation",
    Operation.REGISTERS: "use of registers",
    Operation.MAP_READ: "TMA's read of a tensor map",
    Operation.THREAD_COPY: "cp.async",
    Operation.TMA_PUSH: "TMA copy between CTAs",
    Operation.TMA_PUSH_REDUCE: "TMA reduction between CTAs",
    Operation.LDMATRIX: "ldmatrix",
    Operation.BLOCK_ATOMIC: "atomic operation of one block",
    Operation.CLUSTER_RESPONSE: "response of try_cancel",
    Operation.EARLIER_WRITE: EmulatedAccess.EARLIER,
    Operation.TCGEN05_LOAD: "tcgen05.ld",
    Operation.TCGEN05_STORE: "tcgen05.st",
    Operation.TCGEN05_MMA: "tcgen05.mma",
    Operation.TCGEN05_COPY: "tcgen05.cp",
    Operation.TCGEN05_SHIFT: "tcgen05.shift",
    Operation.TCGEN05_DEALLOC: "tcgen05.dealloc",
}
_SENTENCES = tuple(SENTENCES.values())


def written(
    kind: int, facts: Iterator[Mention], texts: int | None, name: Callable[[MentionKind, int], str]
) -> str:
    """Return the sentence of a fault, or a part of one.

    Args:
        kind: The runtime's ``FaultKind``.
        facts: The facts of the sentence, which are consumed, and perhaps more.
        texts: The address of the facts' texts.
        name: Returns the name of an address, a barrier or a line of the kernel.
    """

    def fact() -> str:
        one = next(facts)
        if one.kind == MentionKind.PHRASE:
            return written(one.value, facts, texts, name)
        if one.kind == MentionKind.LIST:
            return ", ".join([fact() for _ in range(one.value)])
        if one.kind == MentionKind.TEXT:
            return text_of(ctypes.string_at((texts or 0) + one.value))
        plain = _PLAIN.get(one.kind)
        return name(MentionKind(one.kind), one.value) if plain is None else plain(one.value)

    sentence = _SENTENCES[kind]
    return sentence.format(*[fact() for _ in range(sentence.count("{}"))])


def _lanes(mask: int) -> str:
    lanes = _members(mask)
    first, last = lanes[0], lanes[-1]
    if len(lanes) == 1:
        return f"lane {first}"
    if last - first + 1 == len(lanes):
        return f"lanes {first} to {last}"
    return f"lanes {', '.join(map(str, lanes))}"


def _warps(mask: int) -> str:
    warps = _members(mask)
    return f"{'warps' if len(warps) > 1 else 'warp'} {', '.join(map(str, warps))}"


def _members(mask: int) -> list[int]:
    return [member for member in range(mask.bit_length()) if mask >> member & 1]


_PLAIN: dict[int, Callable[[int], str]] = {
    MentionKind.NUMERAL: lambda value: str(ctypes.c_int64(value).value),
    MentionKind.UNSIGNED: str,
    MentionKind.ACCESS: lambda writes: "a write" if writes else "a read",
    MentionKind.OPERATION: lambda value: OPERATIONS[Operation(value)],
    MentionKind.LANES: _lanes,
    MentionKind.WARPS: _warps,
}
