"""`set_role` costs nothing in release builds, and is kept in debug and traced ones."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from emulate.test_names import SOURCE

from tmaasync import Kernel, create_tma_tile
from tmaasync._source.compile import Source, assemble
from tmaasync.kernel.recipe import TRACE_OPTIONS
from tmaasync.kernel.source import DEBUG_OPTIONS

UNNAMED = re.sub(r"^.*set_role\(.*\n", "", SOURCE, flags=re.MULTILINE)


def kernel(source: str) -> Kernel:
    tile = create_tma_tile(np.ones((16, 16), np.float32), (8, 16))
    return Kernel(source, "pair", types={"Tile": tile})


def recipe(source: str, options: tuple[str, ...] = ()) -> Source:
    found = kernel(source)._recipe.source
    return replace(found, options=(*found.options, *options))


def code_of(source: str) -> list[bytes]:
    with kernel(source).compile().path.open("rb") as file:
        sections = list(ELFFile(file).iter_sections())
        return [each.data() for each in sections if each.name.startswith((".text", ".nv.constant"))]


def test_a_release_build_has_the_machine_code_of_a_kernel_without_roles() -> None:
    assert SOURCE.count("set_role(") == 2
    assert "set_role" not in UNNAMED

    assert code_of(SOURCE) == code_of(UNNAMED)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "options", [DEBUG_OPTIONS, TRACE_OPTIONS, (*DEBUG_OPTIONS, *TRACE_OPTIONS)]
)
def test_debug_and_traced_builds_keep_the_names(options: tuple[str, ...]) -> None:
    text = assemble(recipe(SOURCE, options), "sm_90a").ptx
    bare = assemble(recipe(UNNAMED, options), "sm_90a").ptx

    assert text != bare
    assert "tmaasync_roles" in text or options == TRACE_OPTIONS
