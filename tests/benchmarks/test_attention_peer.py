"""A peer that the user names to the attention benchmarks: functions, version and gradients."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from attention_peer import AttentionPeer, backward_of  # noqa: E402


def attention(q: Any, k: Any, v: Any, *, causal: bool = False) -> Any:
    lowest = -torch.inf if causal else 0.0
    hidden = torch.full((len(q), len(k)), lowest, dtype=q.dtype).triu(1)
    return ((q @ k.T + hidden).softmax(-1) @ v), "log-sum-exp"


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> AttentionPeer:
    module = ModuleType("their.attention")
    module.flash_attn_func = attention  # type: ignore[attr-defined]
    module.flash_attn_varlen_func = (  # type: ignore[attr-defined]
        lambda q, k, v, *, causal, **_: attention(q, k, v, causal=causal)[0]
    )
    module.__version__ = "3.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their", ModuleType("their"))
    monkeypatch.setitem(sys.modules, "their.attention", module)
    return AttentionPeer("their.attention")


def test_its_results_have_a_section_of_their_own_and_its_version(named: AttentionPeer) -> None:
    assert named.section("attention") == "attention_their_attention"
    assert named.versions == {"their.attention": "3.0"}


@pytest.mark.parametrize("causal", [False, True])
def test_a_log_sum_exp_next_to_the_output_is_left_out(named: AttentionPeer, causal: bool) -> None:
    arrays = list(torch.randn(3, 5, 4))
    wanted = attention(*arrays, causal=causal)[0]
    sequences = (torch.tensor([0, 5], dtype=torch.int32), 5)

    assert torch.equal(named.attention(arrays, causal=causal)(), wanted)
    assert torch.equal(named.varlen_attention(arrays, *sequences, causal=causal)(), wanted)


def test_the_backward_runs_alone_and_again(named: AttentionPeer) -> None:
    arrays, dout = list(torch.randn(3, 5, 4)), torch.randn(5, 4)
    run = backward_of(lambda leaves: named.attention(leaves, causal=False)(), arrays, dout)
    own = [one.clone().requires_grad_() for one in arrays]
    attention(*own)[0].backward(dout)

    for _ in range(2):
        for gradient, one in zip(run(), own, strict=True):
            assert torch.equal(gradient, one.grad)
    assert not any(one.requires_grad for one in arrays)


def test_a_module_that_is_not_there_or_has_no_attention_ends_the_run() -> None:
    with pytest.raises(SystemExit, match="The peer not_there: No module named"):
        AttentionPeer("not_there")
    with pytest.raises(SystemExit, match="The peer json has no flash_attn_func"):
        AttentionPeer("json")
