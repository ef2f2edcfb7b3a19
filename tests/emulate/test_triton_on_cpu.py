"""Launches of unchanged Triton code inside `triton.on_cpu`, with a stand-in for Triton."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import triton_stand_in
from triton_stand_in import Autotuner, JITFunction, NoDriverError

from tmaasync import ArgumentError, EmulatedFault, Kernel, emulate, triton

RNG = np.random.default_rng(11)
COLUMNS = 1000


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    triton_stand_in.install(monkeypatch)


def arrays(rows: int = 3) -> tuple[Any, Any, Any]:
    """Return x, out, and the softmax of x."""
    x = RNG.standard_normal((rows, COLUMNS), np.float32)
    e = np.exp(x.astype(np.float64))
    return x, np.full_like(x, np.nan), e / e.sum(1, keepdims=True)


def launch(kernel: Any = None, **named: Any) -> None:
    x, out, wanted = arrays()
    (kernel or JITFunction())[(3,)](x, out, COLUMNS, **named)
    np.testing.assert_allclose(out, wanted, rtol=1e-5)


def assert_needs_a_gpu() -> None:
    with pytest.raises(NoDriverError):
        launch(BLOCK=1024)


def test_unchanged_code_runs_inside_the_with_alone() -> None:
    before = dict(vars(JITFunction)), dict(vars(Autotuner))
    assert_needs_a_gpu()
    with triton.on_cpu():
        launch(BLOCK=1024)
    assert_needs_a_gpu()
    assert (dict(vars(JITFunction)), dict(vars(Autotuner))) == before


def test_the_grid_is_a_function_of_the_arguments() -> None:
    x, out, wanted = arrays()
    seen = []

    def grid(meta: Any) -> tuple[int]:
        seen.append(meta["x"] is x and meta["BLOCK"])
        return (3,)

    with triton.on_cpu():
        JITFunction()[grid](x, out=out, columns=np.int64(COLUMNS), BLOCK=1024)
    np.testing.assert_allclose(out, wanted, rtol=1e-5)
    assert seen == [1024]


def test_tensors_of_torch_are_arguments_with_a_gradient_too() -> None:
    torch = pytest.importorskip("torch")
    x, _, wanted = arrays()
    given = torch.from_numpy(x).requires_grad_()
    out = torch.zeros(3, COLUMNS)
    with triton.on_cpu():
        JITFunction()[(3,)](given, out, COLUMNS, BLOCK=1024)
    np.testing.assert_allclose(out, wanted, rtol=1e-5)


def test_it_ends_after_an_exception_and_with_the_outermost_with() -> None:
    x, out, _ = arrays()
    with (
        pytest.raises(EmulatedFault, match=r"right after the end of x"),
        triton.on_cpu(),
        emulate.scheduled(races=True),
    ):
        JITFunction()[(4,)](x, out, COLUMNS, BLOCK=1024)  # a row beyond the last
    assert_needs_a_gpu()
    with triton.on_cpu():
        with triton.on_cpu():
            pass
        launch(BLOCK=1024)
    assert_needs_a_gpu()


def test_other_threads_keep_their_gpu() -> None:
    found: list[BaseException] = []

    def other() -> None:
        try:
            assert_needs_a_gpu()
        except BaseException as error:  # noqa: BLE001, RUF100 - a thread's own failure
            found.append(error)

    with triton.on_cpu():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        launch(BLOCK=1024)
    assert found == []


def test_two_threads_may_end_in_any_order() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with triton.on_cpu():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with triton.on_cpu():
        thread.start()
        assert inside.wait(60)
    assert_needs_a_gpu()
    leave.set()
    thread.join()
    assert_needs_a_gpu()


def test_an_autotuned_kernel_takes_the_first_config_or_the_one_asked_for() -> None:
    tuner = Autotuner(JITFunction(), [{"BLOCK": 1024}, {"BLOCK": 2048}])
    for number, block in ((0, 1024), (1, 2048)):
        with triton.on_cpu(config=number):
            launch(tuner)
        assert tuner.best_config == {"BLOCK": block}
    assert len(tuner.configs) == 2


def test_an_autotuned_kernel_zeroes_before_the_first_launch_for_a_key() -> None:
    x, out, _ = arrays()
    tuner = Autotuner(JITFunction(), [{"BLOCK": 1024}, {"BLOCK": 2048}])
    with triton.on_cpu():
        for first in (0, 5):
            out.fill(5)
            tuner[(1,)](x, out, COLUMNS)  # the first row alone
            assert (out[1:] == first).all()


def test_a_compiled_kernel_is_launched_by_its_grid() -> None:
    x, out, wanted = arrays()
    made = triton_stand_in.compiled("softmax", 16)
    made.src = SimpleNamespace(signature=dict(zip("abcd", JITFunction.types, strict=True)))
    with pytest.raises(NoDriverError):
        made[(3,)]
    with triton.on_cpu():
        made[(3,)](x, out, COLUMNS, 1024)
    np.testing.assert_allclose(out, wanted, rtol=1e-5)


def test_configs_are_counted_after_pruning() -> None:
    tuner = Autotuner(
        JITFunction(),
        [{"BLOCK": 512}, {"BLOCK": 1024}],
        lambda configs, given, **_: [one for one in configs if one["BLOCK"] >= given["columns"]],
    )
    with triton.on_cpu():
        launch(tuner)
    assert tuner.best_config == {"BLOCK": 1024}
    with triton.on_cpu(config=1), pytest.raises(ArgumentError, match=r"config is 1.*has 1 configs"):
        launch(tuner)


def test_the_driver_describes_the_emulated_device() -> None:
    with triton.on_cpu():
        active = triton_stand_in.driver.active
        assert active.get_current_target() == ("cuda", 90, 32)
        properties = active.utils.get_device_properties(active.get_current_device())
        assert properties["multiprocessor_count"] == emulate.LIMITS.sms
        assert properties["max_num_regs"] == 65_536
        with pytest.raises(
            AttributeError, match=r"get_device_interface: inside on_cpu.*benchmarks"
        ):
            active.get_device_interface()


def test_the_device_cuda_of_torch_is_the_cpu_inside_the_with_alone() -> None:
    torch = pytest.importorskip("torch")
    facts = (torch.cuda.is_available(), torch.cuda.get_device_capability)
    with triton.on_cpu():
        x = torch.arange(3, device="cuda").to(torch.device("cuda", 0)).cuda()
        assert x.device.type == torch.empty_like(x, device="cuda:0").device.type == "cpu"
        assert x.is_cuda
        twice = Kernel(
            'extern "C" __global__ void twice(long* x) { x[threadIdx.x] *= 2; }', "twice"
        )
        twice(1, 3, (x,))
        assert x.tolist() == [0, 2, 4]
        assert torch.cuda.is_available()
        assert torch.cuda.get_device_capability("cuda") == (9, 0)
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        assert sms == emulate.LIMITS.sms
        with torch.cuda.device(x.device.index):
            torch.cuda.synchronize()
    assert (torch.cuda.is_available(), torch.cuda.get_device_capability) == facts
    assert not x.is_cuda
    with pytest.raises((RuntimeError, AssertionError)):
        torch.zeros(1, device="cuda:99")
