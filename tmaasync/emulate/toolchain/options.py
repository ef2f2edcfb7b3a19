"""The compiler's options for kernels and for the runtime."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from tmaasync.emulate.toolchain.compiler import compiler_facts, is_clang

_FIRST_GCC_WITH_PATTERNS = 12


def flags(*, is_kernel: bool) -> tuple[str, ...]:
    """Return the compiler's options for a kernel or for the runtime.

    The sanitizer inserts calls to the functions of tmaasync_emulate/accesses.hpp; no sanitizer
    runtime is linked.
    """
    if is_kernel:
        marks = ("-ftrivial-auto-var-init=pattern",) if _marks_variables() else ()
        gcc = () if is_clang() else _gcc_kernel()
        return ("-x", "c++", *_COMMON, *_KERNEL, *marks, *gcc, *_sanitizer())
    fast = ("-O1", "-finline-small-functions", *_without(_POINTLESS_PASSES), _GARBAGE_LIMIT)
    return (*_COMMON, *(() if is_clang() else fast), "-fvisibility=hidden")


_COMMON = (
    "-std=c++20",
    "-O2",
    "-w",
    "-Wno-psabi",  # even with -w, g++ adds notes about the ABI of old releases to errors
    "-fPIC",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-U_FORTIFY_SOURCE",
    "-fstack-clash-protection",  # so that no frame skips the guard page below its stack
)
_KERNEL = (
    "-g",
    "-fvisibility-inlines-hidden",
    "-fno-optimize-sibling-calls",  # keep the frame and line of a tail call to the runtime
    "-fno-exceptions",  # as in device code
    "-fno-builtin-printf",  # printf calls go to tmaasync_emulate/c_library.hpp
    # Calls of these go to tmaasync_emulate/accesses.hpp: no sanitizer sees moves in line.
    *("-fno-builtin-memcpy", "-fno-builtin-memmove", "-fno-builtin-memset"),
    "-fstack-protector-strong",  # a write beyond a local array ends the launch
)


def _gcc_kernel() -> tuple[str, ...]:
    # The TLS dialect in which the compiler gets a thread_local's address by a call.
    dialect = "gnu" if platform.machine() in ("x86_64", "AMD64") else "trad"
    return (
        "-fno-extern-tls-init",
        "-fno-gnu-unique",
        f"-mtls-dialect={dialect}",
        # With elision, a returned struct reaches memory without a store that g++ instruments.
        "-fno-elide-constructors",
        "-fno-crossjumping",  # keep equal calls in two branches separate, each with its line
        "-fno-tree-tail-merge",
        "-fno-var-tracking",  # reports name lines and members, not the values of variables
        "-fdata-sections",  # `link` sorts the sections
        # A new local in the stack slot of wgmma's A registers would look like a write to them. The
        # flag costs no measurable time. The largest frame of attention grows from 1600 to 2472
        # bytes, of 128 KiB (g++ 12, 2026-11-28).
        "-fstack-reuse=none",
    )


def _marks_variables() -> bool:
    """Return whether the compiler can mark uninitialised variables (wgmma/execution.cpp)."""
    version = compiler_facts()[1].split()[-1].partition(".")[0]
    return is_clang() or (version.isdecimal() and int(version) >= _FIRST_GCC_WITH_PATTERNS)


# g++ -O1 passes that gain almost nothing in kernel code, which is mostly calls. Without them
# attention compiles in 1.05 s instead of 1.30 s, and runs as fast.
_POINTLESS_PASSES = (
    *("combine-stack-adjustments", "compare-elim", "cprop-registers", "dse", "forward-propagate"),
    *("if-conversion", "if-conversion2", "ipa-profile", "ipa-reference"),
    *("move-loop-invariants", "reorder-blocks", "shrink-wrap", "tree-bit-ccp"),
    *("tree-dse", "tree-pta", "tree-sink", "tree-slsr"),
)
# Three more passes, only for kernels: without the first two of them the runtime's race search takes
# 50 % longer, without the third 9 %.
_POINTLESS_IN_KERNELS = (*_POINTLESS_PASSES, "ipa-pure-const", "tree-ch", "tree-dominator-opts")

# g++ starts garbage collection only at 256 MiB: 10 % less compile time, 490 MiB at most.
_GARBAGE_LIMIT = "--param=ggc-min-heapsize=262144"


def _without(passes: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"-fno-{name}" for name in passes)


def _sanitizer() -> tuple[str, ...]:
    """Return options that turn memory accesses into calls.

    Code around calls has little to optimise: -O1 compiles attention in 1.17 s instead of 1.65 s.
    """
    settings = ("tsan-instrument-func-entry-exit=0", "tsan-distinguish-volatile=1")
    if is_clang():
        own = (*settings, "no-stack-coloring")  # as -fstack-reuse=none of g++
        return ("-fsanitize=thread", *(f"-mllvm=-{setting}" for setting in own))
    fast = ("-O1", "-finline-small-functions", *_without(_POINTLESS_IN_KERNELS))
    return (*fast, "-fsanitize=thread", *(f"--param={setting}" for setting in settings))
