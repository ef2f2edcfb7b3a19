"""The most likely causes of races of tcgen05: in tensor memory, and on its operands in shared."""

from __future__ import annotations

from dataclasses import dataclass

_MMA, _COPY, _SHIFT = "tcgen05.mma", "tcgen05.cp", "tcgen05.shift"
_LOAD, _STORE, _DEALLOC = "tcgen05.ld", "tcgen05.st", "tcgen05.dealloc"
_BEFORE = "tcgen05.fence::before_thread_sync"
_AFTER = "tcgen05.fence::after_thread_sync"


@dataclass(frozen=True, slots=True)
class TensorCause:
    """A cause, and the operations and facts that it needs; None matches every operation."""

    before: str | None
    after: str | None
    cause: str
    needs: tuple[str, ...] = ("is_tensor",)
    lacks: tuple[str, ...] = ()


_COMMIT = (
    "Commit it with tcgen05.commit, wait on that mbarrier, and then execute "
    f"{_AFTER} before the other access"
)

# The first that matches applies.
TENSOR_CAUSES = (
    TensorCause(
        _LOAD,
        _DEALLOC,
        "the columns are deallocated while a warp may not have come to its tcgen05.ld. Let all "
        "warps that access them synchronise with the one that deallocates",
    ),
    TensorCause(
        _STORE,
        _DEALLOC,
        "the columns are deallocated while tcgen05.st may be in flight. Its warp executes "
        "tcgen05.wait::st, and then all synchronise with the warp that deallocates",
    ),
    TensorCause(
        None,
        _DEALLOC,
        "the columns are deallocated while an operation of tcgen05 may be in flight. Commit it "
        "with tcgen05.commit, and let the warp that deallocates wait on that mbarrier, or "
        "synchronise with a thread that has waited",
    ),
    TensorCause(
        None,
        None,
        "a barrier orders the two, and tcgen05 needs its fence after the wait: the thread that "
        f"issues the second executes {_AFTER} between the wait and the instruction",
        ("is_tensor", "lacks_tensor_after"),
    ),
    TensorCause(
        None,
        None,
        "a barrier orders the two, and tcgen05 needs its fences around the barrier: after the "
        f"first, and after its tcgen05.wait if it has one, its thread executes {_BEFORE} and "
        f"then arrives; the other waits and then executes {_AFTER}",
        ("is_tensor", "lacks_tensor_before"),
    ),
    TensorCause(
        _MMA,
        _MMA,
        "the tensor core executes two tcgen05.mma in order only if they have the same "
        "accumulators, shape and kind. Commit the first with tcgen05.commit, wait on that mbarrier "
        f"and execute {_AFTER}, or use other columns",
        ("is_tensor", "is_issued_before"),
    ),
    TensorCause(
        _LOAD,
        None,
        "tcgen05.ld may still read the columns. Its warp executes tcgen05.wait::ld and then "
        f"{_BEFORE}, and arrives on a barrier; the thread that writes waits and executes {_AFTER}",
    ),
    TensorCause(
        _STORE,
        None,
        "tcgen05.st may not have written the columns. Its warp executes tcgen05.wait::st and then "
        f"{_BEFORE}, and arrives on a barrier; the thread that issues the other access waits and "
        f"executes {_AFTER}",
    ),
    *(
        TensorCause(operation, None, f"{operation} may not have completed. {_COMMIT}")
        for operation in (_MMA, _COPY, _SHIFT)
    ),
    TensorCause(
        None,
        None,
        f"nothing orders the two. Commit or wait for the first, execute {_BEFORE}, and "
        f"synchronise; then execute {_AFTER}",
    ),
    *(
        cause
        for operation in (_MMA, _COPY)
        for cause in (
            TensorCause(
                None,
                operation,
                f"the write was not made visible to {operation}, which reads by the async proxy. "
                "Every writing thread calls fence_async_view_proxy() (fence.proxy.async) after it "
                "and before the barrier",
                ("lacks_fence",),
            ),
            TensorCause(
                operation,
                None,
                f"{operation} is issued before the write, which is the first to these bytes. Every "
                "writing thread calls fence_async_view_proxy() after it, and then synchronises "
                "with the thread that issues the instruction",
                ("was_unwritten",),
            ),
            TensorCause(
                operation,
                None,
                f"{operation} may still be reading the stage. Commit it with tcgen05.commit, and "
                "wait on that mbarrier before the stage is written again",
                (),
            ),
        )
    ),
)
