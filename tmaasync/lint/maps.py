"""State space of a copy's tensor map."""

from __future__ import annotations

from collections.abc import Iterator

from tmaasync.lint.code import Code, map_operand
from tmaasync.lint.finding import Finding
from tmaasync.lint.ptx import Instruction

__all__ = ["LOCAL", "UNFENCED", "local_maps", "unfenced_maps"]

LOCAL = "map-not-grid-constant"
UNFENCED = "map-without-acquire"


def local_maps(code: Code) -> Iterator[Finding]:
    """Find maps that the compiler copied to local memory, as it does with plain parameters."""
    for _, copy in code.find(_uses_map):
        if _space(code, copy) == "local":
            yield code.finding(
                LOCAL,
                copy,
                "the tensor map lies in local memory, a copy for each thread, from which TMA "
                "cannot read it.",
                "Declare the kernel's parameter const __grid_constant__ and pass the map on by "
                "reference.",
            )


def unfenced_maps(code: Code) -> Iterator[Finding]:
    """Find maps in global memory without an acquire before the copy."""
    if code.calls:
        return
    fenced = {index for start, _ in code.find(_is_acquire) for index in code.flow.reached(start)}
    for index, copy in code.find(_uses_map):
        if index not in fenced and _space(code, copy) == "global":
            yield code.finding(
                UNFENCED,
                copy,
                "the tensor map lies in global memory and no fence.proxy.tensormap acquire comes "
                "before, so that TMA may use an older map from its cache.",
                "Call tensormap_fence_acquire() of the map, or pass the map as a const "
                "__grid_constant__ parameter.",
            )


def _uses_map(instruction: Instruction) -> bool:
    return map_operand(instruction) is not None


def _is_acquire(instruction: Instruction) -> bool:
    return instruction.opcode.startswith("fence.proxy.tensormap") and instruction.has("acquire")


def _space(code: Code, copy: Instruction) -> str | None:
    """Return ``local``, ``global``, or None for another or an unknown space."""
    operand = map_operand(copy) or ""
    base = code.values.base(operand)
    sources, definitions = code.values.origins(base, sums_only=True)
    casts = {one.opcode.split(".")[1] for one in definitions if one.opcode.startswith("cvta.")}
    if "local" in casts or any(name.startswith("__local_depot") for name in sources):
        return "local"
    if casts & {"param", "const"}:
        return None
    is_pointer = any(one.opcode in _POINTERS for one in definitions)
    return "global" if is_pointer or "global" in casts else None


_POINTERS = ("ld.param.u64", "ld.param.b64")
