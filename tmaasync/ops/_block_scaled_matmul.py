"""ops.scaled_matmul with scale factors for blocks of 32 or 16.

The kernels are scaled_gemm_tensor_memory.cu and, without tensor memory, scaled_gemm_warps.cu.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._kinds import is_one_of
from tmaasync.errors import ArgumentError
from tmaasync.kernel import Launch
from tmaasync.ops._allocation import (
    Output,
    fill,
    in_order,
    reached_operand,
    reached_output,
)
from tmaasync.ops._call_cache import Binding, CallCache
from tmaasync.ops._gemm.block_scaled import (
    BlockScaledArguments,
    block_scaled_kernel,
    block_scaled_tiles,
)
from tmaasync.ops._gemm.block_scales import (
    FACTORS,
    FLOAT4,
    Blocks,
    Format,
    check_layout,
    reached_atoms,
    type_of,
)
from tmaasync.ops._gemm.config import Occupancy, PersistentWork
from tmaasync.ops._gemm.epilogue import Activation, EpilogueArguments, epilogue_numbers, float_bits
from tmaasync.ops._gemm.tensor_memory import (
    BlockScaledConfig,
    block_scaled_config,
    runs_on_tensor_memory,
)
from tmaasync.ops._gemm.tiles import prepared_persistent
from tmaasync.ops._gemm.warp_scaled import WarpScaledConfig, warp_scaled_config
from tmaasync.ops._layouts import Layout, Operand, check_output, is_apart, refuse_overlap
from tmaasync.ops._operation import Operation

_FLOAT_BYTES = 4
_OUTPUTS = ("bfloat16", "float16", "float32")


class Call(NamedTuple):
    """The arguments of a call.

    Attributes:
        a: As given, like the next three.
        b: See ``a``.
        scale_a: See ``a``; or a pair of factors and one scale of the whole matrix.
        scale_b: See ``scale_a``.
        out: The output; None for a new one.
        dtype: Its type.
        dtypes: Types to read a, b and the scale factors as.
        layout: How the scale factors lie in memory.
    """

    a: Any
    b: Any
    scale_a: Any
    scale_b: Any
    out: Any
    dtype: object
    dtypes: tuple[object, object, object]
    layout: object

    @property
    def is_block_scaled(self) -> bool:
        """Whether it asks for scale factors of one byte, rather than float32 scales."""
        scales = (self.scale_a, self.scale_b)
        return (
            any(isinstance(scale, tuple | list) for scale in scales)
            or self.dtypes[2] is not None
            or not is_one_of(self.layout, ("rows",))
            or any(type_of(scale, None) in FACTORS for scale in scales)
            or type_of(self.a, self.dtypes[0]) == FLOAT4
        )

    @property
    def pairs(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """The scale factors of a and b, each with the scale of the whole matrix or None."""
        return _pair("scale_a", self.scale_a), _pair("scale_b", self.scale_b)


def _pair(name: str, scale: Any) -> tuple[Any, Any]:
    if not isinstance(scale, tuple | list):
        return scale, None
    if len(scale) == 2:
        return scale[0], scale[1]
    raise ArgumentError.broken(
        name,
        f"{len(scale)} arrays",
        "it is the scale factors, or a pair of them and the scale of the whole matrix",
        "Pass (factors, scale)",
    )


def multiply_blocks(cache: CallCache, call: Call, option: object, stream: object) -> Any:
    """Run a call that is not in the cache by its arrays alone, and cache it."""
    layout = check_layout(call.layout)
    (factors_a, whole_a), (factors_b, whole_b) = call.pairs
    (alpha, _), _, whole_a, whole_b = epilogue_numbers(1.0, 0.0, None, whole_a, whole_b)
    whole: EpilogueArguments[Any] = EpilogueArguments(
        alpha != 1, Activation.NONE, None, None, whole_a, whole_b
    )
    numbers = (alpha,) if whole.form != EpilogueArguments().form else ()
    arrays = (call.a, call.b, factors_a, factors_b, *whole.arrays)
    arrays = arrays if call.out is None else (*arrays, call.out)
    if numbers:
        option = (option, whole.form)
        done = cache.run(arrays, option, stream, numbers)
        if done is not None:
            return done[-1]
    blocks = Blocks.of((call.a, call.b, factors_a, factors_b), call.dtypes, layout)
    whole = whole.views()
    output = _output(blocks, whole, call)
    operation = cache.operation(
        BlockScaledMatmul,
        *map(Layout.of, blocks.views),
        output.layout,
        kind=Kind(blocks.types, blocks.format, blocks.swizzled, bool(numbers), tuple(whole.named)),
    )
    operation.run(blocks, output.view, stream, whole, alpha)
    operation.remember_in(cache, arrays, option, (*blocks.views, *whole.arrays), output)
    return output.array


def _output(blocks: Blocks, whole: EpilogueArguments[ArrayView], call: Call) -> Output:
    """Return the output; it shares no memory with the operands."""
    shape = blocks.a.shape[0], blocks.b.shape[1]
    wanted = "bfloat16" if call.dtype is None else call.dtype
    output = Output.of(call.out, blocks.a, shape, _OUTPUTS, wanted)
    check_output(output.view, shape, blocks.a.device, _OUTPUTS, call.dtype)
    _arrays.common_device({"out": output.view, **whole.named})
    named = {f"the whole matrix's {name}": view for name, view in whole.named.items()}
    refuse_overlap("out", output.view, {**blocks.named, **named})
    return output


class Kind(NamedTuple):
    """The properties of a call, other than layouts, on which kernel and parameters depend.

    Attributes:
        types: Element types of a and b.
        format: Their format.
        swizzled: Whether the scale factors are swizzled atoms.
        is_scaled: Whether there is a factor of the whole result.
        whole: Which of scale_a and scale_b are arrays with the scale of a whole matrix.
    """

    types: tuple[str, str]
    format: Format
    swizzled: bool
    is_scaled: bool
    whole: tuple[str, ...]


class BlockScaledOperation(Operation):
    """A block-scaled GEMM, or a grouped one, for given layouts."""

    name: ClassVar[str]

    def __init__(
        self, a: Layout, b: Layout, scale_a: Layout, scale_b: Layout, out: Layout, *, kind: Kind
    ) -> None:
        super().__init__(out.device)
        self.backend.require_scale_factors(f"{self.name} of {kind.format.name}")
        self._kind = kind
        self._a, self._b = Operand.of_rows(a), Operand.of_rows(b.transposed)
        self._out = Operand.of_output(out)
        is_staged = any(one.is_staged for one in (self._a, self._b, self._out))
        is_aligned = scale_a.is_aligned and scale_b.is_aligned
        self._needs_staging = is_staged or not (kind.swizzled and is_aligned)
        spans = [layout.span_bytes for layout in (a, b, scale_a, scale_b)]
        self._spans = (*spans, *self._spans_of_scales(b), out.span_bytes)

    def _spans_of_scales(self, b: Layout) -> Sequence[int]:
        """Return the bytes of the arrays between the operands and the output."""
        raise NotImplementedError

    def _config(
        self, m: int, n: int, occupancy: Occupancy, groups: int = 0
    ) -> BlockScaledConfig | WarpScaledConfig:
        """Return the config; groups have m rows on average."""
        factors = self._kind.format.stage_factors
        if runs_on_tensor_memory(self.backend, self._kind.types[0]):
            return block_scaled_config(m, n, factors, occupancy, groups)
        return self.fitted(warp_scaled_config(m, n, factors, occupancy, groups))


class BlockScaledMatmul(BlockScaledOperation):
    name: ClassVar = "ops.scaled_matmul"

    def _spans_of_scales(self, b: Layout) -> Sequence[int]:
        del b  # one scale, whatever its shape
        return [_FLOAT_BYTES for _ in self._kind.whole]

    def run(
        self,
        blocks: Blocks,
        out: ArrayView,
        stream: object,
        whole: EpilogueArguments[ArrayView],
        alpha: float,
    ) -> None:
        if out.is_empty:
            return
        handle = self.ordered((*blocks.views, *whole.arrays, out), stream)
        if blocks.a.shape[1] == 0:
            with in_order(out.framework, out.device, handle):
                fill(out, 0)
            return
        a = self._a.rows.over(reached_operand(self._a, blocks.a, handle))
        b = self._b.rows.over(reached_operand(self._b, blocks.b, handle, transposes=True))
        of_a = reached_atoms(blocks, blocks.scale_a, handle, transposes=False)
        of_b = reached_atoms(blocks, blocks.scale_b, handle, transposes=True)
        with reached_output(self._out, out, handle) as target:
            views = (a, b, of_a, of_b, self._out.rows.over(target))
            launch = self.prepared(lambda: self._prepare(*views))
            given = [view.address for view in whole.arrays]
            launch.launch_at(
                self._parameters([view.address for view in views], given, alpha), handle
            )

    def bind(self, addresses: Sequence[int], alpha: float = 1.0) -> Binding | None:
        """See `Operation`. Addresses: the operands, the scales of whole matrices, out."""
        if self._launch is None or not is_apart(-1, addresses, self._spans):
            return None
        *operands, out = addresses
        return self._launch, self._parameters([*operands[:4], out], operands[4:], alpha)

    def _parameters(
        self, addresses: Sequence[int], given: Sequence[int], alpha: float
    ) -> tuple[int, ...]:
        """Return the kernel's first parameters."""
        at = dict(zip(self._kind.whole, given, strict=True))
        return (*addresses, at.get("scale_a", 0), at.get("scale_b", 0), float_bits(alpha))

    def _prepare(
        self, a: ArrayView, b: ArrayView, of_a: ArrayView, of_b: ArrayView, c: ArrayView
    ) -> Launch:
        (m, n), k_bytes = c.shape, a.shape[1]
        occupancy = Occupancy.of(self.backend)
        config = self._config(m, n, occupancy)
        tiles = block_scaled_tiles((a, b, of_a, of_b), c, config)
        kernel = block_scaled_kernel(
            [tile.cuda_type for tile in tiles],
            self._kind.types,
            self._kind.format,
            config,
            is_scaled=self._kind.is_scaled,
        )
        arguments = BlockScaledArguments(
            *tiles, scale_a=0, scale_b=0, alpha=1.0, m=m, n=n, k=k_bytes
        )
        work = PersistentWork(m, k_bytes, config.clusters(m, n))
        return prepared_persistent(kernel, arguments, config, work, occupancy)
