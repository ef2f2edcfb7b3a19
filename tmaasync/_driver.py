"""The CUDA driver: tensor maps encoded, kernels launched.

The one place where axis order is reversed: everything above runs outermost first, the driver takes
innermost first.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tmaasync.errors import BackendError, DriverError, LaunchError
from tmaasync.tensormap import Im2colSpec, TensorMapSpec

__all__ = [
    "DeviceLimits",
    "LaunchConfig",
    "PreparedLaunch",
    "current_device",
    "device_count",
    "device_limits",
    "driver_version",
    "encode",
    "on_device",
    "require_device",
]


# --- the driver itself ------------------------------------------------------------------------


@functools.cache
def _driver() -> Any:
    """The driver bindings, initialised.

    Raises:
        BackendError: There is no driver, or it has no device.
    """
    try:
        from cuda.bindings import driver

        (result,) = driver.cuInit(0)
    except Exception as error:  # the loader raises RuntimeError, ImportError or its own kind
        raise BackendError(
            "there is no CUDA driver on this machine, and device arrays need one. "
            f"Install NVIDIA's driver, or pass NumPy arrays. ({error})"
        ) from error
    if int(result) != 0:
        raise BackendError(
            f"the CUDA driver does not start ({result.name}): no NVIDIA GPU is visible. Check "
            "nvidia-smi and CUDA_VISIBLE_DEVICES."
        )
    return driver


def _call(name: str, *arguments: Any) -> Any:
    """Call the driver; returns what it returns besides the status."""
    result, *values = getattr(_driver(), name)(*arguments)
    if int(result) != 0:
        raise _fatal(result) or DriverError(f"{name} failed: {_said(result)}")
    return values[0] if values else None


def _said(result: Any) -> str:
    _, text = _driver().cuGetErrorString(result)
    return f"{result.name}. {text.decode() if text else ''}"


# What is left of a context whose kernel trapped, or reached for an address that is not there.
_FATAL = {
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_LAUNCH_FAILED",
}


def _fatal(result: Any, kernel: str = "an earlier kernel") -> DriverError | None:
    """The error of every call after a kernel died; None for others."""
    if result.name not in _FATAL:
        return None
    return DriverError(
        f"{kernel} died, and the CUDA context with it: {_said(result)}. Start a new "
        "process with TMAASYNC_DEBUG=1 in its environment, where kernels say what they were given "
        "wrong, or run the kernel on NumPy arrays."
    )


@functools.cache
def device_count() -> int:
    """How many devices this process can see.

    Raises:
        BackendError: There is no driver, or it has no device.
    """
    return int(_call("cuDeviceGetCount"))


def driver_version() -> tuple[int, int]:
    """The newest CUDA that the driver runs.

    Raises:
        BackendError: There is no driver, or it has no device.
    """
    major, rest = divmod(int(_call("cuDriverGetVersion")), 1000)
    return major, rest // 10


# --- devices ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """What a device allows a launch."""

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    threads_per_block: int


@functools.cache
def device_limits(device: int) -> DeviceLimits:
    """The limits of the device of this ordinal."""
    handle = _call("cuDeviceGet", device)
    attribute = _driver().CUdevice_attribute

    def read(name: str) -> int:
        which = getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(_call("cuDeviceGetAttribute", which, handle))

    name = _call("cuDeviceGetName", 256, handle).split(b"\0")[0].decode()
    return DeviceLimits(
        name=name,
        compute_capability=(read("COMPUTE_CAPABILITY_MAJOR"), read("COMPUTE_CAPABILITY_MINOR")),
        multiprocessors=read("MULTIPROCESSOR_COUNT"),
        shared_bytes=read("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        threads_per_block=read("MAX_THREADS_PER_BLOCK"),
    )


def require_device(device: int) -> DeviceLimits:
    """The limits of a device that has TMA.

    Raises:
        BackendError: The device is older than sm_90.
    """
    limits = device_limits(device)
    major, minor = limits.compute_capability
    if major < 9:
        raise BackendError(
            f"device {device} is a {limits.name} (sm_{major}{minor}); the Tensor Memory "
            "Accelerator exists on sm_90 and later. Use an H100 or H200, or pass NumPy arrays."
        )
    return limits


def current_device() -> int | None:
    """The ordinal of the current context's device; None where no context is current."""
    result, device = _driver().cuCtxGetDevice()
    return int(device) if int(result) == 0 else None


