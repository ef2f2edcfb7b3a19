"""Arrays of any library: address, shape, strides, element type, device and stream.

Nothing here imports an array library other than NumPy. Whose array it is shows in the name of its
type, so that asking costs about a microsecond and `import tmaasync` drags nothing in.
"""

from tmaasync._arrays.checks import (
    common_device,
    current_address,
    is_contiguous,
    may_overlap,
    require_current,
    require_writable,
    where,
)
from tmaasync._arrays.dispatch import (
    AddressReader,
    Guard,
    address_reader,
    fingerprint,
    guard,
    view,
)
from tmaasync._arrays.dlpack import have_stream_wait
from tmaasync._arrays.frameworks import (
    require_no_derivative,
    require_no_tangent,
    require_updatable,
)
from tmaasync._arrays.protocols import read_interface
from tmaasync._arrays.streams import current_stream_of, stream_of
from tmaasync._arrays.value import STAND_IN, ArrayView, host_array, numpy_array

__all__ = [
    "STAND_IN",
    "AddressReader",
    "ArrayView",
    "Guard",
    "address_reader",
    "common_device",
    "current_address",
    "current_stream_of",
    "fingerprint",
    "guard",
    "have_stream_wait",
    "host_array",
    "is_contiguous",
    "may_overlap",
    "numpy_array",
    "read_interface",
    "require_current",
    "require_no_derivative",
    "require_no_tangent",
    "require_updatable",
    "require_writable",
    "stream_of",
    "view",
    "where",
]
