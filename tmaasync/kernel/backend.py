"""The interface of back ends: a CUDA device, or the host, where the emulator runs kernels."""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from tmaasync._arrays import ArrayView
from tmaasync._driver import DeviceLimits, DeviceMemory, HostMemory, PreparedLaunch
from tmaasync._hardware import MAX_SHARED_BYTES, WITH_SCALED_MMA_SYNC, WITH_TENSOR_MEMORY
from tmaasync.errors import BackendError
from tmaasync.kernel.arguments import Placed, View
from tmaasync.kernel.hangs import BarrierName
from tmaasync.kernel.recipe import LaunchRequest, Recipe
from tmaasync.kernel.repeated import RepeatedCall
from tmaasync.kernel.source import without_scale_factors, without_tcgen05
from tmaasync.kernel.variables import Variable

if TYPE_CHECKING:
    from tmaasync._source.compile import Source
    from tmaasync.emulate import EmulatedLaunch

BoundCall = Callable[[], None]
"""Launches with fixed addresses, on a fixed stream."""


class Launch(Protocol):
    """A prepared launch, or a sequence of launches."""

    def launch_at(self, addresses: Sequence[int], stream: int) -> None:
        """Launch with these addresses as the first arguments."""

    def bind(self, addresses: Sequence[int], stream: int) -> BoundCall:
        """Return a call that launches with these addresses and this stream."""


class Build(Protocol):
    """A kernel on one back end, compiled on first use."""

    def prepare(
        self, request: LaunchRequest, args: Sequence[object], seen: Sequence[View], stream: object
    ) -> PreparedLaunch | EmulatedLaunch:
        """Check and pack a launch; ``seen`` is the result of `views` for the arguments."""

    def repeated(
        self, launch: PreparedLaunch, args: Sequence[object], seen: Sequence[View]
    ) -> RepeatedCall | None:
        """Return the prepared launch as a call for later arguments of the same kinds, or None."""

    def variable(self, name: str) -> Variable:
        """Return a variable of the module."""


class ArrayMemory(Protocol):
    """The memory of one device: a CUDA device, an emulated one, or the host."""

    kept: dict[Hashable, Any]
    """What operations keep for their later calls, as long as the device exists."""

    identity: object
    """Differs between devices of emulated worlds, and keeps none alive; None for other memory."""

    @property
    def ordinal(self) -> int | None:
        """The ``device=`` of a launch there; None for host memory of no device."""

    @property
    def location(self) -> str:
        """The location of its arrays in a message, as in ``cuda:0``."""

    def array(self, values: Any) -> Any:
        """Return a new array of the framework in this memory, copied there if necessary."""


