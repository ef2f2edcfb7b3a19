"""The check of a matmul's arguments, for `ops.matmul` and for the fake kernel of torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync.errors import ArgumentError, ArrayTypeError, Violation
from tmaasync.ops._allocation import Output
from tmaasync.ops._gemm.epilogue import NO_EPILOGUE, EpilogueArguments
from tmaasync.ops._gemm.operands import Reading, check_operands, output_shape, outputs_of
from tmaasync.ops._layouts import Layout, check_output, refuse_overlap


class MatmulCall(NamedTuple):
    """Views of a call's arrays that match each other."""

    a: ArrayView
    b: ArrayView
    epilogue: EpilogueArguments[ArrayView]
    output: Output

    @property
    def operands(self) -> tuple[ArrayView, ...]:
        """Every array that the kernel reads."""
        return self.a, self.b, *self.epilogue.arrays

    @property
    def layouts(self) -> tuple[Layout, Layout, Layout]:
        """The layouts of a, b and the output."""
        return Layout.of(self.a), Layout.of(self.b), self.output.layout


def checked(
    a: Any, b: Any, epilogue: EpilogueArguments[Any], reading: Reading, out: Any, dtype: object
) -> MatmulCall:
    """Check the arrays of a call, and make its output if ``out`` is None."""
    left = reading.of(_arrays.view(a, dtype=reading.a, argument="a"), "a")
    right = reading.of(_arrays.view(b, dtype=reading.b, argument="b"), "b")
    views = epilogue.views()
    operands = Layout.of(left), Layout.of(right)
    check_operands(*operands)
    types, shape = outputs_of(left.element), output_shape(*operands)
    wanted = types[0] if dtype is None else dtype
    output = Output.of(out, left, shape, types, wanted, what=f"a matmul of {left.element}")
    check_output(output.view, shape, left.device, types, dtype)
    call = MatmulCall(left, right, views, output)
    if views.form != NO_EPILOGUE.form:
        _check_epilogue(call)
    _arrays.common_device({"out": output.view, **views.named})
    given = {"a": left, "b": right, **views.named}
    c = views.c
    if c is not None and (c.address, c.strides_bytes) == (
        output.view.address,
        output.view.strides_bytes,
    ):
        del given["c"]
    refuse_overlap("out", output.view, given, may_share_rows=True)
    return call


def _check_epilogue(call: MatmulCall) -> None:
    a, out = call.a, call.output.view
    if out.element.name == "int32":
        raise ArgumentError.broken(
            "a.dtype",
            a.element,
            "its matmul has an int32 output and no epilogue",
            "Leave out alpha, c, bias, activation and the scales",
        )
    ArgumentError.raise_for(_shape_violations(call.epilogue, out))
    ArrayTypeError.raise_for(_type_violations(call.epilogue, a, out))


def _shape_violations(
    epilogue: EpilogueArguments[ArrayView], out: ArrayView
) -> Iterator[Violation]:
    rule = f"the output has shape {out.shape} {_arrays.where(out.device)}"
    for name, view, shape in (
        ("c", epilogue.c, out.shape),
        ("bias", epilogue.bias, out.shape[-1:]),
    ):
        if view is not None and (view.shape != shape or view.device != out.device):
            value = f"{view.shape} {_arrays.where(view.device)}"
            yield Violation(f"{name}.shape", value, rule, f"Pass an array {shape} there")


def _type_violations(
    epilogue: EpilogueArguments[ArrayView], a: ArrayView, out: ArrayView
) -> Iterator[Violation]:
    c, bias = epilogue.c, epilogue.bias
    if c is not None and c.element is not out.element:
        rule = f"it must be {out.element} as the output's"
        yield Violation("c.dtype", c.element, rule, "Convert it, or pass dtype=")
    types = {"float32", out.element.name, *({a.element.name} & set(outputs_of(a.element)))}
    if bias is not None and bias.element.name not in types:
        rule = f"it must be {' or '.join(sorted(types))}"
        yield Violation("bias.dtype", bias.element, rule, "Convert it")
