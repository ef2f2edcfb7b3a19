"""Compilers that fail, lie, hang or are none, and text that the locale lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tmaasync import ArgumentError, BackendError, CompileError, Kernel
from tmaasync._source.compile import Source
from tmaasync.emulate import build, toolchain

EMPTY = 'extern "C" __global__ void empty() {}\n'
REMEDY = r"Set CXX to the path of g\+\+ 11 or clang\+\+ 14"


def build_with(compiler: str | Path, monkeypatch: pytest.MonkeyPatch, text: str = EMPTY) -> None:
    monkeypatch.setenv("CXX", str(compiler))
    build(Source(text=text, name="mine.cu"), "empty")


def script(folder: Path, *, versions: str, otherwise: str) -> Path:
    """Write a compiler that consists of these two shell commands."""
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\ncase $1 in --version|-dump*) {versions};; *) {otherwise};; esac\n")
    path.chmod(0o755)
    return path


REAL = shutil.which(os.environ.get("CXX") or "c++") or "c++"


@pytest.mark.parametrize("name", ["true", "false", "echo", "cat"])
def test_a_program_that_is_no_compiler_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BackendError, match=rf"{name}, which reports no version .*{REMEDY}"):
        build_with(shutil.which(name) or name, monkeypatch)


@pytest.mark.parametrize("is_kernel", [False, True])
def test_each_compiler_gets_options_that_it_knows(
    is_kernel: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def options(name: str) -> set[str]:
        versions = f"test $1 != --version || echo -n '{name} version '; echo 17.0.6"
        (tmp_path / name).mkdir()
        compiler = script(tmp_path / name, versions=versions, otherwise="exit 1")
        monkeypatch.setenv("CXX", str(compiler))
        return {*toolchain.flags(is_kernel=is_kernel)}

    clang, gcc = options("clang"), options("g++")

    only_of_gcc = ("--param", "-fstack-reuse", "-mtls-dialect", "-finline-small-functions")
    assert not any(option.startswith(only_of_gcc) for option in clang)
    assert not any(option.startswith("-mllvm") for option in gcc)
    # Two locals never share a stack slot, which would look like a write to wgmma's registers.
    assert ("-mllvm=-no-stack-coloring" in clang) == is_kernel
    assert ("-fstack-reuse=none" in gcc) == is_kernel
    assert ("-fsanitize=thread" in clang & gcc) == is_kernel


@pytest.mark.parametrize("name", ["absent", "folder", "text file", "g++ with a flag"])
def test_what_is_no_program_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
    if name == "text file":
        path.write_text("text")

    with pytest.raises(BackendError, match=rf"no C\+\+ compiler .*{name[:3]}.* without options"):
        build_with(path, monkeypatch)


def test_a_program_for_no_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "compiler"
    path.write_bytes(b"\x7fELF of nothing")
    path.chmod(0o755)

    with pytest.raises(BackendError, match=rf"cannot be started \(Exec format error\)\. {REMEDY}"):
        build_with(path, monkeypatch)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("otherwise", "reason"),
    [
        ("true", rf"reports success and wrote no .*{REMEDY}"),
        ('for last; do :; done; echo text > "$last"', rf"reports success and wrote no .*{REMEDY}"),
        ("kill -9 $$", rf"was ended by signal 9 \(Killed\).*memory.*{REMEDY}"),
        ("kill -TERM $$", r"was ended by signal 15"),
        (
            'echo "c++: fatal error: Killed signal terminated program cc1plus" >&2; false',
            r"was ended by signal 9",
        ),
    ],
)
def test_a_compiler_that_writes_nothing_or_is_killed_is_reported(
    otherwise: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = script(tmp_path, versions=f'exec {REAL} "$@"', otherwise=otherwise)

    with pytest.raises(BackendError, match=reason):
        build_with(compiler, monkeypatch)


def test_a_compiler_that_hangs_is_ended() -> None:
    with pytest.raises(BackendError, match=rf"sleep did not end within 0\.2 s\. {REMEDY}"):
        toolchain.run_compiler(["sleep", "60"], 0.2)


def test_a_linker_error_is_one_of_the_kernel() -> None:
    text = f'extern "C" __attribute__((used)) void __stack_chk_fail() {{}}\n{EMPTY}'

    with pytest.raises(CompileError, match=r"(?s)mine\.cu .* does not link .*multiple def"):
        build(Source(text=text, name="mine.cu"), "empty")


@pytest.mark.parametrize(
    ("declared", "called"),
    [
        ('extern "C" int elsewhere(int);', "elsewhere"),
        ("int elsewhere(int);", r"elsewhere\(int\)"),
        (
            "namespace a { struct B { static int elsewhere(int); }; } using a::B;",
            r"a::B::elsewhere\(int\)",
        ),
    ],
)
def test_an_undefined_function_is_named_as_in_the_source(declared: str, called: str) -> None:
    use = "B::elsewhere(*x)" if "struct B" in declared else "elsewhere(*x)"
    text = f'{declared}\nextern "C" __global__ void k(int* x) {{ *x = {use}; }}\n'

    with pytest.raises(CompileError, match=rf"kernel\.cu calls {called}, which is declared"):
        Kernel(text, "k")(1, 1, (np.zeros(1, np.int32),))


# --- locales --------------------------------------------------------------------------------------

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
PROGRAM = r"""
import os, sys
import numpy as np
from pathlib import Path
from tmaasync import CompileError, EmulatedFault, Kernel

assert sys.getfilesystemencoding() == "ascii"
text = '''// caf\u00e9 \u4f60
#include "h\u00e9ader.cuh"
extern "C" __global__ void k(int* x) {
    if (x[0] == 7) x[1 << 20] = 1;  // \u00fcber
    x[0] = "\u00e9"[1] & 255;
}
'''
def launch(source, **options):
    x = np.zeros(1, np.int32)
    Kernel(source, "k", **options)(1, 1, (x,))
    return int(x[0])

folder = Path(sys.argv[1])
path = folder / os.fsdecode("k\u00e9rnel.cu".encode())
(folder / os.fsdecode("h\u00e9ader.cuh".encode())).write_bytes(b"// latin 1: \xe9\n")
path.write_text(text, encoding="utf-8")
assert launch(path) == 0xa9
assert launch(text, include_dirs=[folder], options=["-DNAME=\u00e9"]) == 0xa9
ptx = 'asm volatile("mov.u32 %0, 3;" : "=r"(x[0])); x[0] = '
path.write_text(text.replace("x[0] = ", ptx), encoding="utf-8")
assert launch(path) == 0xa9
for error, broken in (
    (CompileError, text.replace("x[0] = ", "y\u00e9[0] = ")),
    (EmulatedFault, text.replace("== 7", "== 0")),
):
    path.write_text(broken, encoding="utf-8")
    try:
        launch(path)
    except error as caught:
        assert "k\u00e9rnel.cu:" in str(caught), ascii(str(caught))
    else:
        raise AssertionError(error)
print("works")
"""


@pytest.mark.slow
def test_sources_are_utf8_in_every_locale(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        env={**os.environ, **ASCII},
        check=False,
    )

    assert ran.stdout == b"works\n", ran.stderr.decode()


def test_a_source_in_another_encoding_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.cu"
    path.write_bytes(b"// one\n// caf\xe9\n" + EMPTY.encode())

    with pytest.raises(ArgumentError, match=r"'latin\.cu'; line 2 has the byte 0xe9, .* as UTF-8"):
        Kernel(path, "empty")
    with pytest.raises(ArgumentError, match=r"the text; line 1 has the byte 0xed"):
        Kernel(f"// \udce9\n{EMPTY}", "empty")