def on_device(device: int | None) -> contextlib.AbstractContextManager[None]:
    """Make the device's primary context current for a while; nothing for host memory."""
    return _HERE if device is None or current_device() == device else _pushed(device)


_HERE = contextlib.nullcontext()


@contextlib.contextmanager
def _pushed(device: int) -> Iterator[None]:
    handle = _call("cuDeviceGet", device)
    context = _call("cuDevicePrimaryCtxRetain", handle)
    _call("cuCtxPushCurrent", context)
    try:
        yield
    finally:
        _call("cuCtxPopCurrent")
        _call("cuDevicePrimaryCtxRelease", handle)


# --- tensor maps ------------------------------------------------------------------------------


def encode(spec: TensorMapSpec | Im2colSpec) -> bytes:
    """The 128 bytes of a legal spec, from the driver.

    Raises:
        DriverError: The driver refuses the spec.
        BackendError: There is no driver or no device.
    """
    map_ = _encode_tiled(spec) if isinstance(spec, TensorMapSpec) else _encode_im2col(spec)
    return b"".join(int(word).to_bytes(8, "little") for word in map_.opaque)


def _encode_tiled(spec: TensorMapSpec) -> Any:
    driver = _driver()
    return _call(
        "cuTensorMapEncodeTiled",
        *_tensor(spec),
        _innermost_first(driver.cuuint32_t, spec.box_shape),
        *_access(spec),
    )


def _encode_im2col(spec: Im2colSpec) -> Any:
    return _call(
        "cuTensorMapEncodeIm2col",
        *_tensor(spec),
        list(reversed(spec.lower_corner)),
        list(reversed(spec.upper_corner)),
        spec.channels_per_pixel,
        spec.pixels_per_column,
        *_access(spec),
    )


def _tensor(spec: TensorMapSpec | Im2colSpec) -> tuple[Any, ...]:
    driver = _driver()
    # A rank-1 map has no stride, but the bindings turn an empty list into a null pointer, which the
    # driver refuses: any legal value serves (measured on an H200, driver 580).
    strides = _innermost_first(driver.cuuint64_t, spec.strides_bytes or (16,))
    return (
        driver.CUtensorMapDataType(int(spec.dtype)),
        len(spec.shape),
        spec.address,
        _innermost_first(driver.cuuint64_t, spec.shape),
        strides,
    )


def _access(spec: TensorMapSpec | Im2colSpec) -> tuple[Any, ...]:
    driver = _driver()
    element_strides = spec.element_strides or (1,) * len(spec.shape)
    return (
        _innermost_first(driver.cuuint32_t, element_strides),
        driver.CUtensorMapInterleave(int(spec.interleave)),
        driver.CUtensorMapSwizzle(int(spec.swizzle)),
        driver.CUtensorMapL2promotion(int(spec.l2_promotion)),
        driver.CUtensorMapFloatOOBfill(int(spec.oob_fill)),
    )


def _innermost_first(integer: Any, values: Sequence[int]) -> list[Any]:
    return [integer(value) for value in reversed(values)]


# --- launches ---------------------------------------------------------------------------------


