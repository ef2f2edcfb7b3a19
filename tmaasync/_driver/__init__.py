"""The CUDA driver: devices, tensor maps encoded, kernels launched, streams, memory."""

from tmaasync._driver.bindings import device_count, driver_version, results
from tmaasync._driver.devices import (
    DeviceLimits,
    current_device,
    cycle_ns,
    device_limits,
    note_untested,
    on_device,
    require_device,
)
from tmaasync._driver.launches import (
    UNTRACED,
    LaunchConfig,
    PreparedLaunch,
    Tracer,
    allow_large_clusters,
    allow_shared_bytes,
    function_handle,
    max_active_clusters,
    parameter_sizes,
)
from tmaasync._driver.memory import (
    BLANK_BYTES,
    allocate,
    allocate_pinned,
    blank_address,
    clear,
    copy_bytes,
    download,
    free,
    free_pinned,
    upload,
)
from tmaasync._driver.modules import load_module, module_function, module_global
from tmaasync._driver.streams import is_busy, is_capturing, synchronize, wait_for
from tmaasync._driver.tensor_maps import encode

__all__ = [
    "BLANK_BYTES",
    "UNTRACED",
    "DeviceLimits",
    "LaunchConfig",
    "PreparedLaunch",
    "Tracer",
    "allocate",
    "allocate_pinned",
    "allow_large_clusters",
    "allow_shared_bytes",
    "blank_address",
    "clear",
    "copy_bytes",
    "current_device",
    "cycle_ns",
    "device_count",
    "device_limits",
    "download",
    "driver_version",
    "encode",
    "free",
    "free_pinned",
    "function_handle",
    "is_busy",
    "is_capturing",
    "load_module",
    "max_active_clusters",
    "module_function",
    "module_global",
    "note_untested",
    "on_device",
    "parameter_sizes",
    "require_device",
    "results",
    "synchronize",
    "upload",
    "wait_for",
]
