"""Threads that issue bulk copies, and their waits for stores."""

from __future__ import annotations

from collections.abc import Iterator

from tmaasync.lint.code import Code, is_bulk_copy, is_store, reads_shared
from tmaasync.lint.finding import Finding
from tmaasync.lint.ptx import Instruction

__all__ = ["EVERY_THREAD", "PENDING", "copies_by_all", "pending_groups"]

EVERY_THREAD = "copy-by-every-thread"
PENDING = "exit-with-stores-pending"


def copies_by_all(code: Code) -> Iterator[Finding]:
    """Find bulk copies that every thread of the block issues."""
    if code.calls or _is_for_one_thread(code):
        return
    for index, copy in code.find(is_bulk_copy):
        if not _is_predicated(code, copy) and not _is_guarded(code, index):
            yield code.finding(
                EVERY_THREAD,
                copy,
                f"every thread of the block issues this bulk copy{_of_buffer(code, copy)}: no "
                "branch before it depends on elect.sync or a thread's index.",
                "Put it under elect() in one warp, or under threadIdx.x == 0; a block of "
                "one thread declares __launch_bounds__(1).",
            )


def _of_buffer(code: Code, copy: Instruction) -> str:
    """Return "of" or "into" and the name of the buffer; "" if it has none."""
    is_read = reads_shared(copy)
    name = code.member(copy.operands[1 if is_read else 0])
    return "" if name is None else f" {'of' if is_read else 'into'} {name}"


def pending_groups(code: Code) -> Iterator[Finding]:
    """Find bulk stores that the kernel's end may precede."""
    if code.calls:
        return
    for index, store in code.find(is_store):
        after = [code.function.instructions[one] for one in code.flow.reached(index)]
        remedy = _missing(code, after)
        if remedy:
            yield code.finding(
                PENDING,
                store,
                f"the kernel may end before TMA has read "
                f"{code.member(store.operands[1]) or 'this tile from shared memory'}, which is "
                "then lost.",
                remedy,
            )


def _missing(code: Code, after: list[Instruction]) -> str | None:
    """Return the call that is missing after a store followed by these instructions."""
    if not any(map(_is_commit, after)):
        return "Call commit_group() after it, and wait_group_read<0>() before the kernel ends."
    waits = [one for one in after if one.has("bulk", "wait_group")]
    if not waits:
        return "Call wait_group_read<0>() before the kernel ends."
    is_open = all(wait.operands[0] != "0" for wait in waits)
    if is_open and not _commits_empty_groups(code):
        least = min(int(wait.operands[0], 0) for wait in waits)
        return f"Call wait_group_read<0>() before the kernel ends; the least count here is {least}."
    return None


def _commits_empty_groups(code: Code) -> bool:
    """Look for a commit after another with no store between, which pushes older groups out."""
    instructions = code.function.instructions
    return any(
        _is_commit(instructions[index])
        for start, _ in code.find(_is_commit)
        for index in code.flow.reached(start, stops=is_store)
    )


def _is_commit(instruction: Instruction) -> bool:
    return instruction.has("bulk", "commit_group")


def _is_for_one_thread(code: Code) -> bool:
    """True if the block has one thread: by its launch bounds, or because nothing depends on it.

    Where no thread asks for its index nor waits for another, more than one would be of no use.
    """
    if code.function.max_threads is not None:
        return code.function.max_threads == 1
    return not any(
        one.opcode.startswith(("elect.sync", "bar", "shfl"))
        or any(name.startswith(_THREADS) for name in one.reads)
        for one in code.function.instructions
    )


_THREADS = ("%tid", "%ntid", "%laneid", "%warpid")


def _is_predicated(code: Code, instruction: Instruction) -> bool:
    guard = instruction.guard
    return guard is not None and code.depends_on_thread(guard.lstrip("!"))


def _is_guarded(code: Code, index: int) -> bool:
    """True if some branch by threads leads to the instruction on one side only.

    In a loop around both, on one side until the branch is reached again. A loop that every thread
    leaves before the instruction, after its own number of iterations, does not count.
    """
    flow = code.flow
    block = flow.block_of(index)
    before = flow.blocks_before(block)
    for number in before - {block}:
        followers = flow.blocks[number].followers
        last = code.function.instructions[flow.blocks[number].stop - 1]
        if not _is_predicated(code, last):
            continue
        is_in_loop = block in flow.blocks_before(number)
        leading = flow.blocks_before(block, avoiding=number) if is_in_loop else before
        if len(followers) < 2 or not leading.issuperset(followers):
            return True
    return False
