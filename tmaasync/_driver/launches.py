"""Launches whose arguments are packed; attributes and parameters of functions."""

from __future__ import annotations

import functools
import math
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from tmaasync._driver import bindings, devices
from tmaasync.errors import DriverError, LaunchError


class LaunchConfig(NamedTuple):
    """Grid, block, cluster (in blocks), dynamic shared memory and stream of a launch."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] | None
    shared_bytes: int
    pdl: bool
    stream: int
    cooperative: bool = False


class Tracer(Protocol):
    """The launcher of a kernel's traced build, for launches that a collector records."""

    @property
    def collector_of(self) -> Callable[[], object]:
        """Return the collector of traces here and now; None without one."""

    def run(self, launch: Callable[[Any, LaunchConfig], None], config: LaunchConfig) -> None:
        """Launch a function of the same parameters, in a configuration much like this one."""


class _Untraced:
    """The tracer of a launch without a traced build."""

    @staticmethod
    def collector_of() -> None: ...

    def run(self, launch: Callable[[Any, LaunchConfig], None], config: LaunchConfig) -> None: ...


UNTRACED: Tracer = _Untraced()


def _on_its_device(device: int, call: Callable[[], None]) -> Callable[[], None]:
    """Make a device's context current for a call, unless it is."""

    def there() -> None:
        if devices.current_device() == device:
            call()
        else:
            with devices.on_device(device):
                call()

    return there


class PreparedLaunch:
    """A launch whose arguments are packed: calling it is one driver call.

    The driver copies the packed bytes at each call. What the arguments point to (tiles, arrays) is
    kept alive as long as this object.
    """

    __slots__ = (
        "_collector_of",
        "_device",
        "_formats",
        "_free",
        "_function",
        "_is_only_device",
        "_keep",
        "_launch",
        "_packed",
        "_tracer",
    )

    def __init__(
        self,
        function: Any,
        config: LaunchConfig,
        arguments: Sequence[bytes],
        keep: object,
        device: int,
        tracer: Tracer = UNTRACED,
    ) -> None:
        """Pack the arguments; nothing is launched."""
        self._tracer = tracer
        self._collector_of = tracer.collector_of
        self._packed = _PackedLaunch(_Packed.of(arguments), config)
        # Taking one from a list costs 0.01 us, where a lock takes 0.10.
        self._free = [self._packed]
        self._formats: Sequence[str] | None = None
        self._keep = keep
        self._function = function
        self._launch = bindings.driver().cuLaunchKernelEx
        self._device = device
        # Then no launch has to ask which context is current: the driver refuses a missing one.
        self._is_only_device = bindings.device_count() == 1

    def __call__(self) -> None:
        """Launch.

        Raises:
            LaunchError: The driver refused the launch.
            DriverError: A kernel before it died, and the CUDA context with it.
        """
        self._run(self._packed)

    def _run(self, packed: _PackedLaunch) -> None:
        """Launch, for a trace if there is one; the device need not be the current one."""
        if self._collector_of() is not None:
            self._launch_traced(packed.config, packed.pointers)
        elif self._is_only_device or devices.current_device() == self._device:
            (result,) = self._launch(packed.native, self._function, packed.pointers, 0)
            if result:
                self._launch_on_device(result, packed.native, packed.pointers)
        else:
            with devices.on_device(self._device):
                self._run(packed)

    def bind(self, addresses: Sequence[int], stream: int) -> Callable[[], None]:
        """Return a call that launches with these arguments, cheaper than `launch_at`.

        It has its own copy of the packed arguments, which never changes: calling it writes nothing.
        Making it costs about as much as three calls of `launch_at`.
        """
        config = self._packed.config
        if stream != config.stream:
            config = config._replace(stream=stream)
        arguments = self._packed.arguments.copy()
        arguments.write(*addresses)
        native, pointers = _native(config), arguments.pointers
        collector_of, launch, function = self._collector_of, self._launch, self._function

        def call() -> None:
            if collector_of() is not None:
                self._launch_traced(config, arguments.pointers)
                return
            (result,) = launch(native, function, pointers, 0)
            if result:
                self._launch_on_device(result, native, pointers)

        return call if self._is_only_device else _on_its_device(self._device, call)

    def launch_at(self, words: Sequence[Any], stream: int) -> None:
        """Launch with other words at the front of the first arguments, on a stream.

        They are the addresses of tiles and pointers; after `take_values`, numbers as well. Raises
        what a call does; may be used from several threads.
        """
        try:
            packed = self._free.pop()
        except IndexError:  # other threads are launching
            packed = self._packed.copy(self._formats)
        try:
            packed.write(*words)
            if stream != packed.stream:
                packed.move_to(stream)
            self._run(packed)
        finally:
            self._free.append(packed)

    def _launch_on_device(self, refusal: Any, native: Any, pointers: int) -> None:
        """Launch again if this thread had no context, or raise the refusal."""
        if refusal.name == "CUDA_ERROR_INVALID_CONTEXT":
            devices.settle_on(self._device)
            (refusal,) = self._launch(native, self._function, pointers, 0)
        if refusal:
            raise _error(refusal)

    def _launch_traced(self, config: LaunchConfig, pointers: int) -> None:
        def launch(function: Any, traced: LaunchConfig) -> None:
            """Launch another function with the same arguments; the device's context is current."""
            (result,) = self._launch(_native(traced), function, pointers, 0)
            if result:
                raise _error(result)

        with devices.on_device(self._device):
            self._tracer.run(launch, config)

    def release(self) -> None:
        """Keep no array alive: the launch gets the addresses of every call."""
        self._keep = None

    def take_values(self, formats: Sequence[str]) -> None:
        """Have `launch_at` take a value for the front of every argument, packed by its format.

        A value that does not fit its struct format is refused with struct.error or OverflowError,
        and nothing is launched.
        """
        self._formats = formats
        self._packed.write = self._packed.arguments.writer(formats)


