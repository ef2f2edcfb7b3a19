"""Pointer parameters take arrays of the declared elements, writable where the kernel writes."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel.test_signature import FILL, OTHER_TILES, TILE, accepts, refuses, zeros

from tmaasync import Kernel, LaunchError, TMATensorTileArray, create_tma_tile
from tmaasync.emulate import devices, scheduled
from tmaasync.tile import Pointer

# --- arrays -----------------------------------------------------------------------------------

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


@pytest.mark.parametrize(
    ("parameter", "dtype", "wanted"),
    [
        ("const int* cu_seqlens", np.int64, "int32"),
        ("const long long* x", np.int32, "int64"),
        ("double* x", np.float32, "float64"),
        ("float *x", np.float64, "float32"),
        ("float* __restrict__ x", BF16, "float32"),
        ("const float* __restrict__ const x", np.float16, "float32"),
        ("float const* x", np.int32, "float32"),
        ("float x[]", np.int32, "float32"),
        ("volatile int* flag", np.float32, "int32"),
        ("unsigned char* x", np.float32, "uint8"),
        ("std::uint32_t* x", np.uint64, "uint32"),
        ("__half* x", BF16, "float16"),
        ("tmaasync::bfloat16* x", np.float16, "bfloat16"),
        ("__nv_bfloat16* x", np.float32, "bfloat16"),
        ("__nv_fp8_e4m3* x", ml_dtypes.float8_e5m2, "float8_e4m3fn"),
        ("bool* mask", np.int64, "bool"),
        ("void* const* pointers", np.int32, "uint64"),
        ("const Element* x", np.float32, "float16"),
    ],
)
def test_an_array_of_other_elements_is_refused(parameter: str, dtype: Any, wanted: str) -> None:
    with pytest.raises(LaunchError) as caught:
        accepts(f"{parameter}, int n", zeros(dtype), 4, types={"Element": np.float16})

    message = str(caught.value)
    assert message.startswith(f"args[0] is an array of {np.dtype(dtype).name}; ")
    assert f"`{parameter}`, whose elements are {wanted}. Convert it" in message
    assert f"array.astype('{wanted}')" in message
    assert "Pointer(array)" in message


@pytest.mark.parametrize(
    ("parameter", "dtype"),
    [
        ("const int* x", np.int32),
        ("const int* x", np.uint32),
        ("unsigned* x", np.int32),
        ("u64* x", np.int64),
        ("size_t* x", np.uint64),
        ("unsigned char* x", np.uint8),
        ("unsigned char* x", E4M3),
        ("std::byte* x", np.int8),
        ("bool* x", np.bool_),
        ("__half* x", np.float16),
        ("tmaasync::float16* x", np.float16),
        ("bfloat16* x", BF16),
        ("__nv_bfloat16* x", np.uint16),
        ("float8_e4m3* x", np.uint8),
        ("tfloat32* x", np.float32),
        ("void* x", np.float64),
        ("const Row* x", np.float64),
        ("float4* x", np.float32),
        ("uint4* x", BF16),
        ("void* const* x", np.uint64),
        ("const Element* x", np.float16),
    ],
)
def test_an_array_of_the_declared_elements_is_taken(parameter: str, dtype: Any) -> None:
    accepts(f"int n, {parameter}", 4, zeros(dtype), types={"Element": np.float16})


def test_names_that_the_source_defines_are_left_to_the_compiler() -> None:
    before = "using half = float; typedef double real; template <typename T> struct float16;"

    accepts("half* a, real* b, float16* c", zeros(), zeros(), zeros(), before=before)


def test_a_use_of_a_type_is_no_definition_of_it() -> None:
    parameters, other = "const __grid_constant__ Tile tile", OTHER_TILES["swizzle"]
    uses = "struct SharedMemory { typename Tile::Shared tile; };"
    shadows = "template <typename Tile> struct Loader; template <typename Tile, int kN> struct X;"

    refuses("built with Tile = ", parameters, other, types={"Tile": TILE}, before=uses)
    accepts(parameters, other, types={"Tile": TILE}, before=shadows)


def test_declarations_that_differ_are_left_to_the_compiler() -> None:
    one, other = (f'extern "C" __global__ void k({kind}* x);' for kind in ("int", "float"))

    accepts("int* x", zeros(), before=f"#if 0\n{other}\n#endif")
    refuses("elements are int32", "int* x", zeros(), before=one)
    refuses("elements are int32", "int* x", zeros(), before=f"// {other}\n/* {other} */")


def test_a_read_only_array_is_refused_where_the_kernel_may_write() -> None:
    array = zeros()
    array.flags.writeable = False

    accepts("const float* x", array)
    for parameter in ("float* x", "float* const x", "void* x"):
        refuses(
            rf"args\[0\] is a read-only array; .*`{re.escape(parameter)}`.* may write\. "
            r"Pass a writable array, such as a copy, or declare const \w+\* if the kernel only r",
            parameter,
            array,
        )


STORES = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

extern "C" __global__ void k(
    const __grid_constant__ Tile source,
    const TMATensorTileArray<Tile> targets,
    int target,
    float* out
) {
    struct Shared { Tile::Shared tile; SharedMemBarrier loaded; };
    __shared__ Shared shared;
    if (threadIdx.x != 0) return;
    shared.loaded.init(1);
    fence_barrier_init();
    shared.loaded.expect_bytes(sizeof(Tile::Shared));
    source.async_copy(shared.tile, shared.loaded, {0, 0});
    shared.loaded.wait(0);
    *out = 1;
    if (target >= 0) {
        targets[target].async_store(shared.tile, {0, 0});
        commit_group();
        wait_group<0>();
    }
}
"""


