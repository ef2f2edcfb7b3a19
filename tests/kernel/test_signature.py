"""Arguments of another type than the kernel declares are refused before a launch."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_arrays import Cupy, CupyArray
from fake_driver import Driver

from tmaasync import (
    ArgumentError,
    BulkTile,
    CompileError,
    Kernel,
    LaunchError,
    TMATensorTileArray,
    create_tma_tile,
    create_tma_tile_im2col,
    create_tma_tile_template,
)
from tmaasync._source.compile import Parameter
from tmaasync.kernel.arguments import pack, views
from tmaasync.kernel.builds import CudaBuild
from tmaasync.kernel.recipe import LaunchRequest, Recipe
from tmaasync.kernel.signature import elements_of_variable, signature_of
from tmaasync.kernel.source import source_of
from tmaasync.tile import StridedTensor

FILL = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

extern "C" __global__ void fill(const __grid_constant__ Tile tile, float* out) { out[0] = 1; }
"""


def accepts(parameters: str, *args: Any, types: Any = None, before: str = "") -> None:
    """Compare arguments with declared parameters; nothing is compiled."""
    text = (
        f'{before}\nextern "C" __global__ void __launch_bounds__(32 * 4, 1) k({parameters}) {{}}\n'
    )
    signature_of(source_of(text, types=types), "k").check(views(args))


def refuses(match: str, parameters: str, *args: Any, **options: Any) -> None:
    with pytest.raises(LaunchError, match=match):
        accepts(parameters, *args, **options)


def zeros(dtype: Any = np.float32, shape: Any = (64, 64)) -> Any:
    return np.zeros(shape, dtype)


# --- tiles ------------------------------------------------------------------------------------

TILE = create_tma_tile(zeros(), (8, 32))
IMAGES = zeros(np.float16, (2, 8, 8, 64))
OTHER_TILES: dict[str, Any] = {
    "swizzle": create_tma_tile(zeros(), (8, 32), swizzle="128B"),
    "smaller": create_tma_tile(zeros(), (4, 32)),
    "larger": create_tma_tile(zeros(), (16, 32)),
    "box": create_tma_tile(zeros(), (8, 32), box_shape=(8, 16)),
    "element": create_tma_tile(zeros(np.int32), (8, 32)),
    "reading": create_tma_tile(zeros(), (8, 32), dtype="tf32"),
    "rank": create_tma_tile(zeros(shape=(4, 64, 64)), (1, 8, 32)),
    "steps": create_tma_tile(zeros(), (8, 32), element_strides=(2, 1)),
    "bulk": BulkTile(zeros(), 1024),
    "im2col": create_tma_tile_im2col(IMAGES, (16, 64), filter_shape=(3, 3), padding=1),
    "array": TMATensorTileArray([TILE]),
}


@pytest.mark.parametrize("name", OTHER_TILES)
def test_a_tile_of_another_type_is_refused_on_the_cpu_with_both_types(name: str) -> None:
    fill, out, other = Kernel(FILL, "fill", types={"Tile": TILE}), zeros(), OTHER_TILES[name]

    with pytest.raises(LaunchError) as caught:
        fill.prepare(1, 32, (other, out))

    message = str(caught.value)
    assert message.startswith("args[0] is a ")
    assert TILE.cuda_type in message
    assert other.cuda_type in message
    assert "`const __grid_constant__ Tile tile`" in message
    assert "types={'Tile': tile}" in message
    assert not out.any()


def test_same_type_tiles_of_other_arrays_are_taken() -> None:
    fill, out = Kernel(FILL, "fill", types={"Tile": TILE}), zeros()
    template = create_tma_tile_template((8, 32), np.float32)

    for shape in ((64, 64), (7, 128), (1000, 32)):
        for tile in (create_tma_tile(zeros(shape=shape), (8, 32)), template.bind(zeros())):
            fill(1, 1, (tile, out))

    assert out[0, 0] == 1


def test_a_kernel_of_a_template_takes_what_the_template_binds_and_no_other() -> None:
    types = {"Tile": create_tma_tile_template((8, 32), np.float32, swizzle="128B")}
    parameters = "const __grid_constant__ Tile tile"

    accepts(parameters, OTHER_TILES["swizzle"], types=types)
    refuses(r"args\[0\] is .*kNone.*Tile = .*k128B", parameters, TILE, types=types)


