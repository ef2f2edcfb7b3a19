"""Kernels and operations on a GPU that is not a Hopper: what runs, what is refused, what is said.

The driver is a stand-in for a GPU of another compute capability; NVRTC compiles for it.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fake_arrays import Cupy, CupyArray
from fake_driver import Driver

from tmaasync import (
    ArgumentError,
    BackendError,
    CompileError,
    Kernel,
    LaunchError,
    UntestedDeviceWarning,
    create_tma_tile,
    ops,
)
from tmaasync._driver import DeviceLimits
from tmaasync._hardware import CHIP_LIMITS, chip_limits
from tmaasync.kernel.builds import max_active_clusters
from tmaasync.kernel.source import arch_for
from tmaasync.ops._call_cache import forget
from tmaasync.ops._operation import _kernel

FILL = '\nextern "C" __global__ void fill(float* out) { out[threadIdx.x] = 1; }\n'
WGMMA = """
#include <tmaasync/wgmma.cuh>
extern "C" __global__ void fill(float* out) { asm("wgmma.fence.sync.aligned;"); }
"""
HIDES_THE_NOTE = pytest.mark.filterwarnings("ignore::tmaasync.UntestedDeviceWarning")
B200, RTX = (10, 0), (12, 0)
DOCUMENT = Path(__file__).parents[2] / "docs" / "other_chips.md"


def limits_of(capability: tuple[int, int]) -> DeviceLimits:
    chip = chip_limits(capability)
    return DeviceLimits(
        name="NVIDIA Fake",
        compute_capability=capability,
        sms=100,
        shared_bytes=chip.shared_bytes,
        threads_per_block=1024,
    )


class Machine:
    """A GPU, and the CuPy that loads modules on it."""

    def __init__(self, use_driver: Callable[[object], None], argument_sizes: tuple[int, ...]):
        self.cupy = Cupy()
        self._use_driver = use_driver
        self._argument_sizes = argument_sizes
        self.driver = Driver()

    def become(self, capability: tuple[int, int]) -> None:
        self.driver = Driver(limits=limits_of(capability), argument_sizes=self._argument_sizes)
        self._use_driver(self.driver)
        forget()


@pytest.fixture
def machine(
    monkeypatch: pytest.MonkeyPatch, use_driver: Callable[[object], None]
) -> Iterator[Machine]:
    machine = Machine(use_driver, (8,))
    monkeypatch.setitem(sys.modules, "cupy", machine.cupy)
    _kernel.cache_clear()  # shipped kernels that are loaded on another machine
    yield machine
    _kernel.cache_clear()
    forget()


def array(*shape: int, dtype: Any = np.float32) -> CupyArray:
    return CupyArray(np.zeros(shape, dtype))


# --- the architecture -----------------------------------------------------------------------------


@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (10, 3), (12, 0), (12, 1)])
def test_the_architecture_is_the_devices_own(capability: tuple[int, int]) -> None:
    code = "/* no wgmma */  // at all"
    source = Kernel(f'\nextern "C" __global__ void k() {{ {code}\n }}\n', "k")._recipe.source

    assert arch_for(source, capability) == f"sm_{capability[0]}{capability[1]}a"


@pytest.mark.parametrize(
    ("capability", "instead"), [(B200, "tcgen05"), ((10, 3), "tcgen05"), (RTX, r"mma\.sync")]
)
def test_wgmma_is_refused_with_what_the_chip_has_instead(
    capability: tuple[int, int], instead: str
) -> None:
    source = Kernel(WGMMA, "fill")._recipe.source
    rule = f"{capability[0]}.{capability[1]}, whose tensor cores take {instead} instead"

    with pytest.raises(BackendError, match=rf"kernel\.cu needs wgmma.* 9\.0 alone; .*{rule}"):
        arch_for(source, capability)


def test_wgmma_in_a_header_of_the_callers_own_is_found(tmp_path: Path) -> None:
    (tmp_path / "inner.cuh").write_text("__device__ void f() { tmaasync::ptx::wgmma_fence(); }\n")
    (tmp_path / "outer.cuh").write_text('#include "inner.cuh"\n')
    path = tmp_path / "mine.cu"
    path.write_text('#include "outer.cuh"\nextern "C" __global__ void mine() {}\n')
    source = Kernel(path)._recipe.source

    assert arch_for(source, (9, 0)) == "sm_90a"
    with pytest.raises(BackendError, match=r"mine\.cu needs wgmma"):
        arch_for(source, RTX)


@pytest.mark.parametrize(("capability", "instead"), [((9, 0), "wgmma"), (RTX, r"mma\.sync")])
def test_tcgen05_is_refused_with_what_the_chip_has_instead(
    capability: tuple[int, int], instead: str
) -> None:
    text = '#include <tmaasync/tcgen05.cuh>\nextern "C" __global__ void mine() {}\n'
    source = Kernel(text, "mine")._recipe.source

    assert arch_for(source, B200) == "sm_100a"
    with pytest.raises(BackendError, match=rf"kernel\.cu needs tcgen05.* take {instead} instead"):
        arch_for(source, capability)


@pytest.mark.parametrize("name", ["gemm.cu", "attention.cu"])
def test_kernels_that_multiply_tiles_are_for_every_chip(name: str) -> None:
    assert arch_for(Kernel(name)._recipe.source, RTX) == "sm_120a"


@pytest.mark.parametrize(
    ("instruction", "arch", "hint"),
    [
        ("wgmma.fence.sync.aligned", "sm_100", r"9\.0 alone\. Compile it for sm_90a"),
        ("wgmma.fence.sync.aligned", "sm_120a", r"9\.0 alone\. Compile it for sm_90a"),
        ("setmaxnreg.dec.sync.aligned.u32 24", "sm_120", "Try arch='sm_120a'"),
    ],
)
def test_an_instruction_that_the_target_lacks_comes_with_a_target_that_has_it(
    instruction: str, arch: str, hint: str
) -> None:
    text = f'\nextern "C" __global__ void __launch_bounds__(128) k() {{ asm("{instruction};"); }}\n'

    with pytest.raises(CompileError, match=hint):
        Kernel(text, "k").compile(arch)


@pytest.mark.parametrize("arch", ["sm_999", "hopper"])
def test_an_architecture_that_the_compiler_does_not_know_is_refused(arch: str) -> None:
    with pytest.raises(BackendError, match=f"arch is '{arch}'; NVRTC .* compiles for .*sm_90, "):
        Kernel(FILL, "fill").compile(arch)


@HIDES_THE_NOTE
@pytest.mark.parametrize(
    ("arch", "runs_on", "fails_on"),
    [
        ("sm_90", [(9, 0)], [B200, RTX]),
        ("sm_90a", [(9, 0)], [B200, RTX]),
        ("sm_100", [(10, 0), (10, 3)], [(9, 0), (11, 0), RTX]),
        ("sm_100a", [(10, 0)], [(10, 3)]),
        ("sm_100f", [(10, 0), (10, 3)], [RTX]),
        ("sm_103", [(10, 3)], [(10, 0)]),
    ],
)
def test_an_architecture_that_the_caller_chose_has_to_run_on_the_device(
    machine: Machine, arch: str, runs_on: list[tuple[int, int]], fails_on: list[tuple[int, int]]
) -> None:
    for capability in runs_on:
        machine.become(capability)
        Kernel(FILL, "fill", arch=arch)(1, 32, (array(32),))
        assert len(machine.driver.launched) == 1
    for capability in fails_on:
        machine.become(capability)
        with pytest.raises(ArgumentError, match=f"arch is '{arch}'; NVIDIA Fake has .*Leave arch"):
            Kernel(FILL, "fill", arch=arch)(1, 32, (array(32),))


@pytest.mark.parametrize("given", ["arch", "option", "word"])
@pytest.mark.parametrize("arch", ["sm_100", "sm_80", "sm_120f", "compute_90"])
def test_the_cpu_refuses_an_architecture_that_it_lacks(arch: str, given: str) -> None:
    options = {"option": [f"--gpu-architecture={arch}"], "word": ["-arch", arch]}.get(given, [])
    kernel = Kernel(FILL, "fill", arch=arch if given == "arch" else None, options=options)

    with pytest.raises(ArgumentError, match=rf"is '{arch}'; the CPU back end emulates .*sm_100a,"):
        kernel(1, 32, (np.zeros(32, np.float32),))


def test_the_cpu_runs_a_kernel_on_one_chip() -> None:
    kernel = Kernel(FILL, "fill", arch="sm_90a", options=["-arch=sm_100a"])

    with pytest.raises(ArgumentError, match="-arch is 'sm_100a'; the kernel is for sm_90a too"):
        kernel(1, 32, (np.zeros(32, np.float32),))


# --- the note -------------------------------------------------------------------------------------


@pytest.mark.parametrize("capability", [B200, RTX])
def test_a_kernel_runs_with_one_note_for_each_kind_of_gpu(
    machine: Machine, capability: tuple[int, int]
) -> None:
    machine.become(capability)
    major, minor = capability
    first, second = Kernel(FILL, "fill"), Kernel(FILL.replace("= 1", "= 2"), "fill")

    with pytest.warns(UntestedDeviceWarning, match=f"compute capability {major}.{minor}") as notes:
        first(1, 32, (array(32),))
    first(1, 32, (array(32),))
    second(1, 32, (array(32),))

    assert len(notes) == 1
    assert notes[0].filename == __file__
    assert len(machine.driver.launched) == 3
    assert machine.cupy.modules[0] == str(first.compile(f"sm_{major}{minor}a").path)


def test_a_hopper_gets_no_note(machine: Machine) -> None:
    machine.become((9, 0))

    Kernel(FILL, "fill")(1, 32, (array(32),))

    assert len(machine.driver.launched) == 1


def test_a_filter_that_makes_warnings_errors_refuses_every_launch_with_the_remedy(
    machine: Machine,
) -> None:
    machine.become(B200)
    kernel = Kernel(FILL, "fill")

    for _ in range(2):
        with pytest.raises(UntestedDeviceWarning, match=r"simplefilter\('ignore', tmaasync\."):
            kernel(1, 32, (array(32),))
    assert machine.driver.launched == []

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntestedDeviceWarning)
        kernel(1, 32, (array(32),))
    assert len(machine.driver.launched) == 1


def test_a_kernel_that_issues_wgmma_is_refused_before_it_is_compiled(machine: Machine) -> None:
    machine.become(RTX)

    with pytest.raises(
        BackendError, match=r"needs wgmma.*NVIDIA Fake has compute capability 12\.0"
    ):
        Kernel(WGMMA, "fill")(1, 32, (array(32),))
    assert machine.cupy.modules == []


# --- limits ---------------------------------------------------------------------------------------


@HIDES_THE_NOTE
@pytest.mark.parametrize(("capability", "most"), [(B200, 232448), ((10, 3), 232448), (RTX, 101376)])
def test_shared_memory_is_limited_by_the_chip(
    machine: Machine, capability: tuple[int, int], most: int
) -> None:
    machine.become(capability)
    kernel = Kernel(FILL, "fill")

    kernel(1, 32, (array(32),), shared_mem=most)
    with pytest.raises(
        LaunchError, match=rf"shared_mem is {most + 1} bytes; .*NVIDIA Fake .* at most {most}\. Use"
    ):
        kernel(1, 32, (array(32),), shared_mem=most + 1)


@HIDES_THE_NOTE
@pytest.mark.parametrize(("capability", "most"), [(B200, 16), ((11, 0), 8), (RTX, 8)])
def test_a_cluster_is_limited_by_the_chip(
    machine: Machine, capability: tuple[int, int], most: int
) -> None:
    machine.become(capability)
    kernel = Kernel(FILL, "fill")

    kernel(most, 32, (array(32),), cluster=most)
    with pytest.raises(LaunchError, match=rf"{most + 1} blocks; .*\) has at most {most}\. Use"):
        kernel(most + 1, 32, (array(32),), cluster=most + 1)


MANY_REGISTERS = """
extern "C" __global__ void fill(volatile float* p) {
    float v[96];
    #pragma unroll
    for (int i = 0; i < 96; ++i) v[i] = p[i * 1024 + threadIdx.x];
    #pragma unroll
    for (int i = 0; i < 96; ++i) p[i * 2048 + threadIdx.x] = v[i * 37 % 96] - v[i];
}
"""


@HIDES_THE_NOTE
@pytest.mark.parametrize("capability", [(9, 0), B200, RTX])
def test_a_block_with_too_many_registers_is_refused(
    machine: Machine, capability: tuple[int, int]
) -> None:
    machine.become(capability)
    kernel = Kernel(MANY_REGISTERS, "fill")

    kernel(1, 512, (array(32),))
    with pytest.raises(
        LaunchError,
        match=r"1024 threads; fill takes \d+ registers .* has 65536\. .*launch_bounds__\(1024",
    ):
        kernel(1, (256, 4), (array(32),))


@HIDES_THE_NOTE
def test_clusters_are_counted_with_a_block_that_fills_an_sm(machine: Machine) -> None:
    machine.become(RTX)

    assert max_active_clusters(0, 4) == 25
    assert machine.driver.launch_configs[-1].sharedMemBytes == 101376


def test_an_unknown_chip_has_the_limits_that_all_known_ones_allow() -> None:
    unknown = chip_limits((13, 0))

    for chip in CHIP_LIMITS.values():
        assert unknown.shared_bytes <= chip.shared_bytes
        assert unknown.registers <= chip.registers
        assert unknown.cluster_blocks <= chip.cluster_blocks


def test_the_document_has_the_limits_of_every_chip() -> None:
    rows = re.findall(
        r"^\| ([\d., ]+) \| (\d+) bytes \((\d+) KiB\) \| (\d+) \|$",
        DOCUMENT.read_text(),
        re.MULTILINE,
    )
    documented = {
        chip: (int(shared), int(kib) * 1024, int(cluster))
        for chips, shared, kib, cluster in rows
        for chip in chips.split(", ")
    }

    assert documented == {
        f"{major}.{minor}": (chip.shared_bytes, chip.shared_bytes, chip.cluster_blocks)
        for (major, minor), chip in CHIP_LIMITS.items()
    }
    assert {f"{chip.registers} registers" for chip in CHIP_LIMITS.values()} <= {
        *re.findall(r"All have (\d+ registers) for a block", DOCUMENT.read_text())
    }


# --- operations -----------------------------------------------------------------------------------


def half(*shape: int) -> CupyArray:
    return array(*shape, dtype=np.float16)


OPERATIONS: dict[str, Callable[[], Any]] = {
    "matmul": lambda: ops.matmul(half(64, 64), half(64, 64), out=half(64, 64)),
    "attention": lambda: ops.attention(*(half(1, 64, 2, 64) for _ in range(3))),
    "varlen_attention": lambda: ops.varlen_attention(
        half(64, 2, 64), half(64, 2, 64), half(64, 2, 64), cu_seqlens_q=[0, 64]
    ),
    "grouped_matmul": lambda: ops.grouped_matmul(
        half(64, 64), half(2, 64, 64), array(2, dtype=np.int32)
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("capability", [B200, RTX])
def test_an_operation_is_compiled_with_a_warning(
    machine: Machine, name: str, capability: tuple[int, int]
) -> None:
    machine.become(capability)

    with pytest.warns(UntestedDeviceWarning, match=f"compute capability {capability[0]}"):
        OPERATIONS[name]()

    assert len(machine.cupy.modules) >= 1


def mxfp8() -> Any:
    a, factors = array(128, 128, dtype=ml_dtypes.float8_e4m3fn), array(512, dtype=np.uint8)
    b = CupyArray(np.zeros((128, 128), ml_dtypes.float8_e4m3fn).T)
    return ops.scaled_matmul(
        a, b, factors, factors, scale_dtype="float8_e8m0fnu", scale_layout="swizzled"
    )


def test_block_scales_are_compiled_for_blackwell_and_refused_elsewhere(machine: Machine) -> None:
    for number, capability in enumerate((B200, RTX)):
        machine.become(capability)
        with pytest.warns(UntestedDeviceWarning, match=f"compute capability {capability[0]}"):
            mxfp8()
        assert len(machine.cupy.modules) == number + 1

    for capability in ((9, 0), (11, 0)):
        machine.become(capability)
        with pytest.raises(BackendError, match=r"scaled_matmul of MXFP8 needs block-scaled MMAs"):
            mxfp8()


@HIDES_THE_NOTE
@pytest.mark.parametrize(
    ("capability", "dtype", "columns", "stage_bytes", "stages"),
    [(B200, np.float32, 3072, 16384, 2), (RTX, np.float64, 3072, 16384, 2)],
)
def test_a_copy_takes_as_many_stages_as_the_chip_has_room_for(
    machine: Machine,
    capability: tuple[int, int],
    dtype: Any,
    columns: int,
    stage_bytes: int,
    stages: int,
) -> None:
    machine.become(capability)
    source, target = (np.zeros((64, 4096), dtype)[:, :columns] for _ in range(2))

    ops.copy(CupyArray(source), CupyArray(target))

    (config,) = machine.driver.launch_configs
    assert config.sharedMemBytes // stage_bytes == stages
    (module,) = machine.cupy.modules
    facts = json.loads(Path(module).with_suffix(".json").read_text())
    assert facts["arch"] == f"sm_{capability[0]}{capability[1]}a"


@HIDES_THE_NOTE
def test_ragged_arrays_are_packed_on_another_chip(machine: Machine) -> None:
    machine.become(RTX)

    ops.ragged_store(half(2, 64, 64), out=half(100, 64), cu_seqlens=array(3, dtype=np.int32))

    assert len(machine.driver.launched) == 1


# --- tensor maps ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("capability", "is_kept"), [((9, 0), True), (B200, False), (RTX, False)])
def test_the_bit_that_drivers_set_wrongly_on_blackwell_is_cleared(
    machine: Machine, capability: tuple[int, int], is_kept: bool
) -> None:
    machine.become(capability)

    tile = create_tma_tile(half(64, 48 + capability[0] * 8), (64, 64))

    assert bool(int.from_bytes(tile.descriptor, "little") >> 85 & 1) is is_kept


def test_a_map_that_does_not_start_with_the_address_is_refused(machine: Machine) -> None:
    machine.become((13, 0))
    machine.driver.map_offset = 16

    with pytest.raises(BackendError, match=r"13\.0 does not start with the address of its array"):
        create_tma_tile(half(64, 200), (64, 64))
