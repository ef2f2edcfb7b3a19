"""CuPy's RawModule and cuda.core up to the launch, for machines without a GPU.

NVRTC compiles a source with the options that it is given and nothing else. A launch counts its
arguments, and then raises: what follows it needs its result.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tmaasync._source.compile import Source, run_nvrtc

_ENTRY = re.compile(r"\.entry (\w+)\(([^)]*)\)")


def stand_in(patch: pytest.MonkeyPatch, stop: Callable[[], BaseException]) -> None:
    """Replace what needs a device; NumPy is CuPy here. Launches raise what ``stop`` returns."""

    def raw_module(code: str, options: Sequence[str], backend: str) -> _Module:
        assert backend == "nvrtc"
        added = ("-arch=sm_90", "--device-as-default-execution-space")  # as CuPy does
        return _Module(code, (*options, *added), stop)

    def program(code: str, code_type: str, options: Any) -> _Module:
        assert code_type == "c++"
        given = [option.decode() for option in options.as_bytes("nvrtc")]
        return _Module(code, given, stop)

    def launch(stream: object, config: object, kernel: _Kernel, *arguments: object) -> None:
        kernel((), (), arguments)

    patch.setattr(np, "RawModule", raw_module, raising=False)
    patch.setattr(np, "cuda", _Anything(), raising=False)
    if importlib.util.find_spec("cuda.core") is not None:
        patch.setattr("cuda.core.Device", _Anything)
        patch.setattr("cuda.core.Program", program)
        patch.setattr("cuda.core.launch", launch)
        patch.setattr("cuda.core.utils.StridedMemoryView", _Anything())


class _Anything:
    """Has every attribute, may be called with anything, and gives itself back."""

    def __getattr__(self, name: str) -> _Anything:
        return self

    def __call__(self, *_: object, **__: object) -> _Anything:
        return self


class _Module:
    """A compiled source: what RawModule, Program and ObjectCode are used for."""

    def __init__(
        self, code: str, options: Sequence[str], stop: Callable[[], BaseException]
    ) -> None:
        _, ptx, *_ = run_nvrtc(Source(text=code, name="kernel.cu"), tuple(options))
        self._parameters = {name: text.count(".param") for name, text in _ENTRY.findall(ptx)}
        self._stop = stop

    def compile(self, target_type: str) -> _Module:
        assert target_type == "cubin"
        return self

    def get_kernel(self, name: str) -> _Kernel:
        return _Kernel(self._parameters[name], self._stop)

    get_function = get_kernel


@dataclass(frozen=True)
class _Kernel:
    parameters: int
    stop: Callable[[], BaseException]

    def __call__(self, grid: object, block: object, arguments: Sequence[object]) -> None:
        assert len(arguments) == self.parameters
        # CuPy passes arrays of one element by value, and refuses longer ones of NumPy.
        maps = [one for one in arguments if isinstance(one, np.ndarray) and one.nbytes == 128]
        assert all(one.size == 1 for one in maps)
        raise self.stop()
