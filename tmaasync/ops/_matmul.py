"""ops.matmul: GEMMs with gemm.cu and gemm_epilogue.cu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync.kernel import Kernel, Launch
from tmaasync.ops._allocation import (
    Allocator,
    address_of,
    contiguous_copy,
    in_order,
    reached_operand,
    reached_output,
    zeros,
)
from tmaasync.ops._call_cache import Binding, CallCache
from tmaasync.ops._gemm.checks import checked
from tmaasync.ops._gemm.config import LINE_BYTES, Occupancy, Orientation, PersistentWork, TileConfig
from tmaasync.ops._gemm.cost_model import candidates, default_config
from tmaasync.ops._gemm.epilogue import (
    NO_EPILOGUE,
    BiasSide,
    EpilogueArguments,
    activation_of,
    epilogue_numbers,
    layouts_of,
)
from tmaasync.ops._gemm.legal_tiles import Problem
from tmaasync.ops._gemm.operands import (
    AS_THEY_ARE,
    Reading,
    takes_any_layout,
)
from tmaasync.ops._gemm.partials import Partials, SplitAddresses
from tmaasync.ops._gemm.tensor_memory import candidates as candidates_on_tensor_memory
from tmaasync.ops._gemm.tensor_memory import runs_on_tensor_memory, tensor_memory_config
from tmaasync.ops._gemm.tiles import (
    GemmArguments,
    GemmEpilogueArguments,
    GemmMatrices,
    gemm_kernel,
    gemm_tiles,
    output_tile,
    prepared_combine,
    prepared_persistent,
)
from tmaasync.ops._gemm.tuned import tuned_config
from tmaasync.ops._layouts import Layout, Operand
from tmaasync.ops._operation import LaunchSequence, Operation
from tmaasync.tile import TMATensorTile

_NO_FACTORS = (1.0, 0.0)
_CALLS = CallCache()


def matmul(  # noqa: PLR0913 - operands, epilogue and types
    a: Any,
    b: Any,
    *,
    alpha: float = 1.0,
    c: Any = None,
    beta: float = 1.0,
    bias: Any = None,
    activation: str | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
    out: Any = None,
    dtype: object = None,
    precision: str | None = None,
    a_dtype: object = None,
    b_dtype: object = None,
    batch_invariant: bool = False,
    stream: object = None,
) -> Any:
    """Multiply two matrices, or batches of them (``a @ b``), with an epilogue.

    ``out = activation(alpha * scale_a * scale_b * (a @ b) + beta * c + bias)``, computed in fp32
    and rounded once.

    Both operands have the same type: bfloat16, float16, or float32 (as tf32). The two FP8 types may
    be mixed, and so may int8 and uint8. The tensor cores accumulate in fp32; for FP8 with about 14
    fraction bits, like torch's ``use_fast_accum=True``; for integers in int32, which cannot
    overflow while K is at most 131,071 (uint8 times uint8: 33,025).

    16-bit operands may have either side contiguous, so ``matmul(a, b.T)`` multiplies by a matrix
    stored as [N, K]. For all other types wgmma needs K contiguous: [M, K] and [N, K]. Operands
    with another layout, or whose rows TMA cannot read (the address or stride is not a multiple of
    16 bytes), are read from staging copies. An output that TMA cannot store (the same rule, and
    row ends must be multiples of 16 bytes) is written through a staging copy.

    M, N, K and the batch may be up to 2^31 - 2^18 (2,147,221,504) each.

    Args:
        a: [M, K], on a GPU, or in host memory for the emulator; or a batch, [B, M, K]. Reshape
            arrays of more dimensions.
        b: [K, N], on the same device; or a batch, [B, K, N]. A single matrix, or a batch of one,
            is broadcast over the other operand's batch.
        alpha: Factor of ``a @ b``.
        c: Addend of the output's shape and type; it may be ``out``. It is read from a staging copy
            if TMA cannot read it, or if its columns are contiguous and the columns of ``out`` are
            not.
        beta: Factor of ``c``; with 0 ``c`` is not read. Without ``c`` it must be 0 or 1.
        bias: [N], added to every row; float32, the output's type, or the type of 16-bit operands.
        activation: ``"relu"``; ``"gelu"``, with erf, accurate to 1e-6; ``"gelu_tanh"``, the usual
            tanh approximation; ``"silu"``. Accumulators that overflow to minus infinity give NaN
            with the last two, as in torch.
        scale_a: Factor of ``a``: a number, or an array of one float32 on the same device. The
            kernel reads the array, so the host does not wait for it.
        scale_b: The same for ``b``. alpha times both scales must fit in float32.
        out: The output, [M, N], or [B, M, N] if either operand is a batch. By default a new array
            of the framework of ``a``; if a row of N elements is not a multiple of 16 bytes, rows
            are padded and the array is not contiguous. It must not overlap an input, except ``c``.
        dtype: Output type: bfloat16, float16 or float32; int32 for integers. By default the type of
            ``out``, else of ``a``; for float8 bfloat16.
        precision: ``"tf32"`` rounds float32 operands to the nearest tf32, which has 10 fraction
            bits. float32 operands require it; all other types reject it.
        a_dtype: Read ``a`` as this type of the same width, for frameworks without
            that type, such as float8 in a CuPy array of uint8.
        b_dtype: The same for ``b``.
        batch_invariant: Whether a row of the output has the same bits whatever M and the batch are.
            Then K is never split, which takes longer where few tiles have a long K.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The output.

    Raises:
        ArgumentError: Shapes or types do not match, ``out`` is invalid, or a factor is not finite.
        ArrayTypeError: A type that the kernel does not have.
        BackendError: The GPU is older than sm_90; or, for host arrays, there is no C++ compiler.
    """
    has_factors = not (type(alpha) is type(beta) is float and alpha == beta == 1)
    if has_factors or not (
        c is bias is activation is scale_a is scale_b is a_dtype is b_dtype is precision is None
        and batch_invariant is False
    ):
        factors, c, scale_a, scale_b = epilogue_numbers(alpha, beta, c, scale_a, scale_b)
        epilogue: EpilogueArguments[Any] = EpilogueArguments(
            factors[0] != 1, activation_of(activation), c, bias, scale_a, scale_b
        )
        reading = Reading.given(a_dtype, b_dtype, precision, batch_invariant)
        arrays, option = _call_key(a, b, out, dtype, epilogue, reading)
        done = _CALLS.run(arrays, option, stream, factors)
        if done is None:
            return _multiply(a, b, out, dtype, epilogue, factors, reading, stream)
        return done[2 + len(epilogue.arrays)]
    arrays = (a, b) if out is None else (a, b, out)
    done = _CALLS.run(arrays, (dtype, out is None), stream)
    if done is None:
        return _multiply(a, b, out, dtype, NO_EPILOGUE, _NO_FACTORS, AS_THEY_ARE, stream)
    return done[2]


def _call_key(
    a: Any, b: Any, out: Any, dtype: object, epilogue: EpilogueArguments[Any], reading: Reading
) -> tuple[tuple[Any, ...], tuple[object, ...]]:
    """Return the arrays, output last, and the rest of the call's key."""
    arrays = (a, b, *epilogue.arrays)
    option: tuple[object, ...] = (dtype, out is None)
    if epilogue is not NO_EPILOGUE or reading is not AS_THEY_ARE:
        option += (epilogue.form, reading)
    return arrays if out is None else (*arrays, out), option