class Backend(ABC):
    """Builds, limits, streams and memory of a device, or of the host.

    Attributes:
        device: The ordinal of a CUDA device; None for host memory.
        waits: Whether a launch returns after the kernel's end.
        reads_host_memory: Whether kernels read arrays in host memory, so that none is uploaded.
    """

    device: int | None
    waits: bool
    reads_host_memory: bool
    identity: object = None

    def __init__(self) -> None:
        self.kept: dict[Hashable, Any] = {}

    @property
    def ordinal(self) -> int | None:
        """See `ArrayMemory`."""
        return self.device

    def array(self, values: Any) -> Any:
        """See `ArrayMemory`: a framework's new array lies there already."""
        return values

    def memory_of(self, array: ArrayView) -> ArrayMemory:
        """Return the memory that holds an array, and in which a framework makes arrays like it."""
        del array
        return self

    @abstractmethod
    def build(self, recipe: Recipe) -> Build:
        """Return the kernel of this recipe on this back end, not compiled yet."""

    @property
    @abstractmethod
    def location(self) -> str:
        """See `ArrayMemory`."""

    @abstractmethod
    def has_peer_access(self, device: int, peer: int) -> bool:
        """Whether `enable_peer_access` was called for two devices like this one, by ordinal."""

    @property
    @abstractmethod
    def gpu(self) -> str | None:
        """The name of the GPU whose tuned tile configs apply; None without a GPU."""

    @property
    @abstractmethod
    def limits(self) -> DeviceLimits:
        """Limits on a launch.

        Raises:
            BackendError: The device is older than sm_90.
        """

    def require_shared_memory(self, user: str) -> None:
        """Check that thread blocks may have the shared memory of Hopper, which a user needs.

        Raises:
            BackendError: They have less, or the device is older than sm_90.
        """
        limits = self.limits
        if limits.shared_bytes >= MAX_SHARED_BYTES:
            return
        elsewhere = "on an H100, H200, B200 or B300, or on NumPy arrays"
        if self.device is None:
            elsewhere = 'inside emulate.chip("sm_90a") or emulate.chip("sm_100a")'
        raise BackendError(
            f"{user} needs {MAX_SHARED_BYTES} bytes of shared memory in a thread block; "
            f"{limits.name} has at most {limits.shared_bytes}. Run it {elsewhere}."
        )

    def require_scale_factors(self, user: str) -> None:
        """Check that the tensor cores of the device apply the scale factors of an operation.

        Raises:
            BackendError: They do not.
        """
        limits = self.limits
        if limits.compute_capability not in (*WITH_TENSOR_MEMORY, *WITH_SCALED_MMA_SYNC):
            device = f"device {self.device} ({limits.name})"
            raise without_scale_factors(user, limits.compute_capability, device)

    def require_tensor_memory(self, user: str, otherwise: str) -> None:
        """Check that the device has tensor memory, which an operation needs.

        ``otherwise`` ends the remedy.

        Raises:
            BackendError: It has none.
        """
        limits = self.limits
        if limits.compute_capability not in WITH_TENSOR_MEMORY:
            device = f"device {self.device} ({limits.name})"
            raise without_tcgen05(user, limits.compute_capability, device, otherwise)

    @abstractmethod
    def max_active_clusters(self, size: int) -> int:
        """Return the max active clusters of ``size`` blocks, one block per SM."""

    @abstractmethod
    def stream(self, frameworks: Iterable[str], given: object = None) -> int:
        """Return the handle of the caller's stream, or of the frameworks' current stream."""

    @abstractmethod
    def wait_for_producers(self, arrays: Iterable[Placed], stream: int) -> None:
        """Make a stream wait for the producers of arrays whose framework has no current stream."""

    @abstractmethod
    def current(self) -> contextlib.AbstractContextManager[None]:
        """Make the device current inside the ``with``."""

    @abstractmethod
    def upload(self, data: bytes) -> HostMemory | DeviceMemory:
        """Copy data to the device, 128-byte aligned, and return the memory.

        The copy lives as long as the result, and is visible to every stream on return.
        """

    @abstractmethod
    def host_flag(self) -> npt.NDArray[np.int32]:
        """Return an int32 zero that kernels can write and the host can read without a wait."""

    @property
    @abstractmethod
    def copies_contiguous_memory(self) -> bool:
        """Whether `bound_copy` is at least as fast as a copy by TMA."""

    @abstractmethod
    def bound_copy(self, target: int, source: int, size_bytes: int, stream: int) -> BoundCall:
        """Return a call that copies between two addresses."""


class HostBackend(Backend):
    """The back end of arrays in host memory, which may belong to devices of an emulated world."""

    device = None

    @abstractmethod
    def is_scheduled(self) -> bool:
        """Return whether launches without arrays run here, GPU or not."""

    @abstractmethod
    def check_worlds(self, members: Sequence[tuple[str, Placed]]) -> None:
        """Check that no array belongs to the world of another thread.

        Raises:
            LaunchError: An array does.
        """

    @abstractmethod
    def emulated_device(
        self, seen: Sequence[View], members: Sequence[tuple[str, Placed]], asked: int | None
    ) -> int | None:
        """Return the emulated device of a launch on host arrays; None outside of a world.

        Raises:
            LaunchError: The arrays belong to no single device, or it cannot access one of them.
        """

    @abstractmethod
    def barrier_names(self, source: Source, kernel: str) -> BarrierName:
        """Return the source's names for parts of the kernel's dynamic shared memory."""


# --- the host's back end ----------------------------------------------------------------------

_REGISTERED: dict[str, Callable[[], Callable[[], HostBackend]]] = {}


def register_host(load: Callable[[], Callable[[], HostBackend]]) -> None:
    """Register a function that imports the host's back end, and returns what gives it.

    Several threads may call it at once.
    """
    _REGISTERED["host"] = load


def host_backend() -> HostBackend:
    """Return the back end of arrays in host memory, which the first call imports."""
    return _loaded()()


@functools.cache
def _loaded() -> Callable[[], HostBackend]:
    return _REGISTERED["host"]()
