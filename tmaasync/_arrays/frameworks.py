"""NumPy, CuPy, torch and JAX, each through its own cheapest door."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from tmaasync._arrays.dlpack import export
from tmaasync._arrays.value import ArrayView, choose_element, not_an_array, require_memory
from tmaasync._elements import BY_DTYPE
from tmaasync._torch_internals import has_tangent
from tmaasync.errors import ArgumentError


def view_numpy(array: np.ndarray[Any, Any], dtype: object, argument: str) -> ArrayView:
    if isinstance(array, np.ma.MaskedArray):
        raise not_an_array(
            array,
            "TMA would ignore its mask",
            "Pass array.filled(value), or array.data if the mask does not matter",
            argument,
        )
    return ArrayView(
        array.ctypes.data,
        array.shape,
        array.strides,
        choose_element(array.dtype, array.itemsize, dtype, argument),
        None,
        not array.flags.writeable,
        "numpy",
        array,
    )


def view_cupy(array: Any, dtype: object, argument: str) -> ArrayView:
    memory = array.data
    own = array.dtype
    # The look-up alone is the hot path of every cached tile.
    kind = BY_DTYPE.get(own) if dtype is None else None
    if kind is None:
        kind = choose_element(own, own.itemsize, dtype, argument)
    return ArrayView(
        memory.ptr, array.shape, array.strides, kind, memory.device_id, False, "cupy", array
    )


def view_torch(tensor: Any, dtype: object, argument: str) -> ArrayView:
    """View a torch tensor whose derivatives are not wanted."""
    _require_plain_torch(tensor, argument)
    require_no_derivative(tensor, argument)
    try:
        address = tensor.data_ptr()
    except RuntimeError as error:
        raise not_an_array(
            tensor,
            f"it has no memory of its own ({error})",
            "Pass the tensor outside torch.func transforms and torch.compile",
            argument,
        ) from error
    if address == 0:
        require_memory(address, tuple(tensor.shape), argument)
    itemsize = tensor.element_size()
    return ArrayView(
        address,
        tuple(tensor.shape),
        tuple([stride * itemsize for stride in tensor.stride()]),
        choose_element(_torch_dtype(tensor.dtype), itemsize, dtype, argument),
        _torch_device(tensor, argument),
        False,
        "torch",
        tensor,
    )


@lru_cache(maxsize=64)
def _torch_dtype(dtype: object) -> object:
    """Return NumPy's dtype for torch's, or torch's own where there is none."""
    name = str(dtype).removeprefix("torch.")
    try:
        return np.dtype(name)
    except TypeError:
        return dtype


@lru_cache(maxsize=16)
def _is_strided(layout: object) -> bool:
    return str(layout) == "torch.strided"


def requires_backward(tensor: Any) -> bool:
    """Whether torch would record a function of this tensor for the backward pass."""
    return bool(tensor.requires_grad) and bool(sys.modules["torch"].is_grad_enabled())


def require_no_derivative(tensor: Any, argument: str) -> None:
    """Refuse a torch tensor whose gradient, or tangent, would be lost."""
    require_no_tangent(tensor, argument)
    if not requires_backward(tensor):
        return
    remedy = (
        "Call it inside torch.no_grad(), pass the tensor's .detach(), or call a differentiable "
        "form: matmul, grouped_matmul, attention or varlen_attention of tmaasync.torch"
    )
    raise ArgumentError.broken(
        argument,
        f"a tensor of shape {tuple(tensor.shape)} that requires grad, in grad mode",
        "this call has no backward, so the gradient would be lost",
        remedy,
    )


def require_no_tangent(tensor: Any, argument: str) -> None:
    """Refuse a torch tensor whose forward-mode derivative would be lost."""
    if not has_tangent(tensor):
        return
    remedy = "Pass torch.autograd.forward_ad.unpack_dual(tensor).primal, or use torch's function"
    raise ArgumentError.broken(
        argument,
        f"a tensor of shape {tuple(tensor.shape)} with a tangent of forward_ad",
        "this call has no forward-mode derivative, so the tangent would be lost",
        remedy,
    )


def require_updatable(tensor: Any, argument: str) -> None:
    """Refuse a torch tensor that torch itself would not change in place: an inference tensor."""
    if not tensor.is_inference() or sys.modules["torch"].is_inference_mode_enabled():
        return
    remedy = "Call it inside torch.inference_mode(), or pass a tensor that was made outside of it"
    raise ArgumentError.broken(
        argument,
        f"an inference tensor of shape {tuple(tensor.shape)}, outside of inference mode",
        "torch allows no in-place update of it there",
        remedy,
    )


_WITHOUT_MEMORY = frozenset({"FakeTensor", "FunctionalTensor"})


def _require_plain_torch(tensor: Any, argument: str) -> None:
    if type(tensor).__name__ in _WITHOUT_MEMORY or tensor.device.type == "meta":
        raise not_an_array(
            tensor,
            "a meta or fake tensor has a shape and no memory",
            "Pass a tensor with memory. In torch.compile, torch.export and on meta tensors call "
            "the operators torch.ops.tmaasync.*, which `import tmaasync.torch` registers",
            argument,
        )
    if tensor.is_nested or not _is_strided(tensor.layout):
        raise not_an_array(
            tensor,
            f"its layout is {'nested' if tensor.is_nested else tensor.layout}, not one block of "
            "memory with strides",
            "Pass tensor.to_dense(), or the parts of it",
            argument,
        )
    if tensor.is_neg() or tensor.is_conj():
        raise not_an_array(
            tensor,
            "it is a lazy negation or conjugate whose memory holds other values",
            "Pass tensor.resolve_neg().resolve_conj()",
            argument,
        )


def _torch_device(tensor: Any, argument: str) -> int | None:
    kind = tensor.device.type
    if kind == "cuda":
        return int(tensor.get_device())
    if kind == "cpu":
        return None
    raise not_an_array(
        tensor,
        f"it lies on the device {tensor.device}, which is neither the host nor a CUDA device",
        'Move it: tensor.to("cuda")',
        argument,
    )


def view_jax(array: Any, dtype: object, argument: str) -> ArrayView:
    """View a JAX array once it is computed; JAX arrays are immutable, hence read only."""
    _require_one_jax_buffer(array, argument)
    kind = choose_element(array.dtype, array.dtype.itemsize, dtype, argument)
    array.block_until_ready()
    # DLPack rather than the bare pointer: it honours the layout that XLA chose. The array itself
    # keeps the buffer, so the capsule goes: holding it would keep the array from being donated.
    tensor = export(array, argument, is_ready=True)
    return ArrayView(
        tensor.address,
        tensor.shape,
        tensor.strides_bytes,
        kind,
        tensor.device,
        True,
        "jax",
        array,
    )


def _require_one_jax_buffer(array: Any, argument: str) -> None:
    if array.is_deleted():
        raise ArgumentError.broken(
            argument,
            f"a JAX array of shape {array.shape}",
            "it was deleted or donated to a jitted function",
            "Pass the array that function returned",
        )
    devices = len(array.devices())
    if devices > 1:
        raise ArgumentError.broken(
            argument,
            f"a JAX array of shape {array.shape} over {devices} devices",
            "a tensor map describes memory of one device",
            "Pass one of its parts: array.addressable_shards[i].data",
        )


def refuse_tracer(array: object, dtype: object, argument: str) -> NoReturn:
    """Refuse an array that exists only while JAX traces a function."""
    raise not_an_array(
        array,
        "inside jax.jit and other transforms an array has no memory yet",
        "Call tmaasync outside them, with a concrete array",
        argument,
    )
