"""A stand-in for the CUDA driver: one that notes what it is given and answers as a test asks.

Types and enumerations come from the real bindings, which need no driver. Device memory is host
memory. The fixture ``use_driver`` puts it in the place of the real one.
"""

from __future__ import annotations

import ctypes
import importlib
import struct
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from tmaasync._driver import DeviceLimits
from tmaasync.emulate import LIMITS

real: Any = importlib.import_module("cuda.bindings.driver")
_SUCCESS = real.CUresult.CUDA_SUCCESS


class Driver:
    """Devices of the same kind, of which the first is current.

    Attributes:
        contexts: The devices whose contexts this thread has pushed; the last one is current.
        done: What was called to allocate, fill, copy, wait or free, with the numbers it was given.
        launched: The stream, the current device and the arguments of every launch.
        launch_configs: How the driver was given the launches.
        functions: What was launched.
        statuses: The answers to the next launches; success when there are none.
        wait_s: How long a launch takes to be accepted.
        busy_looks: How many more times a stream says that it is busy.
        is_capturing: Whether streams are being captured.
        dynamic_shared_bytes: What each function may use, by its handle, where that was set.
        has_died: Whether a kernel has died.
        modules: The device on which each module was loaded; a module's handle is its index.
        variables: The size of each variable that modules have.
        retained: The devices whose primary contexts are retained, once for each time.
        map_offset: The difference between a tensor map's first word and the address of its array.
        unlinked: Pairs of devices of which the first cannot reach the second.
        peers: Pairs of devices of which the first was given access to the second.
        pools: The devices that may access each stream-ordered pool, by an address in it.
        mapped: The same of memory of virtual memory management.
    """

    def __init__(
        self,
        devices: int = 1,
        limits: DeviceLimits = LIMITS,
        *,
        clock_khz: int = 2_000_000,
        argument_sizes: Sequence[int] = (),
    ) -> None:
        self._devices, self._limits, self._clock_khz = devices, limits, clock_khz
        self._argument_sizes = argument_sizes
        self._memory: dict[int, Any] = {}
        self.contexts = [0]
        self.done: list[tuple[Any, ...]] = []
        self.launched: list[tuple[int, int | None, list[bytes]]] = []
        self.launch_configs: list[Any] = []
        self.functions: list[object] = []
        self.statuses: list[int] = []
        self.wait_s = 0.0
        self.busy_looks = 0
        self.is_capturing = False
        self.has_died = False
        self.modules: list[int] = []
        self.texts: list[str] = []  # of PTX modules
        self.variables: dict[str, int] = {}
        self.retained: list[int] = []
        self.dynamic_shared_bytes: dict[int, int] = {}
        self._kinds: dict[int, str] = {}
        self._addresses: dict[tuple[int, str], int] = {}
        self.map_offset = 0
        self.unlinked: set[tuple[int, int]] = set()
        self.peers: set[tuple[int, int]] = set()
        self.pools: dict[int, set[int]] = {}
        self.mapped: dict[int, set[int]] = {}

    @property
    def pinned(self) -> list[int]:
        """The addresses of pinned host memory."""
        return [address for address, name in self._kinds.items() if name == "cuMemHostAlloc"]

    def variable(self, module: int, name: str, dtype: Any) -> Any:
        """The present value of a variable of a module."""
        data = ctypes.string_at(self._addresses[module, name], dtype.itemsize)
        return np.frombuffer(data, dtype)[0]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith(("CU", "cuuint")):
            raise AttributeError(f"this driver has no {name}")
        return getattr(real, name)

    def cuGetErrorString(self, result: Any) -> tuple[Any, bytes]:  # noqa: N802
        return _SUCCESS, b"words"

    # --- devices and contexts -----------------------------------------------------------------

    def cuDeviceGetCount(self) -> tuple[Any, int]:  # noqa: N802
        return _SUCCESS, self._devices

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, int]:  # noqa: N802
        assert 0 <= ordinal < self._devices
        return _SUCCESS, ordinal

    def cuDeviceGetName(self, size: int, device: int) -> tuple[Any, bytes]:  # noqa: N802
        return _SUCCESS, self._limits.name.encode().ljust(size, b"\0")

    def cuDeviceGetAttribute(self, which: Any, device: int) -> tuple[Any, int]:  # noqa: N802
        major, minor = self._limits.compute_capability
        return _SUCCESS, {
            "CLOCK_RATE": self._clock_khz,
            "COMPUTE_CAPABILITY_MAJOR": major,
            "COMPUTE_CAPABILITY_MINOR": minor,
            "MULTIPROCESSOR_COUNT": self._limits.sms,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": self._limits.shared_bytes,
            "MAX_THREADS_PER_BLOCK": self._limits.threads_per_block,
        }[which.name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def cuCtxGetDevice(self) -> tuple[Any, int]:  # noqa: N802
        if not self.contexts:
            return real.CUresult.CUDA_ERROR_INVALID_CONTEXT, -1
        return _SUCCESS, self.contexts[-1]

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, int]:  # noqa: N802
        self.retained.append(device)
        return _SUCCESS, device

    def cuDevicePrimaryCtxRelease(self, device: int) -> tuple[Any]:  # noqa: N802
        self.retained.remove(device)
        if device not in self.retained:  # its context is destroyed
            self.peers = {pair for pair in self.peers if device not in pair}
        return (_SUCCESS,)

    def cuCtxPushCurrent(self, context: int) -> tuple[Any]:  # noqa: N802
        self.contexts.append(context)
        return (_SUCCESS,)

    def cuCtxSetCurrent(self, context: int) -> tuple[Any]:  # noqa: N802
        self.contexts[-1:] = [context]
        return (_SUCCESS,)

    def cuCtxPopCurrent(self) -> tuple[Any, int]:  # noqa: N802
        return _SUCCESS, self.contexts.pop()

    # --- peers --------------------------------------------------------------------------------

    def cuDeviceCanAccessPeer(self, device: int, peer: int) -> tuple[Any, int]:  # noqa: N802
        return _SUCCESS, int((device, peer) not in self.unlinked)

    def cuCtxEnablePeerAccess(self, context: int, flags: int) -> tuple[Any]:  # noqa: N802
        assert flags == 0
        pair = self.contexts[-1], context
        if pair in self.peers:
            return (real.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,)
        self.peers.add(pair)
        return (_SUCCESS,)

    def cuPointerGetAttribute(self, which: Any, address: int) -> tuple[Any, Any]:  # noqa: N802
        if which.name == "CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE":
            return _SUCCESS, address not in {*self.pools, *self.mapped}
        assert which.name == "CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE"
        return _SUCCESS, real.CUmemoryPool(address if address in self.pools else 0)

    def cuMemPoolGetAccess(self, pool: Any, where: Any) -> tuple[Any, Any]:  # noqa: N802
        return _SUCCESS, self._flags(self.pools[int(pool)], where)

    def cuMemGetAccess(self, where: Any, address: int) -> tuple[Any, Any]:  # noqa: N802
        if address not in self.mapped:
            return real.CUresult.CUDA_ERROR_INVALID_VALUE, 0
        return _SUCCESS, self._flags(self.mapped[address], where)

    def _flags(self, allowed: set[int], where: Any) -> Any:
        flags = real.CUmemAccess_flags
        assert where.type == real.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        is_allowed = where.id in allowed
        return (
            flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            if is_allowed
            else flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
        )

    # --- modules ------------------------------------------------------------------------------

    def cuModuleLoadData(self, image: int) -> tuple[Any, int]:  # noqa: N802
        if ctypes.string_at(image, 8) == b".version":  # a null byte ends the text
            self.texts.append(ctypes.string_at(image).decode())
            return real.CUresult(222 if ".version 99" in self.texts[-1] else 0), 0
        if ctypes.string_at(image, 4) != b"\x7fELF":
            return real.CUresult.CUDA_ERROR_INVALID_IMAGE, 0
        self.modules.append(self.contexts[-1])
        return _SUCCESS, len(self.modules) - 1

    def cuModuleGetFunction(self, module: int, name: bytes) -> tuple[Any, Any]:  # noqa: N802
        return _SUCCESS, real.CUfunction(100 * (module + 1) + len(name))

    def cuModuleGetGlobal(self, module: int, name: bytes) -> tuple[Any, int, int]:  # noqa: N802
        text = name.decode()
        size = self.variables.get(text)
        if size is None:
            return real.CUresult.CUDA_ERROR_NOT_FOUND, 0, 0
        if (module, text) not in self._addresses:
            self._addresses[module, text] = self._allocate("variable", size)
        return _SUCCESS, self._addresses[module, text], size

    # --- launches -----------------------------------------------------------------------------

    def cuLaunchKernelEx(  # noqa: N802
        self, config: Any, function: object, pointers: int, extra: int
    ) -> tuple[Any]:
        assert extra == 0
        sizes = self._argument_sizes
        places = struct.unpack(f"{len(sizes)}Q", ctypes.string_at(pointers, 8 * len(sizes)))
        time.sleep(self.wait_s)  # others may run, as while the driver's own code does
        arguments = [ctypes.string_at(at, size) for at, size in zip(places, sizes, strict=True)]
        device = self.contexts[-1] if self.contexts else None
        self.launched.append((int(config.hStream), device, arguments))
        self.launch_configs.append(config)
        self.functions.append(function)
        return (real.CUresult(self.statuses.pop(0) if self.statuses else 0),)

    def cuFuncGetAttribute(self, which: Any, function: Any) -> tuple[Any, int]:  # noqa: N802
        assert which.name == "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
        return _SUCCESS, self.dynamic_shared_bytes.get(int(function), 48 << 10)

    def cuFuncSetAttribute(self, function: Any, which: Any, value: int) -> tuple[Any]:  # noqa: N802
        self.done.append(("cuFuncSetAttribute", which.name, value))
        if which.name == "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES":
            self.dynamic_shared_bytes[int(function)] = value
        return (_SUCCESS,)

    def cuOccupancyMaxActiveClusters(self, function: object, config: Any) -> tuple[Any, int]:  # noqa: N802
        self.launch_configs.append(config)
        return _SUCCESS, self._limits.sms // config.gridDimX

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(  # noqa: N802
        self, function: object, threads: int, shared_bytes: int
    ) -> tuple[Any, int]:
        return _SUCCESS, min(2048 // threads, 228 * 1024 // (shared_bytes + 1024))

    # --- tensor maps: the address, the allocation's bit of Blackwell, and nothing else -----------

    def cuTensorMapEncodeTiled(self, kind: Any, rank: int, address: int, *rest: Any) -> Any:  # noqa: N802
        words = [address + self.map_offset, 1 << (85 - 64), *[0] * 14]
        return _SUCCESS, SimpleNamespace(opaque=words)

    # --- memory -------------------------------------------------------------------------------

    def cuMemAlloc(self, size: int) -> tuple[Any, int]:  # noqa: N802
        return _SUCCESS, self._allocate("cuMemAlloc", size)

    def cuMemHostAlloc(self, size: int, flags: int) -> tuple[Any, int]:  # noqa: N802
        assert flags == real.CU_MEMHOSTALLOC_DEVICEMAP | real.CU_MEMHOSTALLOC_PORTABLE
        return _SUCCESS, self._allocate("cuMemHostAlloc", size)

    def _allocate(self, name: str, size: int) -> int:
        self.done.append((name, size))
        memory = ctypes.create_string_buffer(size)
        address = ctypes.addressof(memory)
        self._memory[address], self._kinds[address] = memory, name
        return address

    def cuMemFree(self, address: int) -> tuple[Any]:  # noqa: N802
        return self._free("cuMemFree", address)

    def cuMemFreeHost(self, address: int) -> tuple[Any]:  # noqa: N802
        return self._free("cuMemFreeHost", address)

    def _free(self, name: str, address: int) -> tuple[Any]:
        self.done.append((name, address))
        del self._memory[address], self._kinds[address]
        return (_SUCCESS,)

    def cuMemsetD8(self, address: int, value: int, size: int) -> tuple[Any]:  # noqa: N802
        self.done.append(("cuMemsetD8", address, value, size))
        ctypes.memset(address, value, size)
        return (_SUCCESS,)

    def cuMemcpyHtoD(self, target: int, source: int, size: int) -> tuple[Any]:  # noqa: N802
        self.done.append(("cuMemcpyHtoD", target, size))
        ctypes.memmove(target, source, size)
        return (_SUCCESS,)

    def cuMemcpyDtoDAsync(  # noqa: N802
        self, target: int, source: int, size: int, stream: Any
    ) -> tuple[Any]:
        self.done.append(("cuMemcpyDtoDAsync", target, source, size, int(stream)))
        ctypes.memmove(target, source, size)
        return (real.CUresult(self.statuses.pop(0) if self.statuses else 0),)

    def cuMemcpyDtoH(self, target: int, source: int, size: int) -> tuple[Any]:  # noqa: N802
        self.done.append(("cuMemcpyDtoH", source, size))
        ctypes.memmove(target, source, size)
        return (_SUCCESS,)

    # --- streams ------------------------------------------------------------------------------

    def cuStreamIsCapturing(self, stream: Any) -> tuple[Any, Any]:  # noqa: N802
        statuses = real.CUstreamCaptureStatus
        return _SUCCESS, (
            statuses.CU_STREAM_CAPTURE_STATUS_ACTIVE
            if self.is_capturing
            else statuses.CU_STREAM_CAPTURE_STATUS_NONE
        )

    def cuStreamQuery(self, stream: Any) -> tuple[Any]:  # noqa: N802
        self.busy_looks -= 1
        is_busy = self.busy_looks >= 0
        return (real.CUresult.CUDA_ERROR_NOT_READY if is_busy else _SUCCESS,)

    def cuStreamSynchronize(self, stream: Any) -> tuple[Any]:  # noqa: N802
        self.done.append(("cuStreamSynchronize", int(stream)))
        return (real.CUresult.CUDA_ERROR_LAUNCH_FAILED if self.has_died else _SUCCESS,)

    def cuCtxSynchronize(self) -> tuple[Any]:  # noqa: N802
        self.done.append(("cuCtxSynchronize", self.contexts[-1]))
        return (real.CUresult.CUDA_ERROR_LAUNCH_FAILED if self.has_died else _SUCCESS,)

    def cuStreamCreate(self, flags: int) -> tuple[Any, Any]:  # noqa: N802
        assert flags == int(real.CUstream_flags.CU_STREAM_NON_BLOCKING)
        return _SUCCESS, real.CUstream(999)

    def cuStreamWaitValue32(  # noqa: N802
        self, stream: Any, address: int, value: int, flags: int
    ) -> tuple[Any]:
        assert flags == int(real.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)
        self.done.append(("wait", self.contexts[-1], int(stream), address, value))
        return (_SUCCESS,)

    def cuStreamWriteValue32(  # noqa: N802
        self, stream: Any, address: int, value: int, flags: int
    ) -> tuple[Any]:
        assert flags == int(real.CUstreamWriteValue_flags.CU_STREAM_WRITE_VALUE_DEFAULT)
        self.done.append(("write", self.contexts[-1], int(stream), address, value))
        return (_SUCCESS,)

    def cuMemcpyDtoHAsync(  # noqa: N802
        self, target: int, source: int, size: int, stream: Any
    ) -> tuple[Any]:
        assert int(stream) == 999
        ctypes.memmove(target, source, size)
        return (_SUCCESS,)

    def cuMemcpyHtoDAsync(  # noqa: N802
        self, target: int, source: int, size: int, stream: Any
    ) -> tuple[Any]:
        assert int(stream) == 999
        ctypes.memmove(target, source, size)
        return (_SUCCESS,)
