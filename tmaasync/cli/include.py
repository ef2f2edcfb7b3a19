"""``include``: the directory of the CUDA headers."""

from __future__ import annotations

import typer

from tmaasync._source.paths import include_dir


def include() -> None:
    """Print the directory of the CUDA headers: nvcc -std=c++17 -I$(tmaasync include) my.cu."""
    typer.echo(include_dir())
