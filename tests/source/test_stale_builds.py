"""No build is older than what it was compiled from, on both back ends.

A kernel's ``shared_bytes`` come from its source's constant of that name, so they tell which text of
a header was compiled.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tmaasync._source.compile import Source, compile_source
from tmaasync.emulate import build
from tmaasync.kernel.source import source_of

KERNEL = """
extern "C" __device__ const int k_shared_bytes = VALUE;
extern "C" __global__ void k() {}
"""
Value = Callable[[Source], int | None]


def on_gpu(source: Source) -> int | None:
    return compile_source(source, "sm_90").entries["k"].shared_bytes


def on_cpu(source: Source) -> int | None:
    return build(source, "k").shared_bytes


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Value:
    monkeypatch.setenv("TMAASYNC_CACHE_DIR", str(tmp_path / "cache"))
    return on_gpu


@pytest.fixture(params=["gpu", "cpu"])
def value(request: pytest.FixtureRequest) -> Value:
    """Both back ends; the CPU's in the cache of all tests, which has the emulator's runtime."""
    if request.param == "cpu":
        return on_cpu
    return request.getfixturevalue("gpu")  # type: ignore[no-any-return]


def define(path: Path, value: int) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#define VALUE {value}\n")


def text_of(directive: str, *folders: Path, options: tuple[str, ...] = ()) -> Source:
    return Source(text=directive + KERNEL, name="k.cu", include_dirs=folders, options=options)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "directive",
    [
        '#include "{folder}/a.cuh"',
        "#include <{folder}/a.cuh>",
        "/* why\n */ #include <a.cuh>",
        "# /**/ include /* why */ <a.cuh>",
        "#include/**/<a.cuh>",
        "%:include <a.cuh>",
        "#inc\\\nlude <a.\\\ncuh>",
        '#include "sub/../a.cuh"',
        "\f#\tinclude <a.cuh>\r",
        '#include "outer.cuh"',
        'const char* s = "/*";\n#include <a.cuh>\n// */',
    ],
)
def test_an_edited_header_is_compiled_anew_however_it_is_included(
    directive: str, gpu: Value, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    (folder / "sub").mkdir(parents=True)
    (folder / "outer.cuh").write_text('#include "sub/inner.cuh"\n')
    (folder / "sub" / "inner.cuh").write_text('#include "../a.cuh"\n')
    source = text_of(directive.format(folder=folder), folder)

    for number in (1, 2, 1):
        define(folder / "a.cuh", number)
        assert gpu(source) == number


def test_an_edit_that_keeps_size_and_time_is_noticed(gpu: Value, tmp_path: Path) -> None:
    header = tmp_path / "a.cuh"
    source = text_of("#include <a.cuh>", tmp_path)
    for number in (1, 2, 3):
        define(header, number)
        os.utime(header, ns=(10**18, 10**18))
        assert gpu(source) == number


@pytest.mark.parametrize(
    "test",
    [
        "#if __has_include(<new.cuh>)",
        '#if /* why */ __has_include ( "new.cuh" )',
        "#if defined(__has_include) && __has_include(<new.cuh>)",
        "#define HAS(name) __has_include(name)\n#if HAS(<new.cuh>)",
        "#define NEW <new.cuh>\n#if __has_include(NEW)",
        "#define HAS(name) __has_include(name)\n#define NEW <new.cuh>\n#if HAS(NEW)",
        "#if __has_include /* why\n */ (<new.cuh>)",
        "#if 0\n#elif __has_include(<gone.cuh>) || __has_include(<new.cuh>)",
    ],
)
def test_a_header_that_appears_is_noticed_by_what_tests_for_it(
    test: str, gpu: Value, tmp_path: Path
) -> None:
    source = text_of(f"{test}\n#define VALUE 2\n#else\n#define VALUE 1\n#endif", tmp_path)

    assert gpu(source) == 1
    (tmp_path / "new.cuh").touch()
    assert gpu(source) == 2
    (tmp_path / "new.cuh").unlink()
    assert gpu(source) == 1


def test_the_cpu_notices_a_header_whose_name_is_a_macro_in_a_test(tmp_path: Path) -> None:
    test = "#define NEW <new.cuh>\n#if __has_include(NEW)"
    source = text_of(f"{test}\n#define VALUE 2\n#else\n#define VALUE 1\n#endif", tmp_path)

    assert on_cpu(source) == 1
    (tmp_path / "new.cuh").touch()
    assert on_cpu(source) == 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize("option", ["-I{}", "-I+{}", "-I {}", "-I={}", "--include-path={}"])
def test_a_folder_among_the_options_has_its_own_build(
    option: str, value: Value, tmp_path: Path
) -> None:
    for number in (1, 2):
        folder = tmp_path / f"{number}"
        define(folder / "a.cuh", number)
        options = tuple(option.format(folder).split("+"))
        assert value(text_of("#include <a.cuh>", options=options)) == number


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "options",
    [
        *("-DVALUE={}", "-D+VALUE={}", "-D VALUE={}", "-D=VALUE={}", "--define-macro=VALUE={}"),
        *("--define-macro+VALUE={}", "-DVALUE=0+-U+VALUE+-DVALUE={}"),
    ],
)
def test_a_definition_among_the_options_is_read_in_every_form(options: str, value: Value) -> None:
    for number in (1, 2):
        words = tuple(options.format(number).split("+"))
        assert value(text_of("", options=words)) == number


@pytest.mark.parametrize("option", [["-include={}"], ["-include", "{}"], ["--pre-include={}"]])
def test_a_header_among_the_options_is_compiled_and_part_of_the_key(
    option: list[str], value: Value, tmp_path: Path
) -> None:
    source = text_of("", options=tuple(word.format(tmp_path / "a.cuh") for word in option))
    for number in (1, 2):
        define(tmp_path / "a.cuh", number)
        assert value(source) == number


def test_a_header_that_comes_earlier_on_the_path_is_taken(value: Value, tmp_path: Path) -> None:
    early, late = tmp_path / "early", tmp_path / "late"
    early.mkdir()
    define(late / "a.cuh", 1)
    source = text_of("#include <a.cuh>", early, late)

    assert value(source) == 1
    define(early / "a.cuh", 2)
    assert value(source) == 2
    (early / "a.cuh").unlink()
    assert value(source) == 1


def test_a_folder_that_is_a_link_is_followed_each_time(value: Value, tmp_path: Path) -> None:
    link = tmp_path / "link"
    for number in (1, 2):
        define(tmp_path / f"{number}" / "a.cuh", number)
        link.unlink(missing_ok=True)
        link.symlink_to(f"{number}")
        assert value(text_of("#include <a.cuh>", link)) == number


def test_a_header_may_have_any_name(value: Value, tmp_path: Path) -> None:
    header = tmp_path / "a b$#'%é" / "c $d#.cuh"
    source = text_of(f'#define HEADER "{header}"\n#include HEADER')
    for number in (1, 2):
        define(header, number)
        assert value(source) == number


def test_nvrtc_finds_a_texts_header_in_the_working_folder_and_a_files_next_to_it(
    gpu: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, kernel = tmp_path / "elsewhere", tmp_path / "mine" / "k.cu"
    define(elsewhere / "a.cuh", 1)
    define(kernel.parent / "a.cuh", 3)
    kernel.write_text(f'#include "a.cuh"{KERNEL}')
    monkeypatch.chdir(elsewhere)

    assert gpu(text_of('#include "a.cuh"')) == 1
    assert gpu(source_of(kernel)) == 3
    define(elsewhere / "a.cuh", 2)
    assert gpu(text_of('#include "a.cuh"')) == 2


def test_a_header_finds_the_headers_next_to_it(value: Value, tmp_path: Path) -> None:
    kernel, headers = tmp_path / "mine" / "k.cu", tmp_path / "headers"
    headers.mkdir()
    define(headers / "inner" / "b.cuh", 4)
    (headers / "inner" / "a.cuh").write_text('#include "b.cuh"')
    kernel.parent.mkdir()
    kernel.write_text(f'#include "inner/a.cuh"{KERNEL}')

    assert value(source_of(kernel, include_dirs=[headers])) == 4
    define(headers / "inner" / "b.cuh", 5)
    assert value(source_of(kernel, include_dirs=[headers])) == 5


@pytest.mark.parametrize(
    ("directive", "file"),
    [
        ('#import "{folder}/a.cuh"', "a.cuh"),
        ('#define HEADER "{folder}/a.cuh"\n#include HEADER', "a.cuh"),
        ("#if __has_include(<a.cuh>)\n#include <a.cuh>\n#else\n#define VALUE 1\n#endif", "a.cuh"),
        ('#include "kernel.cpp"', "kernel.cpp"),
        ('#include "prefix.hpp"', "prefix.hpp"),
    ],
)
def test_the_cpu_notices_every_file_that_its_compiler_reads(
    directive: str, file: str, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    source = text_of(directive.format(folder=tmp_path), own if "HEADER" in directive else tmp_path)
    for number in (1, 2):
        if number > 1 or "__has" not in directive:
            define(tmp_path / file, number)
        assert on_cpu(source) == number


@pytest.mark.parametrize("variable", ["CPATH", "CPLUS_INCLUDE_PATH"])
def test_the_cpu_searches_the_folders_of_the_environment_and_has_a_build_for_each(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        define(tmp_path / f"{number}" / "a.cuh", number)
        monkeypatch.setenv(variable, f"{tmp_path}/none:{tmp_path}/{number}")
        assert on_cpu(text_of("#include <a.cuh>")) == number


def test_a_folder_of_headers_may_be_relative(
    value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    define(tmp_path / "inc" / "a.cuh", 5)
    monkeypatch.chdir(tmp_path)

    assert value(source_of(f"#include <a.cuh>{KERNEL}", include_dirs=["inc"])) == 5


def test_a_header_that_cannot_be_read_is_left_to_the_compiler(value: Value) -> None:
    source = text_of('#if 0\n#include "/proc/self/mem"\n#endif\n#define VALUE 7')

    assert value(source) == 7


@pytest.mark.parametrize("name", ["kernel.cpp", "prefix.hpp", 'a "quoted" \\ name.cu', "é\n.cu"])
def test_a_source_may_have_any_name(name: str, value: Value, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(f"#define VALUE 6\n{KERNEL}")

    assert value(source_of(file)) == 6
