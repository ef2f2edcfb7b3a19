"""The result of the front ends: a library with a kernel, the facts about it, and its calls."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import ctypes
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tmaasync._source.compile import Parameter, Source
from tmaasync._source.entries import entry_names, function_name
from tmaasync._source.symbols import demangled
from tmaasync.emulate.abi import Interpreter, ParameterFacts, Report
from tmaasync.emulate.chips import Chip
from tmaasync.emulate.runtime_library import build_runtime
from tmaasync.errors import BackendError, CompileError
from tmaasync.registers import launch_registers

EXPORTED = {
    "__launch_bounds__": ("tmaasync_emulate_max_threads", "tmaasync_emulate_min_blocks"),
    "__cluster_dims__": tuple(f"tmaasync_emulate_cluster_{side}" for side in "xyz"),
}
"""The constants of a library with the values of its entry's attributes."""


@dataclass(frozen=True)
class EmulatedProgram:
    """One ``__global__`` function, compiled for the host and loaded."""

    path: Path
    name: str
    source: Source = field(repr=False)
    chip: Chip = field(repr=False)
    parameters: tuple[Parameter, ...]
    shared_bytes: int | None
    max_threads: int | None  # from __launch_bounds__
    cluster: tuple[int, int, int] | None  # from __cluster_dims__
    registers: int  # initial registers per thread; 0 if only the compiler knows
    static_bytes: int  # static shared memory
    library: Any = field(repr=False)
    runtime: Any = field(repr=False)

    def address_of(self, offset: int) -> int:
        """Return the memory address for an offset in the library's file."""
        loaded = ctypes.cast(self.library.tmaasync_emulate_call, ctypes.c_void_p).value
        begin = self.runtime.tmaasync_emulate_library_address
        begin.restype, begin.argtypes = ctypes.c_uint64, (ctypes.c_void_p,)
        return int(begin(loaded)) + offset


_RUNTIMES: dict[str, Any] = {}


def loaded_runtime(path: Path) -> Any:
    """Return the runtime's library, loaded once."""
    # Keyed by name, like the dynamic loader for kernel libraries: copies in two caches are one.
    if path.name not in _RUNTIMES:
        try:
            # A call begins and ends with the GIL, and raises the exception of a handler.
            _RUNTIMES[path.name] = ctypes.PyDLL(str(path))
        except OSError as error:
            remedy = (
                "If its folder is mounted noexec, set TMAASYNC_CACHE_DIR to a folder of your own"
            )
            if "undefined symbol" in str(error):  # of C++'s own library, which gcc does not link
                remedy = "Set CXX to g++ or clang++: gcc and clang leave out C++'s library"
            raise BackendError(f"the emulator cannot be loaded: {error}. {remedy}.") from None
    return _RUNTIMES[path.name]


def loaded_program(path: Path, name: str, source: Source, chip: Chip) -> EmulatedProgram:
    """Load the library of a kernel, and read the facts that it exports."""
    # Before the library, which refers to the runtime by name.
    runtime = loaded_runtime(build_runtime().library)
    library = _opened_kernel(path, source)
    all_static = runtime.tmaasync_emulate_static_bytes(library.tmaasync_emulate_call)
    facts = ctypes.POINTER(ParameterFacts)()
    count = library.tmaasync_emulate_parameters(ctypes.byref(facts))
    max_threads, min_blocks, *cluster = (
        _constant(library, constant) for names in EXPORTED.values() for constant in names
    )
    return EmulatedProgram(
        path=path,
        name=name,
        source=source,
        chip=chip,
        parameters=tuple(_parameter(facts[index]) for index in range(count)),
        shared_bytes=_constant(library, f"{function_name(name)}_shared_bytes"),
        max_threads=max_threads,
        cluster=None if cluster[0] is None else (cluster[0], cluster[1] or 1, cluster[2] or 1),
        registers=_launch_registers(source, max_threads, min_blocks),
        static_bytes=_static_shared(source, name, chip, all_static),
        library=library,
        runtime=runtime,
    )


