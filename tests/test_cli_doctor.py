"""``tmaasync doctor``: what it finds, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from command_line import run, told

from tmaasync import _compile, _driver
from tmaasync._driver import DeviceLimits
from tmaasync.cli import _probes
from tmaasync.emulate import toolchain
from tmaasync.errors import BackendError

ON_GPU, ON_CPU = "run kernels on the GPU", "run kernels on the CPU"


def device(capability: tuple[int, int] = (9, 0)) -> DeviceLimits:
    return DeviceLimits(
        name="NVIDIA Fake",
        compute_capability=capability,
        multiprocessors=132,
        shared_bytes=227 * 1024,
        threads_per_block=1024,
    )


def absent(sentence: str) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise BackendError(sentence)

    return fail


@pytest.fixture(autouse=True)
def whole_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that has everything; each test takes something away."""
    (tmp_path / "cuda_bf16.h").touch()
    monkeypatch.setenv("TMAASYNC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(_driver, "driver_version", lambda: (13, 0))
    monkeypatch.setattr(_driver, "device_count", lambda: 1)
    monkeypatch.setattr(_driver, "device_limits", lambda number: device())
    monkeypatch.setattr(_compile, "nvrtc_version", lambda: (13, 0))
    monkeypatch.setattr(_compile, "toolkit_include_dirs", lambda: (tmp_path,))
    monkeypatch.setattr(toolchain, "compiler_facts", lambda: ("/usr/bin/c++", "c++ 12"))
    monkeypatch.setattr(toolchain, "make_library", lambda *_: b"")
    monkeypatch.setattr(_probes, "import_module", lambda name: None)
    versions = {"cupy-cuda13x": "14.2", "matplotlib": "3.11"}
    monkeypatch.setattr(_probes, "_version", versions.get)


def told_that_nothing_runs(*arguments: str) -> dict[str, Any]:
    """The document, although the exit code says that nothing runs."""
    ran = run(*arguments, "--json")
    assert ran.exit_code == 1
    return dict(json.loads(ran.stdout))


def part(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (part for part in document["parts"] if part["name"] == name)
    return dict(found)


def lacks(document: dict[str, Any]) -> dict[str, list[str]]:
    """What each task that does not work lacks."""
    for task in document["tasks"]:
        assert task["works"] == (task["lacks"] == [])
    return {task["name"]: task["lacks"] for task in document["tasks"] if task["lacks"]}


def test_with_a_hopper_gpu_everything_works() -> None:
    document = told("doctor")

    assert lacks(document) == {}
    assert part(document, "device 0")["found"] == (
        "NVIDIA Fake, sm_90, 132 multiprocessors, 227 KiB of shared memory a block"
    )
    assert part(document, "driver")["found"] == "for CUDA 13.0"
    assert part(document, "CuPy")["found"] == "cupy-cuda13x 14.2"
    assert {found["remedy"] for found in document["parts"]} == {""}
    assert "no " not in run("doctor").output.replace("not installed", "")


def test_without_a_driver_the_emulator_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    fail = absent(
        "there is no CUDA driver on this machine, and device arrays need one. Install NVIDIA's "
        "driver, or pass NumPy arrays. (libcuda.so.1: not found (really))"
    )
    monkeypatch.setattr(_driver, "driver_version", fail)
    monkeypatch.setattr(_driver, "device_count", fail)

    document = told("doctor")

    assert lacks(document) == {ON_GPU: ["driver", "device"]}
    driver = part(document, "driver")
    assert driver["found"].startswith("there is no CUDA driver on this machine")
    assert driver["remedy"] == "Install NVIDIA's driver, or pass NumPy arrays."
    assert "driver: Install NVIDIA's driver, or pass NumPy arrays.\n" in run("doctor").output


def test_a_driver_that_sees_no_gpu_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_driver, "device_count", lambda: 0)

    assert lacks(told("doctor")) == {ON_GPU: ["device"]}


@pytest.mark.parametrize(
    ("capability", "reason"),
    [((8, 0), "it has no TMA"), ((10, 0), "the shipped kernels are for sm_90a")],
)
def test_another_gpu_is_named_with_the_reason(
    capability: tuple[int, int], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_driver, "device_limits", lambda number: device(capability))

    document = told("doctor")

    assert lacks(document) == {ON_GPU: ["device"]}
    assert part(document, "device 0")["found"].endswith(reason)


def test_one_hopper_gpu_among_others_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_driver, "device_count", lambda: 2)
    monkeypatch.setattr(_driver, "device_limits", lambda number: device((8 + number, 0)))

    document = told("doctor")

    assert lacks(document) == {}
    assert [part(document, f"device {number}")["works"] for number in (0, 1)] == [False, True]