def test_an_array_of_tiles_is_compared_too() -> None:
    others, types = TMATensorTileArray([OTHER_TILES["swizzle"]]), {"Tile": TILE}

    for parameter in ("TMATensorTileArray<Tile> t", "const tmaasync::TMATensorTileArray<Tile> t"):
        accepts(parameter, TMATensorTileArray([TILE]), types=types)
        refuses(
            r"args\[0\] is a TMATensorTileArray of type .*k128B", parameter, others, types=types
        )
    accepts("const Tiles t", others, types={"Tiles": others})
    refuses(
        "TMATensorTileArray", "const Tiles t", TMATensorTileArray([TILE]), types={"Tiles": others}
    )


def test_a_tile_or_a_list_is_no_array_of_tiles() -> None:
    types, parameter = {"Tile": TILE}, "const TMATensorTileArray<Tile> outs"
    declared = re.escape(f"`{parameter}`")

    refuses(
        rf"^args\[0\] is a TMATensorTile; the kernel declares {declared}, an array of tiles\. "
        r"Pass TMATensorTileArray\(\[tile\]\)\.$",
        parameter,
        TILE,
        types=types,
    )
    kernel = Kernel(f'extern "C" __global__ void k({parameter}) {{}}\n', "k", types=types)
    with pytest.raises(LaunchError, match=rf"{declared} is an array of tiles\. Pass TMATensorTile"):
        kernel.prepare(1, 1, ([TILE],))
    others = TMATensorTileArray([OTHER_TILES["swizzle"]])
    refuses(r"was built with Tile = tmaasync::TMATensorTile<", parameter, others, types=types)


@pytest.mark.parametrize(
    ("parameter", "value", "rule"),
    [
        ("int n", "x", r"'x'; the kernel's parameter `int n` is a number\. Pass an int\."),
        ("const unsigned n", [1], r"\[1\]; .* `const unsigned n` is a number\. Pass an int\."),
        ("long long n", None, "None; .* `long long n` is a number"),
        ("float n", "1", r"'1'; .* `float n` is a number\. Pass a float\."),
        ("bool n", "1", r"'1'; .* `bool n` is a bool\. Pass True or False\."),
    ],
)
def test_what_is_no_number_is_refused_with_the_declared_type(
    parameter: str, value: Any, rule: str
) -> None:
    kernel = Kernel(f'extern "C" __global__ void k(float* x, {parameter}) {{}}\n', "k")

    with pytest.raises(LaunchError, match=rf"^args\[1\] is {rule}"):
        kernel.prepare(1, 1, (zeros(), value))


@pytest.mark.parametrize("parameter", ["const int& n", "TMATensorTileArray<Tile>&& tiles", "int &"])
def test_a_parameter_that_is_a_reference_is_refused(parameter: str) -> None:
    text = f'extern "C" __global__ void k(float* x, {parameter}) {{}}\n'
    kernel = Kernel(text, "k", types={"Tile": TILE})
    said = rf"^kernel\.cu:1 declares `{re.escape(parameter)}`, a reference; .* Declare it without &"

    with pytest.raises(CompileError, match=said):
        kernel.prepare(1, 1, (zeros(), TILE))


def test_every_kind_of_tile_has_a_type_that_is_compared() -> None:
    im2col, images = OTHER_TILES["im2col"], zeros(np.float16, (1, 4, 4, 64))
    same = create_tma_tile_im2col(images, (16, 64), filter_shape=(1, 1))
    strided = StridedTensor(zeros()[:, ::2])

    accepts("const __grid_constant__ T t", same, types={"T": im2col})
    refuses("TMATensorTileIm2col", "const __grid_constant__ T t", TILE, types={"T": im2col})
    accepts("const T t", StridedTensor(zeros().T), types={"T": strided})
    refuses("float, 1>", "const T t", StridedTensor(zeros()[0]), types={"T": strided})
    refuses("BulkTile", "const T t", BulkTile(zeros(), 2048), types={"T": OTHER_TILES["bulk"]})


def test_a_type_in_text_is_compared_where_it_is_a_tiles_own() -> None:
    parameters, swizzled = "const __grid_constant__ Tile tile", OTHER_TILES["swizzle"]

    refuses("k128B", parameters, swizzled, types={"Tile": TILE.cuda_type})
    by_hand = "tmaasync::TMATensorTile<float, tmaasync::Shape<8, 32>, tmaasync::Box<8, 32>>"
    accepts(parameters, TILE, types={"Tile": by_hand})  # the swizzle has a default
    accepts(parameters, BulkTile(zeros(), 1024), types={"Tile": "tmaasync::BulkTile<float, 1024>"})