def _multiply(  # noqa: PLR0913 - all that is given
    a: Any,
    b: Any,
    out: Any,
    dtype: object,
    epilogue: EpilogueArguments[Any],
    factors: tuple[float, float],
    reading: Reading,
    stream: object,
) -> Any:
    """Run a call that is not in the cache, and cache it."""
    call = checked(a, b, epilogue, reading, out, dtype)
    if call.a.shape[-1] == 0:
        # K is 0, so the result is zero; a few zeros along K give the same.
        left, right = call.a.shape, call.b.shape
        a = zeros(call.a, (*left[:-1], 8), stream)
        b = zeros(call.b, (*right[:-2], 8, right[-1]), stream)
        reading = Reading(call.a.element, call.b.element)
        return _multiply(a, b, out, dtype, epilogue, factors, reading, stream)
    form = {"epilogue": layouts_of(call.epilogue), "batch_invariant": reading.batch_invariant}
    operation = _CALLS.operation(Matmul, *call.layouts, **form)
    operation.run(call.a, call.b, call.output.view, stream, call.epilogue, factors)
    arrays, option = _call_key(a, b, out, dtype, epilogue, reading)
    workspace = operation.workspace(call.a)
    operation.remember_in(_CALLS, arrays, option, call.operands, call.output, workspace=workspace)
    return call.output.array