def test_without_nvrtc_no_kernel_is_compiled_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compile, "nvrtc_version", absent("there is no NVRTC. Install it. (no)"))

    document = told("doctor")

    assert lacks(document) == {"compile kernels for the GPU": ["NVRTC"], ON_GPU: ["NVRTC"]}
    assert part(document, "NVRTC")["remedy"] == "Install it."


def test_an_nvrtc_newer_than_the_driver_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_driver, "driver_version", lambda: (12, 8))

    document = told("doctor")

    assert lacks(document) == {ON_GPU: ["driver and NVRTC"]}
    assert "tmaasync[cuda12]" in part(document, "driver and NVRTC")["remedy"]


def test_for_a_driver_without_tma_there_is_no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_driver, "driver_version", lambda: (11, 8))

    assert part(told("doctor"), "driver and NVRTC")["remedy"] == "Update the driver."


def test_without_a_compiler_nothing_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    fail = absent("there is no C++ compiler (c++, g++, clang++). Install g++ or clang++.")
    monkeypatch.setattr(toolchain, "compiler_facts", fail)

    document = told("doctor")

    assert lacks(document) == {ON_CPU: ["C++ compiler"]}
    assert part(document, "C++ compiler")["remedy"] == "Install g++ or clang++."


def test_a_compiler_without_cpp20_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise toolchain.RefusedError("c++", "unrecognized option -std=c++20\nmore")

    monkeypatch.setattr(toolchain, "make_library", refuse)

    document = told("doctor")

    assert lacks(document) == {ON_CPU: ["C++ compiler"]}
    assert part(document, "C++ compiler")["found"].endswith(": unrecognized option -std=c++20")


def test_without_the_headers_of_cuda_no_kernel_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compile, "toolkit_include_dirs", tuple)

    assert set(lacks(told_that_nothing_runs("doctor"))) == {
        "compile kernels for the GPU",
        ON_GPU,
        ON_CPU,
    }


def test_without_cupy_nothing_is_launched_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> NoReturn:
        raise ImportError("No module named 'cupy'\nsee the manual")

    monkeypatch.setattr(_probes, "import_module", fail)

    document = told("doctor")

    assert lacks(document) == {ON_GPU: ["CuPy"]}
    assert part(document, "CuPy")["found"] == "No module named 'cupy'"


def test_two_cupys_in_one_environment_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_probes, "_version", lambda name: "14.2")

    document = told("doctor")

    assert lacks(document) == {ON_GPU: ["CuPy"]}
    assert part(document, "CuPy")["remedy"] == "Uninstall all but one of them."


def test_a_cache_that_cannot_be_used_stops_every_build(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TMAASYNC_CACHE_DIR", str(tmp_path / "file"))

    document = told_that_nothing_runs("doctor")

    assert part(document, "cache")["remedy"] == "Set TMAASYNC_CACHE_DIR to a folder of your own."
    assert lacks(document)[ON_CPU] == ["cache"]


def test_where_nothing_runs_the_exit_code_is_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_driver, "device_count", lambda: 0)
    monkeypatch.setattr(toolchain, "compiler_facts", absent("there is no compiler. Install one."))

    assert run("doctor").exit_code == 1
