"""The reader of PTX: instructions, source lines, launch bounds."""

from __future__ import annotations

from pathlib import Path

from tmaasync.lint.ptx import Function, Location, entries

HEAD = ".version 9.0\n.target sm_90\n.extern .shared .align 128 .b8 tile[];\n"
FILES = '.file 1 "/home/somebody/mine.cu"\n.file 2 "/library/include/sync.cuh"\n'


def only(body: str, directives: str = "") -> Function:
    header = f".visible .entry kernel(\n.param .u64 kernel_param_0\n)\n{directives}\n"
    text = f"{HEAD}{header}{{\n{body}}}\n{FILES}"
    (function,) = entries(text, hidden=(Path("/library/include"),))
    return function


def test_an_instruction_is_an_opcode_and_operands() -> None:
    function = only("@!%p1 ld.shared.v2.f32 {%f1, %f2}, [%r1+8];\nst.shared.u32 [%r2], %r3; // x\n")
    load, store = function.instructions

    assert (load.opcode, load.operands) == ("ld.shared.v2.f32", ("{%f1, %f2}", "[%r1+8]"))
    assert (store.opcode, store.operands) == ("st.shared.u32", ("[%r2]", "%r3"))


def test_braces_and_labels_of_inline_assembly_do_not_end_the_function() -> None:
    asm = "{\n.reg .pred p;\nsetp.eq.s32 p, %r1, 0;\n@p bra DONE;\nDONE:\n}\n"

    function = only(asm + asm + "ret;\n")

    opcodes = [one.opcode for one in function.instructions]
    assert opcodes == ["setp.eq.s32", "bra", "setp.eq.s32", "bra", "ret"]


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