def _error(refusal: Any) -> Exception:
    return bindings.fatal(refusal) or LaunchError(
        f"the driver refused the launch: {bindings.error_text(refusal)}"
    )


_WORD_BYTES = 8


class _Packed:
    """Arguments as the driver takes them: each at the same distance, and where each lies."""

    __slots__ = ("_stride", "_table", "_words", "pointers")

    def __init__(self, words: array[int], stride: int, count: int) -> None:
        """Keep ``count`` packed arguments, ``stride`` words apart."""
        start, _ = words.buffer_info()
        step_bytes = max(1, stride) * _WORD_BYTES
        self._words = words
        self._stride = stride
        self._table = array("Q", range(start, start + count * step_bytes, step_bytes))
        self.pointers, _ = self._table.buffer_info()

    @classmethod
    def of(cls, arguments: Sequence[bytes]) -> _Packed:
        stride = -(-max(map(len, arguments), default=0) // _WORD_BYTES)
        size_bytes = stride * _WORD_BYTES
        words = array("Q", b"".join([data.ljust(size_bytes, b"\0") for data in arguments]))
        return cls(words, stride, len(arguments))

    def copy(self) -> _Packed:
        """Return the same arguments in memory of their own."""
        return _Packed(self._words[:], self._stride, len(self._table))

    def writer(self, formats: Sequence[str]) -> Callable[..., None]:
        """Return a function that packs a value by each format into the front of each argument."""
        padded = [f"{one}{_WORD_BYTES - struct.calcsize(one)}x" for one in formats]
        pack_into = struct.Struct(f"<{''.join(padded)}").pack_into
        if self._stride == 1:
            return functools.partial(pack_into, self._words, 0)
        words = array("Q", bytes(len(formats) * _WORD_BYTES))
        fronts = memoryview(self._words)[:: max(1, self._stride)]

        def write(*values: int | float) -> None:
            pack_into(words, 0, *values)
            fronts[:] = words

        return write

    def write(self, *addresses: int) -> None:
        """Write addresses into the first eight bytes of the first arguments."""
        words, stride, place = self._words, self._stride, 0
        for address in addresses:
            words[place] = address
            place += stride


class _PackedLaunch:
    """Packed arguments and the configuration that they are launched in, for one thread at once."""

    __slots__ = ("arguments", "config", "native", "pointers", "stream", "write")

    def __init__(self, arguments: _Packed, config: LaunchConfig) -> None:
        self.arguments = arguments
        self.pointers = arguments.pointers
        self.write: Callable[..., None] = arguments.write
        self.config = config
        self.stream = config.stream
        self.native = _native(config)

    def copy(self, formats: Sequence[str] | None) -> _PackedLaunch:
        """Return the same with memory of its own, whose values are packed by these formats."""
        made = _PackedLaunch(self.arguments.copy(), self.config)
        if formats is not None:
            made.write = made.arguments.writer(formats)
        return made

    def move_to(self, stream: int) -> None:
        self.stream = stream
        self.config = self.config._replace(stream=stream)
        self.native = _native(self.config)


@functools.lru_cache(maxsize=1024)
def _native(config: LaunchConfig) -> Any:
    driver = bindings.driver()
    native = driver.CUlaunchConfig()
    native.gridDimX, native.gridDimY, native.gridDimZ = config.grid
    native.blockDimX, native.blockDimY, native.blockDimZ = config.block
    native.sharedMemBytes = config.shared_bytes
    native.hStream = driver.CUstream(config.stream)
    attributes = list(_attributes(config))
    native.attrs = attributes
    native.numAttrs = len(attributes)
    return native


def _attributes(config: LaunchConfig) -> Iterator[Any]:
    driver = bindings.driver()
    ids = driver.CUlaunchAttributeID
    if config.cluster is not None:
        attribute = driver.CUlaunchAttribute()
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dimension = attribute.value.clusterDim
        dimension.x, dimension.y, dimension.z = config.cluster
        yield attribute
    if config.pdl:
        attribute = driver.CUlaunchAttribute()
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        yield attribute
    if config.cooperative:
        attribute = driver.CUlaunchAttribute()
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        yield attribute


def function_handle(function: int) -> Any:
    """Return the driver's handle of a function at this address."""
    return bindings.driver().CUfunction(function)


def allow_shared_bytes(function: Any, shared_bytes: int) -> None:
    """Let a function use this much dynamic shared memory (the default limit is 48 KiB).

    The limit is never lowered: another kernel of the same source may have the same function.
    """
    attributes = bindings.driver().CUfunction_attribute
    limit = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    if shared_bytes > int(bindings.call("cuFuncGetAttribute", limit, function)):
        bindings.call("cuFuncSetAttribute", function, limit, shared_bytes)


def allow_large_clusters(function: Any) -> None:
    """Let a function use clusters of more than eight blocks, which not every GPU has."""
    driver = bindings.driver()
    bindings.call(
        "cuFuncSetAttribute",
        function,
        driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
        1,
    )


def max_active_clusters(function: Any, config: LaunchConfig) -> int:
    """Return the number of clusters of this launch that run at once on the current device."""
    return int(bindings.call("cuOccupancyMaxActiveClusters", function, _native(config)))


def max_resident_blocks(function: Any, config: LaunchConfig, sms: int) -> int:
    """Return the number of blocks of this launch that the current device holds at once."""
    if config.cluster is not None:
        return max_active_clusters(function, config) * math.prod(config.cluster)
    threads = math.prod(config.block)
    blocks = bindings.call(
        "cuOccupancyMaxActiveBlocksPerMultiprocessor", function, threads, config.shared_bytes
    )
    return int(blocks) * sms


def parameter_sizes(function: int, *, is_kernel: bool = False) -> tuple[int, ...]:
    """Return the sizes of a function's parameters in bytes, as the driver knows them (CUDA 12.4).

    Args:
        function: The address of a ``CUfunction``.
        is_kernel: Whether the handle is a ``CUkernel``.
    """
    driver = bindings.driver()
    kind, info = (
        (driver.CUkernel, driver.cuKernelGetParamInfo)
        if is_kernel
        else (driver.CUfunction, driver.cuFuncGetParamInfo)
    )
    handle = kind(function)
    sizes: list[int] = []
    while True:
        result, _, size = info(handle, len(sizes))
        if int(result) == _INVALID_VALUE:  # there are no more
            return tuple(sizes)
        if int(result) != 0:
            raise bindings.fatal(result) or DriverError(
                f"a function is unknown: {bindings.error_text(result)}"
            )
        sizes.append(int(size))


_INVALID_VALUE = 1