class LaunchConfig(NamedTuple):
    """Where and how large: blocks, threads, cluster (in blocks), dynamic shared memory, stream."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] | None
    shared_bytes: int
    pdl: bool
    stream: int


class PreparedLaunch:
    """A launch whose arguments are packed: calling it is one driver call.

    The driver copies the packed bytes at each call. What the arguments point to (tiles, arrays) is
    kept alive as long as this object.
    """

    __slots__ = (
        "_config",
        "_device",
        "_function",
        "_is_only_device",
        "_keep",
        "_launch",
        "_lock",
        "_native",
        "_pointers",
        "_stream",
        "_stride",
        "_table",
        "_words",
    )

    def __init__(
        self,
        function: Any,
        config: LaunchConfig,
        arguments: Sequence[bytes],
        keep: object,
        device: int,
    ) -> None:
        """Pack the arguments; nothing is launched."""
        self._stride, self._words = _packed_apart(arguments)
        start, _ = self._words.buffer_info()
        step_bytes = self._stride * _WORD_BYTES
        self._table = array("Q", [start + i * step_bytes for i in range(len(arguments))])
        self._pointers, _ = self._table.buffer_info()
        self._keep = keep
        self._config = config
        self._stream = config.stream
        self._native = _native(config)
        self._function = function
        self._launch = _driver().cuLaunchKernelEx
        self._device = device
        # What context is current need not be asked then, only whether the driver refuses.
        self._is_only_device = device_count() == 1
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Launch.

        Raises:
            LaunchError: The driver refused the launch.
            DriverError: A kernel before it died, and the CUDA context with it.
        """
        (result,) = self._launch(self._native, self._function, self._pointers, 0)
        if result:
            self._launch_on_device(result)

    def at(self, addresses: Sequence[int], stream: int) -> None:
        """Launch with the first arguments (tiles or pointers) at other addresses, on a stream.

        Only their first eight bytes change, which hold the address. Raises what a call does; may be
        used from several threads.
        """
        words, stride, place = self._words, self._stride, 0
        with self._lock:
            for address in addresses:
                words[place] = address
                place += stride
            if stream != self._stream:
                self._stream = stream
                self._native = _native(self._config._replace(stream=stream))
            if self._is_only_device:
                (result,) = self._launch(self._native, self._function, self._pointers, 0)
                if result:
                    self._launch_on_device(result)
            else:
                with on_device(self._device):
                    self()

    def _launch_on_device(self, refusal: Any) -> None:
        """Launch again if this thread had no context, or raise the refusal."""
        if refusal.name == "CUDA_ERROR_INVALID_CONTEXT":
            with on_device(self._device):
                (refusal,) = self._launch(self._native, self._function, self._pointers, 0)
        if refusal:
            raise _fatal(refusal) or LaunchError(f"the driver refused the launch: {_said(refusal)}")

    def release(self) -> None:
        """Keep nothing alive any longer, for a launch that is aimed before each call."""
        self._keep = None


_WORD_BYTES = 8


