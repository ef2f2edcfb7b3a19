"""The C++ compiler of this machine, and libraries that are built once for all processes."""

from tmaasync.emulate.toolchain.build_lock import made_once
from tmaasync.emulate.toolchain.compiler import (
    UNIT,
    Compiled,
    Prefix,
    RefusedError,
    can_precompile,
    compile_object,
    compiler_facts,
    environment_folders,
    flags,
    key_facts,
    link,
    precompile,
    reported_if_slow,
    run_compiler,
)

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
    "made_once",
    "precompile",
    "reported_if_slow",
    "run_compiler",
]
