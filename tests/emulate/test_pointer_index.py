"""Memory that only pointers in arrays lead to: found once, not by a search for each access."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulate.engine_library import FLAGS

from tmaasync import EmulatedFault, Kernel
from tmaasync.emulate.include_path import toolkit_folders

FIRST, SECOND = 0x7F00_0000_0000, 0x7F00_0001_0000


class Index:
    """The index of a launch whose only array is ``table``."""

    def __init__(self, library: Any, table: np.ndarray[Any, Any]) -> None:
        self.library, self.table = library, table
        library.index_new.restype = ctypes.c_void_p
        library.index_searches.restype = ctypes.c_uint64
        self.index = ctypes.c_void_p(library.index_new())

    def around(self, address: int, size: int = 4) -> tuple[int, int]:
        found = (ctypes.c_uint64 * 2)()
        place = (self.table.ctypes.data, self.table.nbytes, address, size)
        self.library.index_around(self.index, *map(ctypes.c_uint64, place), found)
        return found[0], found[1]

    @property
    def searches(self) -> int:
        return int(self.library.index_searches(self.index))


@pytest.fixture(scope="module")
def library(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    source = Path(__file__).with_name("pointer_index_abi.cpp")
    target = tmp_path_factory.mktemp("pointer_index") / "index.so"
    toolkit = [f"-I{folder}" for folder in toolkit_folders()]
    subprocess.run(
        [compiler, *FLAGS, *toolkit, "-shared", "-fPIC", str(source), "-o", str(target)], check=True
    )
    return ctypes.CDLL(str(target))


@pytest.fixture
def index(library: Any) -> Iterator[Index]:
    made = Index(library, np.zeros(1000, np.uint64))
    made.table[10], made.table[900] = SECOND, FIRST
    yield made
    library.index_free(made.index)


def test_many_accesses_take_one_search(index: Index) -> None:
    for offset in range(0, 4000, 4):
        assert index.around(FIRST + offset) == (FIRST, SECOND)
        assert index.around(SECOND + offset)[0] == SECOND
    assert index.searches == 1


def test_a_pointer_that_a_kernel_writes_is_found(index: Index) -> None:
    index.around(FIRST)
    index.table[500] = 0x7000_0000_0000
    assert index.around(0x7000_0000_0040)[0] == 0x7000_0000_0000
    assert index.searches == 2


def test_a_pointer_that_a_kernel_overwrites_leads_nowhere(index: Index) -> None:
    assert index.around(SECOND + 8)[0] == SECOND
    index.table[10] = 0
    assert index.around(SECOND + 8) == (FIRST, index.around(FIRST)[1])
    index.table[900] = 0
    assert index.around(SECOND + 8) == (0, 0)


def test_bytes_over_the_next_pointer_are_refused_by_a_new_search_alone(index: Index) -> None:
    assert index.around(SECOND - 2) == (0, 0)
    index.table[10] = 0
    assert index.around(SECOND - 2)[0] == FIRST


def test_numbers_that_are_no_addresses_are_none(index: Index) -> None:
    index.table[:] = np.uint64(0xFFFF_0000_0000_0000)
    index.table[:500] = 4096
    assert index.around(8192) == (0, 0)
    assert index.around(0xFFFF_0000_0000_0040) == (0, 0)


def test_a_kernel_reaches_arrays_through_a_table_and_no_others() -> None:
    text = """
extern "C" __global__ void total(const float* const* table, float* out, long at) {
    for (int i = 0; i < 100; ++i) out[0] += table[i % 2][i] + (i == 99 ? table[0][at] : 0.0f);
}
"""
    rows = np.arange(400, dtype=np.float32).reshape(2, 200)
    table, out = np.array([row.ctypes.data for row in rows], np.uint64), np.zeros(1, np.float32)
    kernel = Kernel(text, "total")
    kernel(1, 1, (table, out, 0))
    assert out[0] == sum(rows[i % 2][i] for i in range(100))
    with pytest.raises(EmulatedFault, match="lies in none of the launch's arrays"):
        kernel(1, 1, (table, out, -(1 << 40)))