# --- the operation ----------------------------------------------------------------------------


class Matmul(Operation):
    _partials: Partials | None = None  # of split-K over the grid

    def __init__(
        self,
        a: Layout,
        b: Layout,
        out: Layout,
        *,
        epilogue: EpilogueArguments[Layout] = NO_EPILOGUE,
        batch_invariant: bool = False,
    ) -> None:
        """Choose how the kernel reads and writes arrays that `checked` accepts."""
        super().__init__(out.device)
        is_plain = epilogue.form == NO_EPILOGUE.form
        self._has_tensor_memory = runs_on_tensor_memory(self.backend, a.element.name)
        a, b, out, epilogue = _with_fewer_dimensions(a, b, out, epilogue)
        self._arguments, self._may_split = epilogue, not batch_invariant
        read = {"a": a, "b": b} | epilogue.named
        self._read_spans = [(name, layout.span_bytes) for name, layout in read.items()]
        self._out_span = out.span_bytes
        c = epilogue.c
        self._may_add_in_place = c is not None and c.strides_bytes == out.strides_bytes

        self._orientation = orientation = Orientation.of(
            a, b, out, is_plain=is_plain, stores_rows=self._has_tensor_memory
        )
        is_column_major = orientation.is_column_major
        m, n = out.shape[-2:]
        if orientation.swap_ab:
            a, b, m, n = b.transposed, a.transposed, n, m
        self._a, self._b = _operand(a, k_is_last=True), _operand(b, k_is_last=False)
        rows = out.transposed if is_column_major else out
        self._out = Operand.of_output(rows)
        # The kernel reads the addend with the layout in which it stores the output.
        self._addend = None
        if c is not None:
            self._addend = Operand.of_rows(c.transposed if is_column_major else c)
        self._copies_bias = epilogue.bias is not None and not epilogue.bias.is_packed
        operands = (self._a, self._b, self._out, self._addend)
        has_staged = any(operand is not None and operand.is_staged for operand in operands)
        self._needs_staging = has_staged or self._copies_bias
        self._epilogue = epilogue.compiled_for(
            BiasSide.ROWS if orientation.swap_ab else BiasSide.COLUMNS
        )
        self.problem = self._problem_of(m, n, a, b, out, m_major=orientation.m_major)

    def _problem_of(
        self, m: int, n: int, a: Layout, b: Layout, out: Layout, *, m_major: bool
    ) -> Problem:
        pitches = (self._a.rows.strides_bytes[-2], self._b.rows.strides_bytes[-2])
        return Problem(
            m,
            n,
            a.shape[-1],
            batches=out.shape[0] if len(out.shape) == 3 else 1,
            operands="/".join(dict.fromkeys((a.element.name, b.element.name))),
            output=out.element.name,
            layout=("t" if self._a.transposed else "n") + ("t" if self._b.transposed else "n"),
            m_major=m_major,
            on_lines=all(pitch % LINE_BYTES == 0 for pitch in pitches),
        )

    @property
    def staged_operands(self) -> tuple[str, ...]:
        """The names of the operands that need staging copies."""
        a, b = (self._b, self._a) if self._orientation.swap_ab else (self._a, self._b)
        return tuple(name for name, operand in (("a", a), ("b", b)) if operand.is_staged)

    def bind(self, addresses: Sequence[int], *factors: float) -> Binding | None:
        """See `Operation`. Addresses: a, b, the epilogue's arrays, out, the workspace if any."""
        workspace = 0
        if self._partials is not None:
            *addresses, workspace = addresses
        if self._launch is None or self.overlaps(addresses):
            return None
        a, b, *given, out = addresses
        if self._orientation.swap_ab:
            a, b = b, a
        if self._partials is not None:
            return self._launch, SplitAddresses(a, b, workspace, out)
        return self._launch, self._pointers(a, b, out, given, factors or _NO_FACTORS)

    def overlaps(self, addresses: Sequence[int]) -> bool:
        """Return whether the output overlaps an input, except an addend that is the output."""
        *starts, out = addresses
        end = out + self._out_span
        for start, (name, span) in zip(starts, self._read_spans, strict=True):
            is_out = start == out and name == "c" and self._may_add_in_place
            if start < end and out < start + span and not is_out:
                return True
        return False

    def run(
        self,
        a: ArrayView,
        b: ArrayView,
        out: ArrayView,
        stream: object,
        epilogue: EpilogueArguments[ArrayView] = NO_EPILOGUE,
        factors: tuple[float, ...] = _NO_FACTORS,
    ) -> None:
        if out.is_empty:
            return
        handle = self.ordered((a, b, out, *epilogue.arrays), stream)
        orientation = self._orientation
        if orientation.swap_ab:
            a, b = b, a
        a = reached_operand(self._a, a, handle, transposes=orientation.swap_ab)
        b = reached_operand(self._b, b, handle, transposes=orientation.swap_ab)
        c, bias = epilogue.c, epilogue.bias
        if c is not None and self._addend is not None:
            c = reached_operand(self._addend, c, handle, transposes=orientation.is_column_major)
        if bias is not None and self._copies_bias:
            bias = contiguous_copy(bias, handle)
        epilogue = epilogue._replace(c=c, bias=bias)
        with reached_output(self._out, out, handle) as target:
            launch = self.prepared(lambda: self._prepare(a, b, target, epilogue))
            allocate = self.workspace(a)
            if allocate is None:
                given = [view.address for view in epilogue.arrays]
                pointers = self._pointers(a.address, b.address, target.address, given, factors)
                launch.launch_at(pointers, handle)
                return
            with self.backend.current(), in_order(a.framework, out.device, handle):
                # Freed at once: in stream order it stays in use until both launches end.
                memory = allocate()
                at = SplitAddresses(a.address, b.address, address_of(memory), target.address)
                launch.launch_at(at, handle)

    def workspace(self, like: ArrayView) -> Allocator | None:
        """Return the allocator of a launch's workspace, or None; call it after ``run``."""
        return None if self._partials is None else self._partials.allocator(like)

    def _pointers(
        self, a: int, b: int, out: int, given: Sequence[int], factors: tuple[float, ...]
    ) -> Sequence[int]:
        """Return the kernel's first parameters; a and b are in the kernel's order."""
        pointers = GemmMatrices(a, b, out)
        if self._epilogue is None:
            return pointers
        return *pointers, *self._arguments.pointers(out, given, *factors)

    def config_on(self, gpu: str | None, occupancy: Occupancy) -> TileConfig:
        """Return the tile config on a GPU of this name; None means the emulator.

        A config tuned for the plain GEMM may leave no room for an epilogue.
        """
        tuned = None if gpu is None else tuned_config(gpu, self.problem)
        if tuned is not None and self._fits(tuned):
            return self.fitted(tuned)
        if self._has_tensor_memory:
            may_split = self._may_split and self._epilogue is None
            return tensor_memory_config(self.problem, occupancy, may_split=may_split)
        depth = 0 if self._epilogue is None else self._epilogue.depth
        return self.fitted(default_config(self.problem, occupancy, self._fits, depth))

    def candidates_on(self, occupancy: Occupancy) -> Sequence[TileConfig]:
        """Return the tile configs that `tune` races on a device."""
        find = candidates_on_tensor_memory if self._has_tensor_memory else candidates
        return find(self.problem, occupancy)

    def _fits(self, config: TileConfig) -> bool:
        if config.split_k > 1 and not self._may_split:
            return False
        if self._epilogue is None:
            return True
        if self._has_tensor_memory:
            return not config.over_grid
        return self._epilogue.fits(config, self._out.rows.element.itemsize)

    def _prepare(
        self,
        a: ArrayView,
        b: ArrayView,
        out: ArrayView,
        epilogue: EpilogueArguments[ArrayView],
    ) -> Launch:
        m, n, k, *_ = self.problem
        occupancy = Occupancy.of(self.backend)
        config = self.config_on(self.backend.gpu, occupancy)
        transposed = (self._a.transposed, self._b.transposed)
        stored = self._out.rows.over(out)
        if config.over_grid:
            self._partials = Partials.of(config.split_k, stored)
            stored = _arrays.view(self._partials.allocator(a)())
        tiles = gemm_tiles(
            *(self._a.rows.over(a), self._b.rows.over(b), stored), *(config, *transposed)
        )
        kernel, arguments = self._kernel_and_arguments(tiles, config, epilogue)
        work = PersistentWork(m, k, arguments.batches * config.clusters(m, n))
        launch = prepared_persistent(kernel, arguments, config, work, occupancy)
        if not config.over_grid:
            return launch
        combine = prepared_combine(stored, self._out.rows.over(out), self.backend.limits)
        return LaunchSequence(
            (launch, SplitAddresses.of_gemm), (combine, SplitAddresses.of_combine)
        )

    def _kernel_and_arguments(
        self,
        tiles: GemmMatrices[TMATensorTile],
        config: TileConfig,
        epilogue: EpilogueArguments[ArrayView],
    ) -> tuple[Kernel, GemmArguments | GemmEpilogueArguments]:
        m, n, k, batches, *_ = self.problem
        types = [tile.cuda_type for tile in tiles]
        transposed = (self._a.transposed, self._b.transposed)
        if self._epilogue is None:
            kernel = gemm_kernel(types, *transposed, config)
            batches = config.split_k if config.over_grid else batches
            return kernel, GemmArguments(*tiles, m=m, n=n, k=k, batches=batches)
        bias = epilogue.bias
        bias_type = "float" if bias is None else bias.element.cuda_type
        kernel = gemm_kernel(types, *transposed, config, self._epilogue, bias_type)
        addend = tiles.c
        if epilogue.c is not None and self._addend is not None:
            addend = output_tile(self._addend.rows.over(epilogue.c), config)
        return kernel, GemmEpilogueArguments(
            *tiles,
            addend=addend,
            bias=0 if bias is None else bias,
            scale_a=0 if epilogue.scale_a is None else epilogue.scale_a,
            scale_b=0 if epilogue.scale_b is None else epilogue.scale_b,
            alpha=1.0,
            beta=0.0,
            m=m,
            n=n,
            k=k,
            batches=batches,
        )


