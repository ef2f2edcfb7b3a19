"""A stand-in for Triton, whose compiler returns the PTX that Triton once wrote.

It has the parts that `tmaasync.triton` replaces, and no more.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

_MODULES = Path(__file__).parents[1] / "emulate" / "ptx_modules"
_SCRATCH = ("size", "align")


def compiled(name: str, shared: int, descriptors: Sequence[Sequence[int]] = ()) -> Any:
    """Return what ``triton.compile`` returned for a kernel of the folder."""
    metas = [
        {"swizzle": 3, "block_size": list(box), "fp4_padded": False, "is_im2col": False}
        for box in descriptors
    ]
    scratch = {f"{kind}_scratch_{of}": 0 for kind in ("global", "profile") for of in _SCRATCH}
    facts = {"name": name, "shared": shared, "num_warps": 4, "num_ctas": 1, **scratch}
    metadata = SimpleNamespace(**facts, tensordesc_meta=metas)
    text = (_MODULES / f"{name}.ptx").read_text()
    return CompiledKernel(asm={"ptx": text}, metadata=metadata)


class NoDriverError(RuntimeError):
    """Triton found no GPU."""


class DriverConfig:
    @property
    def active(self) -> Any:
        raise NoDriverError("0 active drivers")


driver = DriverConfig()


class _Interface:
    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        run: Any = self.run  # type: ignore[attr-defined]
        return lambda *args, **named: run(*args, grid=grid, warmup=False, **named)


class JITFunction(_Interface):
    """The softmax of the folder: x, out, columns, BLOCK."""

    arg_names: ClassVar = ("x", "out", "columns", "BLOCK")
    types: ClassVar = ("*fp32", "*fp32", "i32", "constexpr")

    def __init__(self) -> None:
        self.device_caches: dict[Any, Any] = defaultdict(lambda: (driver.active, self._bind))

    def _bind(self, *args: Any, **named: Any) -> tuple[Any, ...]:
        given = dict(zip(self.arg_names, args, strict=False)) | named
        return {name: given[name] for name in self.arg_names}, (), {}

    def run(self, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        *_, bind = self.device_caches[driver.active.get_current_device()]
        bound, *_ = bind(*args, **named)
        assert warmup, "a launch needs a GPU"
        assert all(hasattr(bound[name], "data_ptr") for name in ("x", "out"))
        made = compiled("softmax", 16)
        made.src = SimpleNamespace(signature=dict(zip(self.arg_names, self.types, strict=True)))
        return made


class CompiledKernel(SimpleNamespace):
    def __getitem__(self, grid: Any) -> Any:
        raise NoDriverError("0 active drivers")

    def _init_handles(self) -> None:
        raise NoDriverError("0 active drivers")


class Autotuner(_Interface):
    arg_names = JITFunction.arg_names

    def __init__(
        self, fn: JITFunction, configs: list[Any], prune: Callable[..., Any] | None = None
    ) -> None:
        self.fn, self.configs, self.early_config_prune = fn, configs, prune
        self.keys, self.reset_to_zero = ["columns"], ["out"]
        self.base_fn = lambda: None
        self.best_config: Any = None

    def run(self, *args: Any, **named: Any) -> Any:
        (self.best_config,) = self.configs  # timing needs a GPU
        return self.fn.run(*args, **named, **self.best_config)


def install(patch: pytest.MonkeyPatch) -> None:
    """Let ``import triton`` find the stand-in."""
    named: dict[str, dict[str, Any]] = {
        "triton": {},
        "triton.compiler": {"CompiledKernel": CompiledKernel},
        "triton.runtime": {},
        "triton.runtime.autotuner": {"Autotuner": Autotuner},
        "triton.runtime.driver": {"DriverConfig": DriverConfig},
        "triton.runtime.jit": {"JITFunction": JITFunction},
        "triton.backends": {},
        "triton.backends.compiler": {"GPUTarget": lambda *facts: facts},
    }
    for name, values in named.items():
        module = ModuleType(name)
        vars(module).update(values)
        patch.setitem(sys.modules, name, module)
