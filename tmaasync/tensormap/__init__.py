"""The 128 bytes of a tensor map: every rule with its remedy, encoded bit for bit.

Pure Python, no GPU. `TensorMapSpec` describes a tiled map, `Im2colSpec` one for convolutions; both
list the rules that they break, propose the nearest legal spec, and become the driver's bytes.
"""

from tmaasync._hardware import MAX_SHARED_BYTES
from tmaasync.tensormap.encoding import TENSOR_MAP_BYTES, encode_words
from tmaasync.tensormap.remedy import Explanation
from tmaasync.tensormap.spec import Im2colSpec, TensorMapSpec

__all__ = [
    "MAX_SHARED_BYTES",
    "TENSOR_MAP_BYTES",
    "Explanation",
    "Im2colSpec",
    "TensorMapSpec",
    "encode_words",
]
