"""CUDA's library headers that the emulator has, and the report for all others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tmaasync import CompileError, EmulatedRace, Kernel, emulate
from tmaasync._source.compile import Source, refusal
from tmaasync.emulate.report.dialect import in_words_of

INCLUDE = Path(emulate.__file__).parent / "foreign" / "cccl"
BODY = '\nextern "C" __global__ void f(int* x) { x[0] = 1; }\n'


@pytest.mark.sampled(2)
@pytest.mark.parametrize("header", ["cuda/warp", "cub/cub.cuh", "curand_kernel.h"])
def test_a_header_that_the_emulator_lacks_is_named_with_its_line(header: str) -> None:
    kernel = Kernel(f"// A kernel.\n#include <cuda/atomic>\n#  include <{header}>{BODY}", "f")

    with pytest.raises(CompileError, match=rf"kernel\.cu\(3\) includes <{header}>, which the CPU"):
        kernel(1, 1, (np.zeros(1, np.int32),))


@pytest.mark.slow
def test_what_is_included_for_a_gpu_only_is_not_refused() -> None:
    x = np.zeros(1, np.int32)
    text = f"#ifdef FOR_A_GPU\n#include <cub/cub.cuh>\n#endif\n#include <cuda/std/cstdint>{BODY}"

    Kernel(text, "f")(1, 1, (x,))

    assert x[0] == 1


@pytest.mark.slow
def test_all_headers_compile_together() -> None:
    """And leave what they suspend for the C++ library: the kernel's ``alignas`` is CUDA's."""
    names = [
        path.relative_to(INCLUDE).as_posix()
        for path in sorted((INCLUDE / "cuda").rglob("*"))
        if path.is_file() and not path.suffix
    ]
    assert len(names) > 40
    includes = "".join(f"#include <{name}>\n" for name in names)
    text = f"""{includes}
    extern "C" __global__ void f(int* x) {{
        __shared__ alignas(128) int y[4];
        y[threadIdx.x] = cuda::std::min(3, 4);
        x[0] = y[0] + cuda::std::gcd(4, 6);
    }}
    """
    x = np.zeros(1, np.int32)

    Kernel(text, "f")(1, 1, (x,))

    assert x[0] == 5


def test_what_only_newer_releases_of_cuda_ptx_have() -> None:
    text = """
    #include <cuda/ptx>
    namespace ptx = cuda::ptx;
    extern "C" __global__ void __launch_bounds__(128) f(unsigned* x) {
        __shared__ uint64_t barrier;
        ptx::setmaxnreg_dec<64>();
        ptx::setmaxnreg_inc(ptx::n32_t<96>());
        if (!ptx::elect_sync(~0u) || threadIdx.x >= 32) return;
        ptx::cp_async_bulk_prefetch(x, 16);
        for (int i = 0; i < 2; ++i) {
            ptx::mbarrier_init(&barrier, 1);
            ptx::mbarrier_inval(&barrier);
        }
        x[blockIdx.x] = ptx::get_sreg_clusterid_x() + 10 * ptx::get_sreg_cluster_ctaid_x() +
                        100 * ptx::get_sreg_nclusterid_x() +
                        1000 * ptx::get_sreg_cluster_nctaid_x();
    }
    """
    x = np.zeros(6, np.uint32)

    Kernel(text, "f")(6, 128, (x,), cluster=3)

    assert x.tolist() == [3200, 3210, 3220, 3201, 3211, 3221]


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("cuda/barrier", "pip install 'nvidia-cuda-cccl>=13,<14'"),
        ("cooperative_groups.h", "pip install 'nvidia-cuda-runtime>=13,<14'"),
        ("vector", "include <cuda/std/...> instead"),
    ],
)
def test_nvrtcs_missing_header_comes_with_its_package(header: str, says: str) -> None:
    log = f'k.cu(1): catastrophic error: cannot open source file "{header}"\n'

    assert says in refusal(Source(text="", name="k.cu"), log, "NVRTC_ERROR_COMPILATION", ())


OURS = "Every writing thread calls fence_async_view_proxy(), and waits with wait_group_read<0>()"


def test_remedies_name_instructions_where_a_kernel_has_none_of_our_headers() -> None:
    with_ours = Source(text="#include <tmaasync/tmaasync.cuh>\n", name="k.cu")
    without = Source(text="#include <cuda/barrier>\n", name="k.cu")

    assert in_words_of(with_ours, OURS) == OURS
    assert in_words_of(without, OURS) == (
        "Every writing thread calls fence.proxy.async.shared::cta, and waits with "
        "cp.async.bulk.wait_group.read 0"
    )
    assert in_words_of(without, "my_wait_group_reader") == "my_wait_group_reader"


def test_a_race_in_an_object_of_the_library_has_the_kernels_line_and_name() -> None:
    text = """
    #include <cuda/std/array>
    #include <cuda/std/utility>
    extern "C" __global__ void f(float* x) {
        __shared__ cuda::std::array<float, 64> values;
        values[threadIdx.x] = 1;
        cuda::std::swap(values[3], values[4]);
    }
    """

    with emulate.scheduled(races=True), pytest.raises(EmulatedRace) as caught:
        Kernel(text, "f")(1, 64, (np.zeros(1, np.float32),))

    assert "a race on values[3]" in str(caught.value)
    assert caught.value.second.source == "kernel.cu:7"


def test_nvrtc_finds_the_names_of_c_headers() -> None:
    text = f"#include <cuda.h>\n#include <cassert>\n#include <cstring>\n#include <stdio.h>{BODY}"

    assert Kernel(text, "f").compile().warnings == ()