def tile_of(array: Any, *, is_read_only: bool) -> Any:
    tile = create_tma_tile(array, (8, 32))
    array.flags.writeable = not is_read_only
    return tile


@pytest.mark.parametrize("races", [True, False])
def test_a_kernel_may_load_from_a_tile_of_a_read_only_array_but_not_store(races: bool) -> None:
    kernel = Kernel(STORES, "k", types={"Tile": TILE})
    source = tile_of(zeros(), is_read_only=True)
    targets = TMATensorTileArray(
        [tile_of(zeros(), is_read_only=is_read_only) for is_read_only in (False, True)]
    )

    with scheduled(races=races):
        kernel(1, 32, (source, targets, -1, zeros()))
        kernel(1, 32, (source, targets, 0, zeros()))
        with pytest.raises(
            LaunchError,
            match=r"^args\[1\]\[1\] is a read-only array; the kernel wrote to it\. Pass a writable",
        ):
            kernel(1, 32, (source, targets, 1, zeros()))


def test_a_store_to_a_read_only_array_of_an_emulated_device_is_refused_too() -> None:
    kernel = Kernel(STORES, "k", types={"Tile": TILE})

    def launch() -> None:
        with devices(1) as world:
            source, target, out = (world[0].array(zeros()) for _ in range(3))
            targets = TMATensorTileArray([tile_of(target, is_read_only=True)])
            kernel(1, 32, (create_tma_tile(source, (8, 32)), targets, 0, out))

    with pytest.raises(LaunchError, match=r"args\[1\]\[0\] is a read-only array"):
        launch()


def test_a_read_only_view_of_memory_that_another_argument_may_write_is_taken() -> None:
    array = zeros()
    kernel = Kernel(STORES, "k", types={"Tile": TILE})
    targets = TMATensorTileArray([create_tma_tile(array, (8, 32))])
    view = array[:]

    kernel(1, 32, (tile_of(view, is_read_only=True), targets, 0, zeros()))


@pytest.mark.parametrize("array", [zeros()[:, ::2], zeros()[::-1], zeros().T, zeros()[:, :8]])
def test_an_array_that_is_not_contiguous_is_refused_as_a_pointer(array: Any) -> None:
    refuses(
        r"args\[0\] is an array of shape .* with strides of .* bytes; it is not contiguous.*"
        r"numpy\.ascontiguousarray\(array\).*StridedTensor.*Pointer\(array\)",
        "const float* x",
        array,
    )
    accepts("const float* x", np.ascontiguousarray(array))


def test_every_argument_that_does_not_fit_is_reported() -> None:
    array = zeros(np.int64)[:, ::2]
    array.flags.writeable = False

    with pytest.raises(LaunchError) as caught:
        accepts("int* x, float* y, double* z", array, zeros(), zeros())

    broken = [violation.argument for violation in caught.value.violations]
    assert broken == ["args[0]", "args[0]", "args[0]", "args[2]"]


def test_a_pointer_and_a_view_are_the_ways_around_the_check() -> None:
    copied = 'extern "C" __global__ void k(int* to, const int* from) { *to = *from; }'
    out, array = zeros(np.int32, 1), np.arange(8, dtype=np.float32)[2::2]
    array.flags.writeable = False
    kernel = Kernel(copied, "k")

    kernel(1, 1, (out, Pointer(array)))
    assert out.view(np.float32)[0] == 2
    kernel(1, 1, (Pointer(out), array.copy().view(np.int32)))
    assert out.view(np.float32)[0] == 2


def test_a_pointer_is_no_struct_and_a_tile_no_pointer() -> None:
    kernel = Kernel("struct S { long long x; };\n" + FILL, "fill", types={"Tile": TILE})

    with pytest.raises(LaunchError, match=r"args\[0\] is <Pointer to float32 at .*a struct of 128"):
        kernel.prepare(1, 1, (Pointer(zeros()), zeros()))
    with pytest.raises(LaunchError, match=r"args\[1\] is a TMATensorTile; .* integer or pointer"):
        kernel.prepare(1, 1, (TILE, TILE))
