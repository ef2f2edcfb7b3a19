"""ldmatrix and stmatrix of bytes (Blackwell), against CuTe's layouts of copy_traits_sm100."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from tmaasync import Kernel

WARP = 32
SOURCE = """
extern "C" __global__ void move(const unsigned char* from, unsigned* to) {
    __shared__ alignas(16) unsigned char rows[32 * 16];
    for (int i = threadIdx.x; i < 32 * 16; i += 32) rows[i] = from[i];
    __syncthreads();
    const unsigned at = __cvta_generic_to_shared(rows + threadIdx.x * 16);
    unsigned d[COUNT];
    for (int i = 0; i < COUNT; ++i) d[i] = to[threadIdx.x * COUNT + i];
    asm volatile("INSTRUCTION" : OUTPUTS : "r"(at) : "memory");
    for (int i = 0; i < COUNT; ++i) to[threadIdx.x * COUNT + i] = d[i];
    __syncthreads();
    for (int i = threadIdx.x; i < 32 * 16; i += 32) {
        reinterpret_cast<unsigned char*>(to)[32 * 4 * COUNT + i] = rows[i];
    }
}
"""


def moved(
    form: str, count: int, rows: npt.NDArray[np.uint8], held: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.uint8], ...]:
    """Return the registers as bytes, [lane, register, byte], and shared memory, [row, byte]."""
    registers = "{" + ", ".join(f"%{i}" for i in range(count)) + "}"
    operands = f"{registers}, [%{count}]" if form.startswith("ld") else f"[%{count}], {registers}"
    source = SOURCE.replace("INSTRUCTION", f"{form} {operands};").replace("COUNT", str(count))
    outputs = ", ".join(f'"+r"(d[{i}])' for i in range(count))
    words = np.concatenate([held.ravel(), np.zeros(512, np.uint8)]).view(np.uint32)

    Kernel(source.replace("OUTPUTS", outputs), "move", arch="sm_100a")(1, WARP, (rows, words))

    data = words.view(np.uint8)
    return data[: 128 * count].reshape(WARP, count, 4), data[128 * count :].reshape(32, 16)


def transposed_places(count: int, *, is_load: bool) -> dict[tuple[int, int, int], tuple[int, int]]:
    """Return row and byte of each (lane, register, byte): strides of CuTe, in bits."""
    places = {}
    for t0, t1, v1, v2, v3 in itertools.product(*map(range, (4, 8, 2, 2, count))):
        bit = t0 * 256 + t1 * 8 + v1 * 128 + v2 * 64 + v3 * 1024
        row, byte = divmod(bit // 8, 16)
        if (
            is_load
        ):  # the thread that gives the row: (2, 2, 4, 2) with strides (128, 1024, 256, 2048)
            row = row % 2 + row // 8 % 2 * 2 + row // 2 % 4 * 4 + row // 16 * 16
        places[t0 + 4 * t1, v3, v1 + 2 * v2] = row, byte
    return places


def random_bytes(*shape: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(9).integers(0, 256, shape, dtype=np.uint8)


def test_loads_of_transposed_bytes() -> None:
    rows = random_bytes(32, 16)
    form = "ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8"
    found, _ = moved(form, 4, rows, random_bytes(WARP, 4, 4))
    for place, (row, byte) in transposed_places(4, is_load=True).items():
        assert found[place] == rows[row, byte], place


@pytest.mark.parametrize(("bits", "form"), [(4, "b4x16_p64"), (6, "b6x16_p32")])
def test_loads_of_packed_elements(bits: int, form: str) -> None:
    rows = random_bytes(32, 16)
    found, _ = moved(
        f"ldmatrix.sync.aligned.m8n16.x2.shared.b8x16.{form}", 2, rows, random_bytes(WARP, 2, 4)
    )
    for lane, register, byte in np.ndindex(WARP, 2, 4):
        number = int.from_bytes(rows[register * 8 + lane // 4].tobytes(), "little")
        element = number >> bits * (lane % 4 * 4 + byte) & ((1 << bits) - 1)
        assert found[lane, register, byte] == element


@pytest.mark.parametrize(("bits", "form"), [(4, "b4x16_p64"), (6, "b6x16_p32")])
def test_loads_of_transposed_packed_elements(bits: int, form: str) -> None:
    rows = random_bytes(32, 16)
    spelling = f"ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8x16.{form}"
    found, _ = moved(spelling, 4, rows, random_bytes(WARP, 4, 4))
    numbers = [int.from_bytes(row.tobytes(), "little") for row in rows]
    for place, (row, byte) in transposed_places(4, is_load=True).items():
        assert found[place] == numbers[row] >> bits * byte & ((1 << bits) - 1), place


def test_stores_of_transposed_bytes() -> None:
    rows, held = random_bytes(32, 16), random_bytes(WARP, 4, 4)
    _, found = moved("stmatrix.sync.aligned.m16n8.x4.trans.shared.b8", 4, rows, held)
    for place, (row, byte) in transposed_places(4, is_load=False).items():
        assert found[row, byte] == held[place], place
