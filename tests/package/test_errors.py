from __future__ import annotations

import builtins
import pickle
import re
from collections.abc import Callable

import numpy as np
import pytest

from tmaasync import errors
from tmaasync._source.paths import find_kernel
from tmaasync.access import ArrayAccess
from tmaasync.copy_plan import plan_copy
from tmaasync.errors import (
    ArgumentError,
    ArrayTypeError,
    LaunchError,
    TensorMapError,
    TMAError,
    Violation,
)
from tmaasync.modes import Swizzle
from tmaasync.pipeline import Pipeline
from tmaasync.ragged import cumulative_lengths
from tmaasync.registers import RegisterSplit
from tmaasync.tile import TMATensorTileArray, create_tma_tile
from tmaasync.wgmma import compute_a_descriptor_params

_CLASSES = [
    value
    for name in errors.__all__
    if isinstance(value := getattr(errors, name), type)
    and issubclass(value, Exception)
    and not issubclass(value, Warning)
]


def _documented_tree() -> dict[str, tuple[str, str | None]]:
    """Class name to (parent, builtin base), as the drawing in the module's docstring has them."""
    parents = ["TMAError"]
    tree = {}
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^((?:│   |    )*)[├└]── (\w+)(?: \((\w+)\))?", line)
        if match:
            depth = len(match[1]) // 4 + 1
            parents[depth:] = [match[2]]
            tree[match[2]] = (parents[depth - 1], match[3])
    return tree


def test_the_drawing_of_the_tree_shows_every_error() -> None:
    assert {*_documented_tree(), "TMAError"} == {kind.__name__ for kind in _CLASSES}


@pytest.mark.parametrize(("name", "bases"), _documented_tree().items())
def test_every_error_stands_where_the_drawing_puts_it(
    name: str, bases: tuple[str, str | None]
) -> None:
    parent, builtin = bases
    kind = getattr(errors, name)

    assert kind.__bases__[0] is getattr(errors, parent)
    assert builtin is None or issubclass(kind, getattr(builtins, builtin))


@pytest.mark.parametrize("kind", _CLASSES)
def test_one_except_clause_catches_everything(kind: type[Exception]) -> None:
    assert issubclass(kind, TMAError)


def test_a_violation_is_argument_value_rule_and_remedy_in_two_sentences() -> None:
    violation = Violation("box_shape[0]", 300, "a side has at most 256 elements", "Use 256")

    assert str(violation) == "box_shape[0] is 300; a side has at most 256 elements. Use 256."


def test_a_violation_may_have_a_verb_of_its_own() -> None:
    error = ArgumentError.broken("b", "float64", "a holds float32", "Convert it", verb="holds")

    assert str(error) == "b holds float64; a holds float32. Convert it."


def test_a_tensor_map_error_has_a_line_for_every_violation() -> None:
    violations = (Violation("a", 1, "no", "Do"), Violation("b", 2, "never", "Stop"))

    error = TensorMapError(violations)

    assert error.violations == violations
    assert str(error).splitlines() == ["a is 1; no. Do.", "b is 2; never. Stop."]


def test_a_tensor_map_error_survives_the_way_to_another_process() -> None:
    error = TensorMapError((Violation("a", 1, "no", "Do"),))

    returned = pickle.loads(pickle.dumps(error))

    assert (type(returned), returned.violations) == (TensorMapError, error.violations)


def test_a_compile_error_keeps_the_compilers_words() -> None:
    assert errors.CompileError("gemm.cu does not compile", "line 3").log == "line 3"


@pytest.mark.parametrize("kind", [ArgumentError, ArrayTypeError, LaunchError, TensorMapError])
def test_an_error_of_violations_keeps_them(kind: type[ArgumentError | ArrayTypeError]) -> None:
    violations = [Violation("a", 1, "it must be 2", "Pass 2"), Violation("b", 3, "no", "Stop")]

    error = pickle.loads(pickle.dumps(kind.of(violations)))

    assert type(error) is kind
    assert error.violations == tuple(violations)
    assert str(error) == "a is 1; it must be 2. Pass 2.\nb is 3; no. Stop."


def test_nothing_is_raised_for_no_violation() -> None:
    ArgumentError.raise_for([])
    with pytest.raises(ArgumentError, match="a is 1"):
        ArgumentError.raise_for([Violation("a", 1, "it must be 2", "Pass 2")])


_BROKEN_CALLS: dict[str, Callable[[], object]] = {
    "access": lambda: ArrayAccess.from_array(np.zeros((4, 6), np.int8)[:, 1:]).check_bulk(),
    "mode": lambda: ArrayAccess.from_array(np.zeros(4), "x"),  # type: ignore[arg-type]
    "registers": lambda: RegisterSplit(0, 9, 7, 7),
    "pipeline": lambda: Pipeline(0, tiles={}, consumers=0),
    "tile": lambda: create_tma_tile(np.zeros((4, 4), np.int8), (300, 0)),
    "tiles": lambda: TMATensorTileArray([]),
    "operand": lambda: compute_a_descriptor_params((7, 9), "int8", swizzle=Swizzle.B128),
    "copy plan": lambda: plan_copy(np.zeros(()), "shared"),
    "cumulative lengths": lambda: cumulative_lengths([-1], max_length=1),
    "source": lambda: find_kernel("absent.cu"),
}


@pytest.mark.parametrize("call", _BROKEN_CALLS.values(), ids=_BROKEN_CALLS)
def test_every_part_of_the_package_lists_the_violations(call: Callable[[], object]) -> None:
    with pytest.raises(ArgumentError) as caught:
        call()

    assert caught.value.violations
    assert str(caught.value) == "\n".join(map(str, caught.value.violations))


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: create_tma_tile("array", (8,)), "array"),
        (lambda: create_tma_tile(np.zeros(8, np.complex64), (8,)), "array.dtype"),
        (lambda: create_tma_tile(np.zeros(8, np.int8), (8,), dtype="int9"), "dtype"),
        (lambda: plan_copy(None, "shared"), "source"),
    ],
)
def test_what_is_no_array_and_no_element_type_is_a_violation(
    call: Callable[[], object], argument: str
) -> None:
    with pytest.raises(ArrayTypeError) as caught:
        call()

    assert [violation.argument for violation in caught.value.violations] == [argument]
    assert str(caught.value) == str(caught.value.violations[0])