def _packed_apart(arguments: Sequence[bytes]) -> tuple[int, array[int]]:
    """How many words it is from one argument to the next, and the words of all."""
    stride = max((-(-len(argument) // _WORD_BYTES) for argument in arguments), default=0)
    padded = [argument.ljust(stride * _WORD_BYTES, b"\0") for argument in arguments]
    return stride, array("Q", b"".join(padded))


@functools.lru_cache(maxsize=1024)
def _native(config: LaunchConfig) -> Any:
    driver = _driver()
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
    driver = _driver()
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


def function_handle(function: int) -> Any:
    """The driver's handle of a function at this address."""
    return _driver().CUfunction(function)


def allow_shared_bytes(function: Any, shared_bytes: int) -> None:
    """Let a function use this much dynamic shared memory (the default limit is 48 KiB)."""
    driver = _driver()
    _call(
        "cuFuncSetAttribute",
        function,
        driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        shared_bytes,
    )


def allow_large_clusters(function: Any) -> None:
    """Let a function use clusters of more than eight blocks, which not every GPU has."""
    driver = _driver()
    _call(
        "cuFuncSetAttribute",
        function,
        driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
        1,
    )


def wait_for(stream: int, other: int) -> None:
    """Make work submitted to a stream from now on wait for what another stream holds."""
    driver = _driver()
    event = _call("cuEventCreate", int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    try:
        _call("cuEventRecord", event, driver.CUstream(other))
        _call("cuStreamWaitEvent", driver.CUstream(stream), event, 0)
    finally:
        _call("cuEventDestroy", event)


def is_capturing(stream: int) -> bool:
    """Whether launches on this stream are captured into a graph, and so cannot be waited for."""
    driver = _driver()
    result, status = driver.cuStreamIsCapturing(driver.CUstream(stream))
    idle = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    return int(result) != 0 or int(status) != int(idle)


def is_busy(stream: int) -> bool:
    """Whether work submitted to a stream is still under way, and no kernel of it has died."""
    driver = _driver()
    (result,) = driver.cuStreamQuery(driver.CUstream(stream))
    return bool(result.name == "CUDA_ERROR_NOT_READY")


def synchronize(stream: int, kernel: str) -> None:
    """Wait for the work of a stream, which ends with a launch of this kernel.

    Raises:
        DriverError: It died, and the CUDA context with it.
    """
    driver = _driver()
    (result,) = driver.cuStreamSynchronize(driver.CUstream(stream))
    if int(result) != 0:
        raise _fatal(result, kernel) or DriverError(f"{kernel} failed: {_said(result)}")


# --- memory of our own ------------------------------------------------------------------------


def allocate(device: int, size_bytes: int) -> int:
    """Memory on a device: its address, a multiple of 256."""
    with on_device(device):
        return int(_call("cuMemAlloc", size_bytes))


def allocate_pinned(device: int, size_bytes: int) -> int:
    """Host memory that kernels write: its address, which is the same for both."""
    with on_device(device):
        return int(_call("cuMemHostAlloc", size_bytes, _driver().CU_MEMHOSTALLOC_DEVICEMAP))


def free_pinned(device: int, address: int) -> None:
    """Give such memory back."""
    with on_device(device):
        _call("cuMemFreeHost", address)


BLANK_BYTES = 256
_HOST_BLANK = ctypes.create_string_buffer(2 * BLANK_BYTES)


@functools.cache
def blank_address(device: int | None) -> int:
    """Where there are 256 bytes on a device, or in host memory, as long as the process lives."""
    if device is not None:
        return allocate(device, BLANK_BYTES)
    start = ctypes.addressof(_HOST_BLANK)
    return start + -start % BLANK_BYTES


def free(device: int, address: int) -> None:
    """Give memory back, once everything on the device that was submitted before has ended."""
    with on_device(device):
        _call("cuMemFree", address)


def upload(device: int, address: int, data: bytes) -> None:
    """Write host bytes to a device; they are there, for every stream, when this returns."""
    source = ctypes.create_string_buffer(data, len(data))
    with on_device(device):
        _call("cuMemcpyHtoD", address, ctypes.addressof(source), len(data))
        _call("cuStreamSynchronize", _driver().CUstream(0))


def download(device: int, address: int, size_bytes: int) -> bytes:
    """Read bytes of a device, behind the work of its default stream."""
    data = ctypes.create_string_buffer(size_bytes)
    with on_device(device):
        _call("cuMemcpyDtoH", ctypes.addressof(data), address, size_bytes)
    return data.raw


def copy_bytes(target: int, source: int, size_bytes: int, stream: int) -> None:
    """A device-to-device copy by the driver, in stream order."""
    _call("cuMemcpyDtoDAsync", target, source, size_bytes, _driver().CUstream(stream))


def parameter_sizes(function: int) -> tuple[int, ...]:
    """The sizes of a function's parameters in bytes, as the driver knows them (CUDA 12.4)."""
    driver = _driver()
    handle = driver.CUfunction(function)
    sizes: list[int] = []
    while True:
        result, _, size = driver.cuFuncGetParamInfo(handle, len(sizes))
        if int(result) != 0:
            return tuple(sizes)
        sizes.append(int(size))