def _with_fewer_dimensions(
    a: Layout, b: Layout, out: Layout, epilogue: EpilogueArguments[Layout]
) -> tuple[Layout, Layout, Layout, EpilogueArguments[Layout]]:
    """Return the problem without a batch, or merged into one matrix, if that is possible."""
    a, b = a.without_batch, b.without_batch
    addend = epilogue.c
    if out.shape[0] == 1:
        out, addend = out.without_batch, None if addend is None else addend.without_batch
    if len(a.shape) == 3 and len(b.shape) == 2:
        # All batches multiply by the same matrix, so their rows form one matrix.
        rows, target = a.merged_batch(), out.merged_batch()
        merged = None if addend is None else addend.merged_batch()
        if _need_no_staging(rows, target) and (addend is None) == (merged is None):
            a, out, addend = rows or a, target or out, merged
    return a, b, out, epilogue._replace(c=addend)


def _need_no_staging(rows: Layout | None, target: Layout | None) -> bool:
    """Return whether both exist and need no staging copies, which use the caller's layouts."""
    if rows is None or target is None:
        return False
    return rows.in_rows() is not None and target.in_stored_rows() is not None


def _operand(matrix: Layout, *, k_is_last: bool) -> Operand:
    """Return the operand as the tensor cores read it: in any layout, or in rows along K."""
    if takes_any_layout(matrix.element):
        return Operand.of(matrix)
    return Operand.of_k_rows(matrix, k_is_last=k_is_last)
