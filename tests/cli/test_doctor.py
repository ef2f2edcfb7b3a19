"""``tmaasync doctor``: what it finds, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from command_line import json_of, run

from tmaasync._driver import DeviceLimits
from tmaasync.cli._probes import Machine
from tmaasync.errors import BackendError, CompileError

ON_GPU, ON_CPU = "run kernels on the GPU", "run kernels on the CPU"
MEASURE = "measure on the GPU (demo, bench, tune)"


def both(*parts: str) -> dict[str, list[str]]:
    """What the tasks on the GPU lack where they lack the same."""
    return {ON_GPU: [*parts], MEASURE: [*parts]}


def device(capability: tuple[int, int] = (9, 0)) -> DeviceLimits:
    return DeviceLimits(
        name="NVIDIA Fake",
        compute_capability=capability,
        sms=132,
        shared_bytes=227 * 1024,
        threads_per_block=1024,
    )


def absent(sentence: str) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise BackendError(sentence)

    return fail


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """A machine that has everything; each test takes something away."""
    (tmp_path / "cuda_bf16.h").touch()
    monkeypatch.setenv("TMAASYNC_CACHE_DIR", str(tmp_path / "cache"))
    return Machine(
        driver_version=lambda: (13, 0),
        device_count=lambda: 1,
        device_limits=lambda number: device(),
        nvrtc_version=lambda: (13, 0),
        toolkit_include_dirs=lambda: (tmp_path,),
        compiler_facts=lambda: ("/usr/bin/c++", "c++ 12"),
        run_on_cpu=lambda: None,
        import_module=lambda name: None,
        version={"cupy-cuda13x": "14.2", "matplotlib": "3.11"}.get,
        is_installed=lambda name: True,
    )


def document_of(machine: Machine) -> dict[str, Any]:
    return json_of("doctor", on=machine)


def part(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (part for part in document["parts"] if part["name"] == name)
    return dict(found)


def lacks(document: dict[str, Any]) -> dict[str, list[str]]:
    """What each task that does not work lacks."""
    for task in document["tasks"]:
        assert task["works"] == (task["lacks"] == [])
    return {task["name"]: task["lacks"] for task in document["tasks"] if task["lacks"]}


def test_with_a_hopper_gpu_everything_works(whole: Machine) -> None:
    document = document_of(whole)

    assert lacks(document) == {}
    assert part(document, "device 0")["found"] == (
        "NVIDIA Fake, sm_90, 132 SMs, 227 KiB of shared memory a block"
    )
    assert part(document, "driver")["found"] == "for CUDA 13.0"
    assert part(document, "CuPy")["found"] == "cupy-cuda13x 14.2"
    assert {found["remedy"] for found in document["parts"]} == {""}
    assert "no " not in run("doctor", on=whole).output.replace("not installed", "")


def test_without_a_driver_the_emulator_is_left(whole: Machine) -> None:
    fail = absent(
        "there is no CUDA driver on this machine, and device arrays need one. Install NVIDIA's "
        "driver, or pass NumPy arrays. (libcuda.so.1: not found (really))"
    )
    machine = replace(whole, driver_version=fail, device_count=fail)

    document = document_of(machine)

    assert lacks(document) == both("driver", "device")
    driver = part(document, "driver")
    assert driver["found"].startswith("there is no CUDA driver on this machine")
    assert driver["remedy"] == "Install NVIDIA's driver, or pass NumPy arrays."
    assert (
        "driver: Install NVIDIA's driver, or pass NumPy arrays.\n"
        in run("doctor", on=machine).output
    )


def test_a_driver_that_sees_no_gpu_is_not_enough(whole: Machine) -> None:
    machine = replace(whole, device_count=lambda: 0)

    assert lacks(document_of(machine)) == both("device")


@pytest.mark.parametrize(
    ("capability", "lacking", "reason"),
    [
        ((8, 0), both("device"), "it has no TMA"),
        ((10, 0), {}, "untested, and without wgmma: no matmul, conv2d or attention"),
    ],
)
def test_another_gpu_is_named_with_what_it_lacks(
    capability: tuple[int, int], lacking: dict[str, list[str]], reason: str, whole: Machine
) -> None:
    document = document_of(replace(whole, device_limits=lambda number: device(capability)))

    assert lacks(document) == lacking
    assert part(document, "device 0")["found"].endswith(reason)


def test_one_hopper_gpu_among_others_is_enough(whole: Machine) -> None:
    machine = replace(
        whole, device_count=lambda: 2, device_limits=lambda number: device((8 + number, 0))
    )

    document = document_of(machine)

    assert lacks(document) == {}
    assert [part(document, f"device {number}")["works"] for number in (0, 1)] == [False, True]


def test_without_nvrtc_no_kernel_is_compiled_for_a_gpu(whole: Machine) -> None:
    fail = absent("there is no NVRTC. Install it. (no)")

    document = document_of(replace(whole, nvrtc_version=fail))

    assert lacks(document) == {"compile kernels for the GPU": ["NVRTC"], **both("NVRTC")}
    assert part(document, "NVRTC")["remedy"] == "Install it."


def test_an_nvrtc_newer_than_the_driver_is_found(whole: Machine) -> None:
    document = document_of(replace(whole, driver_version=lambda: (12, 8)))

    assert lacks(document) == both("driver and NVRTC")
    assert "'nvidia-cuda-nvrtc-cu12>=12.9'" in part(document, "driver and NVRTC")["remedy"]


def test_for_a_driver_without_tma_there_is_no_wheel(whole: Machine) -> None:
    document = document_of(replace(whole, driver_version=lambda: (11, 8)))

    assert part(document, "driver and NVRTC")["remedy"] == "Update the driver."


def test_without_a_compiler_nothing_is_emulated(whole: Machine) -> None:
    fail = absent("there is no C++ compiler (c++, g++, clang++). Install g++ or clang++.")

    document = document_of(replace(whole, compiler_facts=fail))

    assert lacks(document) == {ON_CPU: ["C++ compiler"]}
    assert part(document, "C++ compiler")["remedy"] == "Install g++ or clang++."


def test_a_compiler_that_refuses_the_test_kernel_does_not_serve(whole: Machine) -> None:
    def refuse() -> NoReturn:
        log = "kernel.cu: In function:\nkernel.cu:3: error: no __launch_bounds__\nmore"
        raise CompileError("kernel.cu does not compile", log)

    document = document_of(replace(whole, run_on_cpu=refuse))

    assert lacks(document) == {ON_CPU: ["test kernel on the CPU"]}
    probed = part(document, "test kernel on the CPU")
    assert probed["found"] == "kernel.cu:3: error: no __launch_bounds__"
    assert "set CXX" in probed["remedy"]


def test_a_compiler_without_cpp20_does_not_serve(whole: Machine) -> None:
    fail = absent("c++ cannot compile the emulator's runtime. It needs a C++20 compiler.")

    document = document_of(replace(whole, run_on_cpu=fail))

    assert lacks(document) == {ON_CPU: ["test kernel on the CPU"]}
    assert part(document, "test kernel on the CPU")["remedy"] == "It needs a C++20 compiler."


def test_this_machine_compiles_and_runs_the_test_kernel() -> None:
    Machine().run_on_cpu()


def test_without_the_headers_of_cuda_no_kernel_is_built(whole: Machine) -> None:
    machine = replace(whole, toolkit_include_dirs=tuple)

    assert set(lacks(json_of("doctor", on=machine, exit_code=1))) == {
        "compile kernels for the GPU",
        ON_GPU,
        MEASURE,
        ON_CPU,
    }


@pytest.mark.parametrize(
    ("torch", "lacking"),
    [
        ("2.9.1", {}),
        ("2.9.1+cu130", {}),
        ("2.9.1+cpu", {ON_GPU: ["GPU arrays"]}),
        (None, {ON_GPU: ["GPU arrays"]}),
    ],
)
def test_without_cupy_kernels_run_on_torch_tensors(
    whole: Machine, torch: str | None, lacking: dict[str, list[str]]
) -> None:
    def fail(name: str) -> NoReturn:
        raise ImportError("No module named 'cupy'\nsee the manual")

    machine = replace(whole, import_module=fail, version={"torch": torch}.get)
    document = document_of(machine)

    assert lacks(document) == {**lacking, MEASURE: ["CuPy"]}
    assert part(document, "CuPy")["found"] == "No module named 'cupy'"
    arrays = part(document, "GPU arrays")
    assert arrays["found"].startswith("there is neither CuPy nor" if lacking else "of torch")
    assert arrays["remedy"].startswith("Install one with: pip" if lacking else "")


def test_two_cupys_in_one_environment_are_refused(whole: Machine) -> None:
    document = document_of(replace(whole, version=lambda name: "14.2"))

    assert lacks(document) == {MEASURE: ["CuPy"]}
    assert part(document, "CuPy")["remedy"] == "Uninstall all but one of them."


def test_without_matplotlib_no_timeline_is_drawn(whole: Machine) -> None:
    document = document_of(replace(whole, is_installed=lambda name: False))

    assert lacks(document) == {"draw timelines": ["matplotlib"]}


def test_a_cache_that_cannot_be_used_stops_every_build(
    whole: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TMAASYNC_CACHE_DIR", str(tmp_path / "file"))

    document = json_of("doctor", on=whole, exit_code=1)

    assert part(document, "cache")["remedy"] == "Set TMAASYNC_CACHE_DIR to a folder of your own."
    assert lacks(document)[ON_CPU] == ["cache"]


def test_where_nothing_runs_the_exit_code_is_1(whole: Machine) -> None:
    fail = absent("there is no compiler. Install one.")
    machine = replace(whole, device_count=lambda: 0, compiler_facts=fail)

    assert run("doctor", on=machine).exit_code == 1
