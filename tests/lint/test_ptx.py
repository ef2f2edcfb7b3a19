"""The reader of PTX: scopes, labels, source lines, branches, sums."""

from __future__ import annotations

from pathlib import Path

from tmaasync.lint.flow import Flow
from tmaasync.lint.ptx import Function, Location, entries, shared_symbols
from tmaasync.lint.values import Address, Values

HEAD = ".version 9.0\n.target sm_90\n.extern .shared .align 128 .b8 tile[];\n"
FILES = '.file 1 "/home/somebody/mine.cu"\n.file 2 "/library/include/sync.cuh"\n'


def only(body: str, directives: str = "") -> Function:
    header = f".visible .entry kernel(\n.param .u64 kernel_param_0\n)\n{directives}\n"
    text = f"{HEAD}{header}{{\n{body}}}\n{FILES}"
    (function,) = entries(text, hidden=(Path("/library/include"),))
    return function


def test_what_is_written_and_what_is_read() -> None:
    function = only("@!%p1 ld.shared.v2.f32 {%f1, %f2}, [%r1+8];\nst.shared.u32 [%r2], %r3; // x\n")
    load, store = function.instructions

    assert (load.guard, load.opcode) == ("!%p1", "ld.shared.v2.f32")
    assert (load.writes, load.reads) == (("%f1", "%f2"), ("%r1",))
    assert (store.writes, store.reads) == ((), ("%r2", "%r3"))


def test_a_branch_and_a_barrier_write_nothing() -> None:
    function = only("bar.sync %r1, %r2;\nbra.uni $L;\n$L: ret;\n")

    assert [one.writes for one in function.instructions] == [(), (), ()]
    assert function.instructions[0].reads == ("%r1", "%r2")


def test_a_register_of_inline_assembly_hides_one_of_the_same_name() -> None:
    asm = "{\n.reg .pred p;\nsetp.eq.s32 p, %r1, 0;\n@p bra DONE;\nDONE:\n}\n"
    function = only(asm + asm)
    first, branch, second, other = function.instructions

    assert first.writes != second.writes
    assert (branch.guard,) == first.writes
    assert (other.guard,) == second.writes


def test_a_label_of_inline_assembly_belongs_to_its_own_braces() -> None:
    asm = "{\nWAIT: mov.u32 %r1, 0;\n@%p1 bra WAIT;\n}\n"
    function = only(asm + asm)

    assert [function.target(function.instructions[i], "WAIT") for i in (1, 3)] == [0, 2]


def test_a_place_is_the_callers_where_the_library_is_hidden() -> None:
    function = only(
        ".loc 1 7 5\nmov.u32 %r1, 0;\n"
        ".loc 1 9 5\n.loc 2 3 1, function_name $L__info_string0, inlined_at 1 9 5\n"
        "fence.proxy.async;\n.loc 1 0 5\nret;\n"
    )

    lines = [one.location for one in function.instructions]
    assert lines == [Location("mine.cu", 7), Location("mine.cu", 9), Location("mine.cu", 9)]


def test_lines_of_the_ptx_are_counted() -> None:
    function = only("ret;\n\n// nothing\nret;\n")

    first, second = (one.line for one in function.instructions)
    assert second - first == 3
    assert first == 9


def test_launch_bounds_are_all_three_extents() -> None:
    assert only("ret;\n").max_threads is None
    assert only("ret;\n", ".maxntid 32, 4, 2\n.minnctapersm 1").max_threads == 256


def test_shared_variables_have_names() -> None:
    assert shared_symbols(HEAD + ".shared .align 4 .u32 flag;\n") == {"tile", "flag"}


def test_paths_may_leave_out_the_way_around_a_loop() -> None:
    function = only("mov.u32 %r1, 0;\n$LOOP:\nadd.s32 %r1, %r1, 1;\n@%p1 bra $LOOP;\nret;\n")
    flow = Flow(function)

    assert set(flow.reached(2)) == {1, 2, 3}
    assert set(flow.reached(2, forward_only=True)) == {3}
    assert set(flow.reached(0, stops=lambda one: one.opcode == "bra")) == {1}


def test_a_thread_that_returns_under_a_predicate_goes_no_further() -> None:
    flow = Flow(only("@%p1 ret;\nmov.u32 %r1, 0;\nret;\nmov.u32 %r2, 0;\n"))

    assert set(flow.reached(0)) == {1, 2}


def test_an_address_is_a_sum_of_names_and_bytes() -> None:
    values = Values(
        only(
            "mov.u32 %r1, tile;\nadd.s32 %r2, %r1, 4096;\nmov.u32 %r3, %tid.x;\n"
            "add.s32 %r4, %r3, 8;\nshl.b32 %r5, %r4, 2;\nadd.s32 %r6, %r2, %r5;\n"
        )
    )

    assert values.address("[%r2+16]") == Address(frozenset({"tile"}), 4112)
    assert values.address("[%r6]") == Address(frozenset({"tile", "4 * %tid.x"}), 4128)


def test_an_address_of_which_little_is_known_is_a_name() -> None:
    values = Values(
        only(
            "mov.u32 %r1, tile;\n@%p1 add.s32 %r1, %r1, 64;\nmul.hi.u32 %r2, %r3, 4;\n"
            "mov.b64 {%r4, %r5}, %rd1;\nxor.b32 %r6, %r1, 8;\n"
        )
    )

    for register in ("%r1", "%r2", "%r5", "%r6"):
        assert values.address(f"[{register}+4]") == Address(frozenset({register}), 4)


def test_a_pointer_that_a_loop_moves_on_starts_somewhere() -> None:
    values = Values(
        only(
            "mov.u32 %r1, tile;\nadd.s32 %r2, %r1, 64;\n$LOOP:\nst.shared.u32 [%r2], 0;\n"
            "add.s32 %r2, %r2, 4;\n@%p1 bra $LOOP;\n"
        )
    )

    assert values.address("[%r2]") == Address(frozenset({"tile", "%r2"}), 64)