@pytest.mark.parametrize("kind", ["Tile", "TensorMap", "tmaasync::ptx::TensorMap", "CUtensorMap"])
def test_a_map_that_is_no_grid_constant_is_refused(kind: str) -> None:
    refuses(
        rf"args\[0\] is a TMATensorTile; the kernel declares `const {kind} t` at kernel\.cu:2, a "
        rf"copy of the tensor map in local memory, .* Declare const __grid_constant__ {kind} t\.",
        f"const {kind} t",
        TILE,
        types={"Tile": TILE},
    )
    accepts(f"const __grid_constant__ {kind} t", TILE, types={"Tile": TILE})


def test_tiles_without_a_map_may_be_copied() -> None:
    accepts("Tile tile", OTHER_TILES["bulk"], types={"Tile": OTHER_TILES["bulk"]})


def test_types_that_only_the_compiler_knows_are_left_to_it() -> None:
    types = {"Tile": OTHER_TILES["swizzle"]}

    accepts("const __grid_constant__ TensorMap map", TILE, types=types)
    accepts("const __grid_constant__ Tile::Map map", TILE, types=types)
    accepts("PARAMETER(Tile, tile)", TILE, types=types)
    accepts("const Tile tile", TILE, types=types, before="struct Tile {};")
    accepts("const Tile tile", TILE, types=types, before="#define Tile Other")
    accepts("TILE tile", TILE, types=types, before="#define TILE const __grid_constant__ Tile")
    accepts("const Tile tile", bytes(128), types=types)


@pytest.mark.parametrize(
    ("alias", "parameter"),
    [
        ("using T = Tile;", "const __grid_constant__ T t"),
        ("typedef Tile T;", "const __grid_constant__ T t"),
        ("using S = Tile;\nusing T = S;", "const __grid_constant__ T t"),
    ],
)
def test_another_name_of_a_supplied_type_is_compared_too(alias: str, parameter: str) -> None:
    types, other = {"Tile": TILE}, OTHER_TILES["swizzle"]

    accepts(parameter, TILE, types=types, before=alias)
    refuses(r"k128B>; .*Tile = .*kNone", parameter, other, types=types, before=alias)


def test_other_names_of_elements_and_of_arrays_of_tiles_are_compared_too() -> None:
    tiles = TMATensorTileArray([OTHER_TILES["swizzle"]])
    types = {"Tile": TILE, "Element": np.float16}
    before = "using Tiles = TMATensorTileArray<Tile>;\nusing E = Element;"

    refuses("elements are float16", "const E* x", zeros(), types=types, before=before)
    accepts("const Tiles t", TMATensorTileArray([TILE]), types=types, before=before)
    refuses("TMATensorTileArray", "const Tiles t", tiles, types=types, before=before)


def test_other_names_that_only_the_compiler_understands_are_left_to_it() -> None:
    parameter, other, types = "const T t", OTHER_TILES["bulk"], {"Tile": OTHER_TILES["bulk"]}

    for before in (
        "#if 0\nusing T = Tile;\n#else\nusing T = int;\n#endif",
        "template <typename E> using T = Tile;",
        "using T = Tile::Other;",
    ):
        accepts(parameter, other, types={**types, "Tile": TILE}, before=before)
    inner = "struct Other { using Tile = U; };"
    accepts("const Tile t", other, types={**types, "U": TILE}, before=inner)


def test_arguments_are_checked_before_anything_is_compiled() -> None:
    kernel = Kernel('extern "C" __global__ void k(const int* x) { no C++ }', "k")

    with pytest.raises(LaunchError, match="elements are int32"):
        kernel(1, 1, (zeros(),))
    with pytest.raises(CompileError):
        kernel(1, 1, (zeros(np.int32),))


# --- on a GPU, and in arrays of tiles -----------------------------------------------------------


class OnDevice:
    """The kernel on a device."""

    watch, function = None, 1
    entry = type("Entry", (), {"parameters": (Parameter("u", 8),), "shared_bytes": None})()

    def allow(self, *_: object) -> None:
        """Everything fits."""


