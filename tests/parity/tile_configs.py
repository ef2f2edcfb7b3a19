"""The tile configs that operations choose: as they are chosen, or others that fit the chip."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from tmaasync.kernel import backend_of
from tmaasync.ops import _operation
from tmaasync.ops._gemm.config import TileConfig

__all__ = ["fitted", "noted", "one_gemm_config", "tile_configs"]


def fitted(config: Any) -> Any:
    """Return the config, or the one that the emulated chip's shared memory has room for."""
    within = getattr(config, "within", None)
    return within(backend_of(None).limits.shared_bytes) if within else config


def tile_configs(choose: Callable[[Any], Any]) -> AbstractContextManager[None]:
    """Make operations inside use ``choose(tile config)``, fitted to the chip."""
    return _operation.tile_configs(lambda config: fitted(choose(config)))


@contextmanager
def noted() -> Iterator[list[Any]]:
    """Give the tile configs of operations that are made inside, which use them as they are."""
    found: list[Any] = []

    def note(config: Any) -> Any:
        found.append(config)
        return config

    with tile_configs(note):
        yield found


def one_gemm_config() -> AbstractContextManager[None]:
    """Small GEMMs of any size have one tile config, so that few kernels are built.

    For tests of what stands above the operations: which tile config is chosen, and that each is
    right, the tests of operations and of kernels show.
    """
    usual = TileConfig(1, 64)

    def choose(config: Any) -> Any:
        if type(config) is not TileConfig:
            return config
        return replace(usual, m_major=config.m_major)

    return tile_configs(choose)
