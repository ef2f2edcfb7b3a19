"""Torch's device ``cuda`` taken as the CPU, so that code written for a GPU runs without one.

A mode of torch (``TorchFunctionMode``) changes the device of every call; functions of
``torch.cuda`` describe the emulated device.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from tmaasync._patches import Patches

_CAPABILITY = (9, 0)


def torch_or_none() -> Any:
    """Return torch, imported if it is installed."""
    is_installed = "torch" in sys.modules or importlib.util.find_spec("torch") is not None
    return importlib.import_module("torch") if is_installed else None


def redirected() -> contextlib.AbstractContextManager[object]:
    """Take ``cuda`` as the CPU inside the ``with``, in this thread; nothing without torch."""
    torch = torch_or_none()
    return contextlib.nullcontext() if torch is None else _mode(torch)()


@functools.cache
def _mode(torch: Any) -> Any:
    mode: Any = importlib.import_module("torch.overrides").TorchFunctionMode

    def moved(value: Any) -> Any:
        is_named = isinstance(value, str) and value.partition(":")[0] == "cuda"
        is_cuda = is_named or (isinstance(value, torch.device) and value.type == "cuda")
        return torch.device("cpu") if is_cuda else value

    is_cuda = torch.Tensor.is_cuda.__get__

    class OnCpu(mode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            named = dict(kwargs or {})
            if function is torch.device:
                return function(*args, **named)
            if function == is_cuda:
                return True
            if function in (torch.Tensor.cuda, torch.Tensor.pin_memory):
                return args[0]
            named.pop("pin_memory", None)
            return function(*map(moved, args), **{key: moved(one) for key, one in named.items()})

    return OnCpu


def patch(patches: Patches, limits: Any) -> None:
    """Let functions of ``torch.cuda`` describe the emulated device; nothing without torch.

    Args:
        patches: Where they are replaced.
        limits: The number of SMs, and the shared memory of one.
    """
    if (torch := torch_or_none()) is not None:
        for name, answer in _answers(limits).items():
            patches.replace(torch.cuda, name, functools.partial(_instead, answer))


def _instead(answer: Callable[..., Any], theirs: Any, *args: Any, **named: Any) -> Any:
    del theirs  # of a GPU
    return answer(*args, **named)


def _answers(limits: Any) -> Mapping[str, Callable[..., Any]]:
    properties = SimpleNamespace(
        name="tmaasync's CPU emulator",
        major=_CAPABILITY[0],
        minor=_CAPABILITY[1],
        multi_processor_count=limits.sms,
        warp_size=32,
        shared_memory_per_block_optin=limits.shared_bytes,
    )
    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None)
    values = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "current_stream": stream,
        "get_device_capability": _CAPABILITY,
        "get_device_name": properties.name,
        "get_device_properties": properties,
        "synchronize": None,
    }
    named = {name: functools.partial(_answer, value) for name, value in values.items()}
    return {**named, "device": contextlib.nullcontext}


def _answer(value: Any, *args: Any, **named: Any) -> Any:
    return value