def test_a_launch_on_a_gpu_is_checked_too(
    monkeypatch: pytest.MonkeyPatch, use_driver: Callable[[object], None]
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    driver = Driver(argument_sizes=(8,))
    use_driver(driver)
    text = 'extern "C" __global__ void k(const int* cu_seqlens) {}'
    loaded: Any = OnDevice()
    build = CudaBuild(Recipe(source_of(text), "k", None, None, lambda: None), 0, lambda *_: loaded)

    def prepare(array: Any) -> Any:
        args = (CupyArray(array),)
        return build.prepare(LaunchRequest(1, 32, None, None, False), args, views(args), None)

    prepare(zeros(np.int32, 4))()
    with pytest.raises(LaunchError, match=r"args\[0\] is an array of int64; .*`const int\* cu_se"):
        prepare(np.cumsum([0, 4, 8]))
    assert len(driver.launched) == 1


def test_assigning_a_tile_of_another_type_to_an_array_of_tiles_is_refused() -> None:
    tiles = TMATensorTileArray([TILE])

    with pytest.raises(ArgumentError, match="cuda_type"):
        tiles[0] = OTHER_TILES["swizzle"]


# --- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "size", "least", "most"),
    [
        ("int n", 4, -(2**31), 2**31 - 1),
        ("const unsigned n", 4, 0, 2**32 - 1),
        ("std::int64_t const n", 8, -(2**63), 2**63 - 1),
        ("size_t n", 8, 0, 2**64 - 1),
        ("unsigned char n", 1, 0, 255),
        ("short n", 2, -(2**15), 2**15 - 1),
        ("bool n", 1, 0, 1),
        ("Index n", 4, -(2**31), 2**31 - 1),
        ("char n", 1, -128, 255),
        ("Own n", 4, -(2**31), 2**32 - 1),
    ],
)
def test_an_int_must_be_one_that_the_declared_type_holds(
    declared: str, size: int, least: int, most: int
) -> None:
    text = f'using Own = unsigned;\nextern "C" __global__ void k({declared}) {{}}\n'
    signature = signature_of(source_of(text, types={"Index": np.int32}), "k")
    parameters = signature.typed([Parameter("u", size)])

    def packed(number: int) -> bytes:
        return pack("k", parameters, (number,), (None,))[0]

    for number in (least, most):
        assert int.from_bytes(packed(number), "little") == number % (1 << 8 * size)
    for number in (least - 1, most + 1):
        with pytest.raises(LaunchError, match=rf"args\[0\] is {number}; the kernel takes .* Pass"):
            packed(number)


def test_a_numpy_scalar_gives_its_bits_to_an_integer_of_the_other_sign() -> None:
    signature = signature_of(source_of('extern "C" __global__ void k(int mask) {}'), "k")
    parameters = signature.typed([Parameter("u", 4)])
    assert pack("k", parameters, (np.uint32(0xFFFFFFFF),), (None,)) == [b"\xff" * 4]


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("f", 1e39, r"1e\+39; .* 4-byte floating-point number"),
        pytest.param("f", 10**5000, "a int; .* 4-byte floating-point number", id="long"),
        ("t", np.int8(2), r"np\.int8\(2\); .* bool there\. Pass True or False"),
    ],
)
def test_numbers_that_a_parameter_does_not_hold_are_refused(
    kind: str, value: Any, said: str
) -> None:
    with pytest.raises(LaunchError, match=rf"args\[0\] is {said}"):
        pack("k", [Parameter(kind, 1 if kind == "t" else 4)], (value,), (None,))


@pytest.mark.parametrize(
    ("head", "name", "refused"),
    [
        ("class T, int N", "k<double, 4>", True),
        ("typename T, int N = 2", "k<float>", False),
        ("int N, class T = double", "k<4>", True),
        ("class T", "layers::k<float>", False),
        ("class... T", "k<double>", False),
    ],
)
def test_pointers_of_an_instance_have_the_elements_that_it_names(
    head: str, name: str, refused: bool
) -> None:
    text = f"template <{head}> __global__ void k(T* out) {{}}\n"
    signature = signature_of(source_of(text), name)
    if refused:
        with pytest.raises(LaunchError, match=r"args\[0\] is an array of float32; .* are float64"):
            signature.check(views((zeros(),)))
    else:
        signature.check(views((zeros(),)))


@pytest.mark.parametrize(
    ("declared", "name", "elements"),
    [
        ("__constant__ float w[4];", "w", ("float32", "float32_ftz", "tfloat32", "tfloat32_ftz")),
        ("__device__ static const int w = 3;", "w", ("int32", "uint32")),
        ("namespace a { __device__ unsigned int w; }", "a::w", ("uint32", "int32")),
        ("__constant__ alignas(16) double w[2][8] = {};", "w", ("float64",)),
        ("__device__ Index w;", "w", ("int64", "uint64")),
        ("struct Own { int n; }; __constant__ Own w;", "w", None),
        ("__device__ float v, w;", "w", None),
        ("namespace a { __device__ int w; } namespace b { __device__ float w; }", "b::w", None),
        ("__device__ float4 w;", "w", None),
        ("namespace a { typedef int Index; __device__ Index w; }", "a::w", None),
    ],
)
def test_the_elements_of_a_variable_are_those_declared(
    declared: str, name: str, elements: tuple[str, ...] | None
) -> None:
    text = f'{declared}\nextern "C" __global__ void k() {{ const float w = 0; }}\n'
    found = elements_of_variable(source_of(text, types={"Index": np.int64}), name)
    assert found == elements
