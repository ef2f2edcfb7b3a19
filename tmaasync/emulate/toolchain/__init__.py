"""The C++ compiler of this machine, which builds the emulator's libraries."""

from tmaasync.emulate.toolchain.compile import (
    UNIT,
    Compiled,
    Prefix,
    can_precompile,
    compile_object,
    link,
    precompile,
)
from tmaasync.emulate.toolchain.compiler import (
    RefusedError,
    compiler_facts,
    environment_folders,
    key_facts,
    reported_if_slow,
    run_compiler,
)
from tmaasync.emulate.toolchain.options import flags

__all__ = [
    "UNIT",
    "Compiled",
    "Prefix",
    "RefusedError",
    "can_precompile",
    "compile_object",
    "compiler_facts",
    "environment_folders",
    "flags",
    "key_facts",
    "link",
    "precompile",
    "reported_if_slow",
    "run_compiler",
]