def _static_shared(source: Source, name: str, chip: Chip, bytes_of_all: int) -> int:
    """Return the bytes of static shared memory; reject a size that ptxas rejects.

    For several kernels in one source only their sum is known.
    """
    is_alone, limit = len(entry_names(source.text)) == 1, chip.static_shared_bytes
    if bytes_of_all <= limit * (1 if is_alone else 2):
        return min(bytes_of_all, limit)
    kernels = name if is_alone else "its kernels"
    message = (
        f"{source.name} declares {bytes_of_all} bytes of static shared memory or more in "
        f"{kernels}; a kernel has at most {limit}. Declare dynamic shared "
        "memory, extern __shared__ or dynamic_shared<T>(), and pass its bytes as shared_mem."
    )
    raise CompileError(message, message)


_MISSING = re.compile(r"undefined symbol: (\w+)")


def _opened_kernel(path: Path, source: Source) -> ctypes.CDLL:
    try:
        return _opened(path)
    except BackendError as error:
        missing = _MISSING.search(str(error))
        if missing is None:
            raise
        what = demangled(missing[1])
        message = (
            f"{source.name} calls {what}, which is declared but not on the CPU. Define "
            "it as a __device__ function, call another function, or pass arrays on a GPU."
        )
        raise CompileError(message, str(error), [what]) from None


def _opened(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendError(
            f"a library that the C++ compiler made for the CPU cannot be loaded ({error}). Set CXX "
            "to a C++ compiler for this machine, such as g++, and clear the cache: tmaasync cache "
            "--clear."
        ) from None


def _parameter(facts: ParameterFacts) -> Parameter:
    kind = facts.kind.decode()
    return Parameter("struct" if kind == "S" else kind, facts.size_bytes)


def _constant(library: ctypes.CDLL, name: str) -> int | None:
    try:
        return ctypes.c_int.in_dll(library, name).value
    except ValueError:
        return None


def _launch_registers(source: Source, max_threads: int | None, min_blocks: int | None) -> int:
    if max_threads is None or any("maxrregcount" in option for option in source.options):
        return 0
    return launch_registers(max_threads * max(1, min_blocks or 1))


# --- calls of the runtime ----------------------------------------------------------------------


def _interpreter(*, runs_handlers: bool, stops_at_interrupt: bool) -> Any:
    python = ctypes.pythonapi
    functions = (python.PyEval_SaveThread, python.PyEval_RestoreThread, python.PyErr_CheckSignals)
    addresses = (ctypes.cast(one, ctypes.c_void_p) for one in functions)
    return ctypes.byref(Interpreter(*addresses, runs_handlers, stops_at_interrupt))


_RUNS_HANDLERS = _interpreter(runs_handlers=True, stops_at_interrupt=False)
_STOPS_AT_INTERRUPT = _interpreter(runs_handlers=False, stops_at_interrupt=True)
_HEEDS_NOTHING = _interpreter(runs_handlers=False, stops_at_interrupt=False)

# signal.getsignal takes 2 us, because it makes enums; this one takes 0.04.
_handler = _signal.getsignal
_OTHER_SIGNALS = tuple(map(int, signal.valid_signals() - {signal.SIGINT}))


def _current_interpreter() -> Any:
    """Return how the calling thread heeds signals during a call of the runtime.

    Only the main thread runs handlers, and without handlers of the program there is only Ctrl-C.
    """
    interrupt = _handler(signal.SIGINT)
    stops = interrupt is signal.default_int_handler
    if threading.get_ident() == threading.main_thread().ident:
        is_own = callable(interrupt) and not stops
        if is_own or any(map(callable, map(_handler, _OTHER_SIGNALS))):
            return _RUNS_HANDLERS
    return _STOPS_AT_INTERRUPT if stops else _HEEDS_NOTHING


def heeding_signals(function: Any, *arguments: Any) -> int | None:
    """Call a function of the runtime, without its last argument, the interpreter.

    In the main thread the program's signal handlers run during the call. If one raises an
    exception, the call ends early and raises it; so does Ctrl-C.
    """
    function.restype = ctypes.c_void_p
    address: int | None = function(*arguments, _current_interpreter())
    return address


@contextlib.contextmanager
def taken_report(runtime: Any, address: int) -> Iterator[Report]:
    """Return the runtime's report of a failed launch, and free it at the end of the ``with``."""
    try:
        yield Report.from_address(address)
    finally:
        runtime.tmaasync_emulate_free_report(ctypes.c_void_p(address))
