"""Tuning: what is measured, which wins, what is kept, and what the command line prints."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import _arrays, emulate, errors, ops
from tmaasync.ops._gemm import tensor_memory, tuned
from tmaasync.ops._gemm.config import Occupancy, TileConfig
from tmaasync.ops._gemm.cost_model import (
    candidates,
    choose_config,
    choose_skinny_config,
    default_config,
)
from tmaasync.ops._gemm.epilogue import NO_EPILOGUE, Activation, BiasSide, Epilogue, activation_of
from tmaasync.ops._gemm.legal_tiles import Problem, is_legal
from tmaasync.ops._gemm.tensor_memory import TensorMemoryConfig, tensor_memory_config
from tmaasync.ops._gemm.tuned import Winner
from tmaasync.ops._layouts import Layout
from tmaasync.ops._matmul import Matmul
from tmaasync.ops._operation import tile_configs
from tmaasync.ops._tuning import steps, tune

GPU = "NVIDIA H200"
H200 = Occupancy.estimated(132)
WIDE = Problem(4096, 4096, 4096, 1, "bfloat16", "bfloat16", "nt", False, True)
ROWS_OF_B = WIDE._replace(layout="nn")
SHORT = WIDE._replace(m=100)
FEW = WIDE._replace(n=9, m_major=True)
OTHER = TileConfig(2, 256, 1, 4)


pytestmark = pytest.mark.usefixtures("folder")


def winner(problem: Problem = WIDE, config: TileConfig = OTHER) -> Winner:
    return Winner(problem, config, 100.0, 110.0)


# --- candidates -------------------------------------------------------------------------------


def chosen(problem: Problem) -> set[tuple[int, ...]]:
    """Those that leave K in one piece, none side by side."""
    found = candidates(problem, H200)
    assert len(found) == len(set(found))
    assert {config.m_major for config in found} == {problem.m_major}
    return {
        (one.ping_pong, one.consumers, one.rows, one.block_n, one.cluster, one.group_m)
        for one in found
        if one.split_k == 1 and not one.side_by_side
    }


def test_the_models_best_blocks_are_tried_alone_in_pairs_and_in_groups() -> None:
    found = chosen(WIDE)
    blocks = {one[:4] for one in found}
    assert (False, 2, 64, 256) in blocks
    assert {ping_pong for ping_pong, *_ in blocks} == {False, True}
    assert len(blocks) == 10
    assert {(False, 2, 64, 256, c, g) for c in (1, 2) for g in (4, 8, 16)} <= found


def test_high_blocks_are_tried_side_by_side_too() -> None:
    along_n = [one for one in candidates(WIDE, H200) if one.side_by_side]

    assert along_n
    assert all(one.block_m > one.block_n and one.cluster == 2 for one in along_n)


def test_no_tile_config_is_tried_twice_where_rows_are_off_the_lines() -> None:
    found = candidates(WIDE._replace(m=5000, n=5000, k=5000, on_lines=False), H200)

    assert len(found) == len(set(found))


def test_where_n_is_contiguous_in_b_blocks_are_whole_lines_wide() -> None:
    assert {block_n for *_, block_n, _, _ in chosen(ROWS_OF_B)} <= {64, 128, 192, 256}
    assert {block_n for *_, block_n, c, _ in chosen(ROWS_OF_B) if c == 2} <= {128, 256}


def test_groups_that_hold_all_rows_are_tried_once() -> None:
    assert {group_m for *_, group_m in chosen(SHORT)} == {4}


def test_few_columns_have_blocks_that_hold_them() -> None:
    assert chosen(FEW) == {(False, c, 64, n, 1, 8) for c in (1, 2) for n in (16, 32, 64)}
    assert chosen(FEW._replace(layout="nn")) == {(False, c, 64, 64, 1, 8) for c in (1, 2)}


FEW_BLOCKS = WIDE._replace(m=256, n=512, k=8192)


@pytest.mark.parametrize("problem", [FEW_BLOCKS, FEW._replace(m=1024, k=16384)])
def test_where_blocks_are_few_parts_of_k_are_tried_too(problem: Problem) -> None:
    split = [one for one in candidates(problem, H200) if one.split_k > 1]

    assert {one.split_k for one in split if not one.over_grid} <= set(range(2, 9))
    assert any(one.over_grid for one in split) is not problem.m_major
    assert len({one.split_k for one in split}) > 1
    for one in split:
        assert one.split_k * one.clusters(problem.m, problem.n) <= 132
    assert {one.split_k for one in candidates(WIDE, H200)} == {1}


@pytest.mark.parametrize(
    "problem", [WIDE, ROWS_OF_B, SHORT, FEW_BLOCKS, FEW, FEW._replace(layout="tn")]
)
def test_the_cost_models_choice_is_legal(problem: Problem) -> None:
    assert is_legal(default_config(problem, H200), problem)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (TileConfig(3, 208), WIDE),
        (TileConfig(3, 128, rows=128), WIDE),
        (TileConfig(2, 100), WIDE),
        (TileConfig(2, 192, 2), ROWS_OF_B),
        (TileConfig(2, 256, 4), WIDE),
        (TileConfig(2, 256, 1, 0), WIDE),
        (TileConfig(2, 256, 1, 65), WIDE),
        (TileConfig(2, 256, rows=128), WIDE),
        (TileConfig(2, 256, max_stages=2), WIDE),
        (TileConfig(2, 160), ROWS_OF_B),
        (TileConfig(2, 64, m_major=True), WIDE),
        (TileConfig(2, 64), FEW),
        (TileConfig(2, 8, m_major=True), FEW),
        (TileConfig(2, 16, 2, m_major=True), FEW),
        (TileConfig(2, 128, split_k=9), WIDE),
        (TileConfig(2, 128, 2, split_k=5), WIDE),  # a cluster has at most eight thread blocks
        (TileConfig(2, 176, rows=128, split_k=8), WIDE),  # the ring does not hold what is sent
        (TileConfig(2, 128, ping_pong=True), WIDE),  # groups have 128 rows each
        (TileConfig(2, 128, side_by_side=True), WIDE),  # it has no neighbour
        (TileConfig(1, 128, 2, side_by_side=True), WIDE._replace(layout="tt")),  # one box of rows
        (TileConfig(2, 64, 2, split_k=2, side_by_side=True), WIDE),
        (TileConfig(2, 128, rows=128, split_k=2, ping_pong=True), WIDE),
        (TileConfig(2, 128, rows=128, split_k=2, ping_pong=True, over_grid=True), WIDE),
        (TileConfig(2, 128, split_k=1, over_grid=True), WIDE),
        (TileConfig(2, 128, split_k=133, over_grid=True), WIDE._replace(k=65536)),
        (TileConfig(2, 128, split_k=3, over_grid=True), WIDE._replace(k=128)),  # two blocks
        (TileConfig(2, 128, split_k=2, over_grid=True), WIDE._replace(batches=2)),
        (TileConfig(2, 64, split_k=2, m_major=True, over_grid=True), FEW),
    ],
)
def test_other_tile_configs_are_not(config: TileConfig, problem: Problem) -> None:
    assert not is_legal(config, problem)


# --- on tensor memory -------------------------------------------------------------------------

B200 = Occupancy.estimated(148)


@pytest.mark.parametrize("problem", [WIDE, ROWS_OF_B, SHORT, WIDE._replace(m=256, n=256)])
def test_candidates_on_tensor_memory_are_legal_and_have_the_choice(problem: Problem) -> None:
    found = tensor_memory.candidates(problem, B200)

    assert len(found) == len(set(found))
    assert all(tensor_memory.is_legal(one, problem) for one in found)
    assert tensor_memory_config(problem, B200, may_split=True) in found


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (TensorMemoryConfig(1, 192, rows=128), WIDE),
        (TensorMemoryConfig(2, 128, rows=128), WIDE),
        (TensorMemoryConfig(1, 128, 2, rows=128), SHORT),  # a pair has 256 rows
        (TensorMemoryConfig(1, 64, 2, rows=128), ROWS_OF_B),  # boxes of 64 columns
        (TensorMemoryConfig(1, 128, group_m=65, rows=128), WIDE),
        (TensorMemoryConfig(1, 128, rows=128, split_k=2), WIDE),
        (TensorMemoryConfig(1, 128, rows=128, over_grid=True), WIDE),
        (TensorMemoryConfig(1, 128, rows=128, split_k=17, over_grid=True), WIDE),  # 64 blocks of K
    ],
)
def test_others_are_not(config: TensorMemoryConfig, problem: Problem) -> None:
    assert not tensor_memory.is_legal(config, problem)
    tuned.keep("NVIDIA B200", [winner(problem, config)])
    with pytest.warns(RuntimeWarning, match="is ignored"):
        assert tuned.tuned_config("NVIDIA B200", problem) is None


@pytest.mark.parametrize("number", [1, -1])
def test_a_tuned_config_on_tensor_memory_is_kept_and_taken(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, 600)).astype(ml_dtypes.bfloat16) for rows in (300, 136))
    out = np.full((300, 136), np.nan, ml_dtypes.bfloat16)
    taken: list[TileConfig] = []

    def noted(config: TileConfig) -> TileConfig:
        taken.append(config)
        return config

    with emulate.chip("sm_100a"):
        operation = Matmul(*(Layout.of(_arrays.view(one)) for one in (a, b.T, out)))
        other = operation.candidates_on(B200)[number]
        tuned.keep("NVIDIA B200", [winner(operation.problem, other)])
        assert operation.config_on("NVIDIA B200", B200) == other
        monkeypatch.undo()  # the emulator has its builds in the cache of all tests
        with tile_configs(lambda _: noted(other)):
            ops.matmul(a, b.T, out=out)

    assert taken[0] == other
    wanted = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(out.astype(np.float64), wanted, rtol=2**-7, atol=2**-4)


# --- the race ---------------------------------------------------------------------------------


class FakeGemm:
    """A GEMM whose tile configs take the time that a test says."""

    gpu = GPU

    def __init__(
        self, microseconds: Callable[[TileConfig], float], problem: Problem = WIDE
    ) -> None:
        self.problem = problem
        self.default = default_config(problem, H200)
        self.candidates: Sequence[TileConfig] = candidates(problem, H200)
        self.time = microseconds
        self.broken: set[TileConfig] = set()
        self.wrong: set[TileConfig] = set()
        self.prepared: list[TileConfig] = []
        self.timed: list[TileConfig] = []

    def prepare(self, config: TileConfig) -> Callable[[], object]:
        self.prepared.append(config)
        if config in self.broken:
            raise errors.CompileError("no")
        return lambda: config

    def error(self) -> float:
        return 0.1 if self.prepared[-1] in self.wrong else 1e-4

    def microseconds(self, run: Callable[[], object], calls: int) -> float:
        config = run()
        assert isinstance(config, TileConfig)
        assert calls > 0
        self.timed.append(config)
        # A clock that slows down all the time: only slices that are near each other compare.
        return self.time(config) * (1 + len(self.timed) / 100)


def times(fast: dict[TileConfig, float]) -> Callable[[TileConfig], float]:
    return lambda config: fast.get(config, 200.0)


def test_the_fastest_wins_although_clocks_drift() -> None:
    gemm = FakeGemm(times({OTHER: 90.0, TileConfig(2, 256, 1, 16): 95.0}))
    found = tune(gemm)

    assert (found.problem, found.config) == (WIDE, OTHER)
    assert found.default_microseconds > found.microseconds
    assert gemm.prepared[0] == gemm.default
    assert set(gemm.prepared) == {*candidates(WIDE, H200), gemm.default}


def test_what_does_not_compile_or_is_wrong_does_not_take_part() -> None:
    gemm = FakeGemm(
        times({OTHER: 10.0, TileConfig(2, 256, 2, 8): 20.0, TileConfig(2, 256, 1, 8): 30.0})
    )
    gemm.broken, gemm.wrong = {OTHER}, {TileConfig(2, 256, 2, 8)}

    assert tune(gemm).config == TileConfig(2, 256, 1, 8)
    assert not {OTHER, TileConfig(2, 256, 2, 8)} & set(gemm.timed)


def test_noise_does_not_beat_the_cost_models_choice() -> None:
    gemm = FakeGemm(times({}))
    gemm.time = times({gemm.default: 100.0, OTHER: 99.5})
    found = tune(gemm)

    assert found.config == gemm.default
    assert found.gain == 1


def test_a_cost_models_choice_that_does_not_compile_is_an_error() -> None:
    gemm = FakeGemm(times({}))
    gemm.broken = {gemm.default}
    with pytest.raises(errors.CompileError):
        tune(gemm)


@pytest.mark.parametrize("problem", [WIDE, FEW])
def test_progress_is_reported_as_often_as_announced(problem: Problem) -> None:
    gemm = FakeGemm(times({}), problem)
    report: list[None] = []
    tune(gemm, lambda: report.append(None))
    assert len(report) == steps(gemm)


# --- what is kept -----------------------------------------------------------------------------


def test_a_winner_is_found_again_for_its_gemm_and_gpu_alone() -> None:
    tuned.keep(GPU, [winner(), winner(FEW, TileConfig(1, 32, m_major=True))])

    assert tuned.tuned_config(GPU, WIDE) == OTHER
    assert tuned.tuned_config(GPU, FEW) == TileConfig(1, 32, m_major=True)
    assert tuned.tuned_config("NVIDIA H100", WIDE) is None
    others: dict[str, Any] = {
        "m": 4097, "n": 1, "k": 1, "operands": "float16", "output": "float32", "layout": "nn",
        "m_major": True, "on_lines": False,
    }  # fmt: skip
    for name, value in others.items():
        assert tuned.tuned_config(GPU, WIDE._replace(**{name: value})) is None


def test_keeping_adds_to_what_is_kept_and_replaces_the_same_gemm() -> None:
    tuned.keep(GPU, [winner(), winner(SHORT)])
    tuned.keep(GPU, [winner(config=TileConfig(2, 192))])

    assert tuned.tuned_config(GPU, WIDE) == TileConfig(2, 192)
    assert tuned.tuned_config(GPU, SHORT) == OTHER
    winners, ignored = tuned.kept()
    assert {one.problem for one in winners[GPU]} == {WIDE, SHORT}
    assert ignored == {}


def test_the_file_is_read_once() -> None:
    path = tuned.keep(GPU, [winner()])
    assert tuned.tuned_config(GPU, WIDE) == OTHER
    path.unlink()
    assert tuned.tuned_config(GPU, WIDE) == OTHER


def edited(change: Callable[[dict[str, Any]], object]) -> bytes:
    whole = json.loads(tuned.keep(GPU, [winner()]).read_bytes())
    change(whole)
    return json.dumps(whole).encode()


def in_problem(part: str, **values: object) -> Callable[[dict[str, Any]], object]:
    return lambda whole: whole["problems"][0][part].update(values)


BROKEN: dict[str, Callable[[], bytes]] = {
    "no JSON": lambda: b"{",
    "no text": lambda: b"\xff\xfe\x00",
    "a list": lambda: b"[]",
    "another format": lambda: edited(lambda whole: whole.update(format=99)),
    "another GPU": lambda: edited(lambda whole: whole.update(gpu="NVIDIA A100")),
    "another kernel": lambda: edited(lambda whole: whole.update(kernel="0" * 64)),
    "no problems": lambda: edited(lambda whole: whole.pop("problems")),
    "problems that are none": lambda: edited(lambda whole: whole.update(problems=[3])),
    "an illegal width": lambda: edited(in_problem("config", block_n=100)),
    "an illegal cluster": lambda: edited(in_problem("config", cluster=4)),
    "a group of none": lambda: edited(in_problem("config", group_m=0)),
    "a width that is text": lambda: edited(in_problem("config", block_n="128")),
    "a width that is a bool": lambda: edited(in_problem("config", cluster=True)),
    "more than a tile config has": lambda: edited(in_problem("config", rows=128)),
    "less than a problem has": lambda: edited(lambda w: w["problems"][0]["problem"].pop("m")),
    "a side that is text": lambda: edited(in_problem("problem", m="4096")),
    "blocks of lines that B has not": lambda: edited(
        lambda whole: (
            in_problem("problem", layout="nn")(whole),
            in_problem("config", block_n=160)(whole),
        )
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_file_that_cannot_be_used_is_ignored_with_one_warning(what: str, folder: Path) -> None:
    tuned.keep(GPU, [])
    (path,) = folder.glob("*.json")
    path.write_bytes(BROKEN[what]())
    tuned.forget()

    with pytest.warns(RuntimeWarning, match=r"is ignored: .*\. Run tmaasync tune again") as said:
        assert tuned.tuned_config(GPU, WIDE) is None
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tuned.tuned_config(GPU, WIDE) is None

    # The next measurement replaces it.
    tuned.keep(GPU, [winner(SHORT)])
    assert tuned.tuned_config(GPU, SHORT) == OTHER


def matmul_of(m: int, n: int, k: int) -> Matmul:
    a, b, c = (np.zeros(shape, np.float16) for shape in ((m, k), (n, k), (m, n)))
    return Matmul(*(Layout.of(_arrays.view(array)) for array in (a, b.T, c)))


def test_a_plan_takes_the_tuned_config_and_else_the_models() -> None:
    problem = WIDE._replace(m=512, n=384, k=64, operands="float16", output="float16")
    operation = matmul_of(512, 384, 64)
    assert operation.problem == problem
    assert operation.config_on(GPU, H200) == choose_config(problem, H200)
    tuned.keep(GPU, [winner(problem)])
    assert operation.config_on(GPU, H200) == OTHER
    assert operation.config_on(None, H200) == choose_config(problem, H200)
    with tile_configs(lambda _: TileConfig(2, 64)):
        assert operation.config_on(GPU, H200) == TileConfig(2, 64)


@pytest.mark.parametrize(("activation", "fits"), [("relu", True), ("silu", False)])
def test_a_tuned_config_without_room_for_the_epilogue_is_not_taken(
    activation: str, fits: bool
) -> None:
    """A block of 256 columns has no registers left for an activation that divides."""
    widest = TileConfig(2, 256)
    epilogue = NO_EPILOGUE._replace(activation=activation_of(activation))
    shapes = (512, 64), (64, 384), (512, 384)
    layouts = (Layout.of(_arrays.view(np.zeros(shape, np.float16))) for shape in shapes)
    operation = Matmul(*layouts, epilogue=epilogue)
    tuned.keep(GPU, [winner(operation.problem, widest)])

    taken = operation.config_on(GPU, H200)

    assert (taken == widest) == fits
    assert taken.block_n <= 192 or fits


@pytest.mark.parametrize(
    ("activation", "ping_pong"), [(Activation.NONE, False), (Activation.SILU, True)]
)
def test_consumers_ping_pong_where_that_hides_a_long_epilogue(
    activation: Activation, ping_pong: bool
) -> None:
    epilogue = Epilogue(BiasSide.COLUMNS, activation)

    def fits(config: TileConfig) -> bool:
        return epilogue.fits(config, 2)

    found = default_config(WIDE, H200, fits, epilogue.depth)

    assert fits(found)
    assert found.ping_pong == ping_pong


def test_a_skinny_gemm_is_tuned_with_a_and_b_exchanged() -> None:
    operation = matmul_of(9, 384, 64)
    problem = operation.problem
    assert (problem.m, problem.n, problem.m_major) == (384, 9, True)
    assert operation.config_on(GPU, H200) == choose_skinny_config(problem, H200)
    tuned.keep(GPU, [winner(problem, TileConfig(1, 64, m_major=True))])
    assert operation.config_on(GPU, H200) == TileConfig(1, 64, m_major=True)
