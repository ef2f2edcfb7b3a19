"""Models of transformers, tiny and at random, by our attention against their eager attention."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tmaasync import ArgumentError, BackendError

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

from parity.test_attention import few_builds  # noqa: E402
from torch_cases import draw, error  # noqa: E402

operators: Any = importlib.import_module("tmaasync.torch")

NAME = "tmaasync"
SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "head_dim": 16,
    # With weights this large, scores differ so much that a wrong mask shows in the output.
    "initializer_range": 0.25,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "dtype": torch.float16,
}
DECODERS: dict[str, dict[str, Any]] = {
    "Llama": {"num_hidden_layers": 1, "num_key_value_heads": 2},
    # A layer with a sliding window, and one without; softcap in both.
    "Gemma2": {
        "num_hidden_layers": 2,
        "num_key_value_heads": 1,
        "sliding_window": 5,
        "attn_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 16,
    },
}
LEFT, RIGHT, NEITHER = [4, 0], [-3, 0], [0, 0]

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers' own code


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    operators.register_with_transformers()
    torch.manual_seed(0)
    with few_builds(consumers=1), torch.no_grad():
        yield


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.hopper])])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@functools.cache
def model(name: str, device: str = "cpu", kind: str = "ForCausalLM", **options: Any) -> Any:
    """A model in float16, with weights from a seed."""
    torch.manual_seed(1)
    given = {**SIZES, **DECODERS.get(name, {}), **options}
    config = getattr(transformers, f"{name}Config")(**given)
    net = getattr(transformers, name + kind)(config).half().to(device).eval()
    net.set_attn_implementation(NAME)
    return net


def tokens(device: str, *shape: int) -> Any:
    return torch.randint(1, 64, shape).to(device)


def padding(device: str, length: int, counts: list[int]) -> Any:
    """A mask of ones. Each count of zeros is on the left, or on the right where it is negative."""
    mask = torch.ones(len(counts), length, dtype=torch.long, device=device)
    for row, count in zip(mask, counts, strict=True):
        row[slice(count) if count >= 0 else slice(count, None)] = 0
    return mask


def by_both(net: Any, call: Any) -> tuple[Any, Any]:
    results = []
    for name in (NAME, "eager"):
        net.set_attn_implementation(name)
        results.append(call())
    net.set_attn_implementation(NAME)
    return results[0], results[1]


@pytest.mark.parametrize("counts", [NEITHER, LEFT, RIGHT])
@pytest.mark.parametrize("name", DECODERS)
def test_logits_of_a_prompt_agree_with_eager_attention(
    name: str, counts: list[int], device: str
) -> None:
    net, ids, mask = model(name, device), tokens(device, 2, 13), padding(device, 13, counts)

    ours, theirs = by_both(net, lambda: net(ids, attention_mask=mask).logits)

    assert error(ours[mask.bool()], theirs[mask.bool()]) < 5e-3


@pytest.mark.parametrize(
    ("name", "counts", "cache"),
    [
        ("Llama", NEITHER, None),
        ("Llama", LEFT, "static"),
        ("Gemma2", LEFT, None),
        ("Gemma2", NEITHER, "static"),
    ],
)
def test_a_generated_sequence_agrees_with_eager_attention(
    name: str, counts: list[int], cache: str | None, device: str
) -> None:
    """A prompt, then one query at a time: with a cache that grows, or one of a fixed size."""
    net, ids, mask = model(name, device), tokens(device, 2, 9), padding(device, 9, counts)

    ours, theirs = by_both(
        net,
        lambda: net.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=3,
            do_sample=False,
            disable_compile=True,
            cache_implementation=cache,
            output_logits=True,
            return_dict_in_generate=True,
        ),
    )

    assert torch.equal(ours.sequences, theirs.sequences)
    assert error(torch.stack(ours.logits), torch.stack(theirs.logits)) < 5e-3


def test_a_second_part_of_a_prompt_attends_to_the_first(device: str) -> None:
    net, ids = model("Gemma2", device), tokens(device, 2, 12)
    whole = net(ids).logits

    first = net(ids[:, :7], use_cache=True)
    second = net(ids[:, 7:], past_key_values=first.past_key_values).logits

    assert error(torch.cat([first.logits, second], 1), whole) < 5e-3


@pytest.mark.parametrize("counts", [LEFT, RIGHT])
def test_an_encoder_attends_to_both_sides(counts: list[int], device: str) -> None:
    """A layer without a window, and one with a window of two tokens on either side."""
    net = model(
        *("ModernBert", device, "Model"),
        num_hidden_layers=2,
        global_attn_every_n_layers=2,
        local_attention=4,
        cls_token_id=1,
        sep_token_id=2,
    )
    ids, mask = tokens(device, 2, 13), padding(device, 13, counts)

    ours, theirs = by_both(net, lambda: net(ids, attention_mask=mask).last_hidden_state)

    assert error(ours[mask.bool()], theirs[mask.bool()]) < 5e-3


def mask_of(**options: Any) -> Any:
    masks = importlib.import_module("transformers.masking_utils")
    sizes = {"batch_size": 1, "q_length": 1 << 20, "kv_length": 1 << 20}
    given = {**sizes, "mask_function": masks.causal_mask_function, **options}
    return masks.ALL_MASK_ATTENTION_FUNCTIONS[NAME](**given)


def test_no_mask_is_materialised() -> None:
    masks = importlib.import_module("transformers.masking_utils")
    window = masks.sliding_window_causal_mask_function(4096)
    seen = torch.ones(1, 1 << 20, dtype=torch.bool)
    for options in ({}, {"attention_mask": seen}, {"mask_function": window, "local_size": 4096}):
        assert mask_of(**options) is None
    seen[:, :5] = False
    assert mask_of(attention_mask=seen).shape == (1, 1 << 20)


@pytest.mark.parametrize(
    "counts", [NEITHER, pytest.param(RIGHT, marks=[pytest.mark.gpu, pytest.mark.hopper])]
)
def test_gradients_of_the_weights_agree_with_eager_attention(
    counts: list[int], device: str
) -> None:
    if counts != NEITHER and device == "cpu":
        pytest.skip("padding has kernels of its own")
    net, ids, mask = model("Llama", device), tokens(device, 2, 13), padding(device, 13, counts)

    def gradients() -> Any:
        with torch.enable_grad():
            net(ids, attention_mask=mask).logits[mask.bool()].float().square().mean().backward()
        found = [one.grad for one in net.parameters()]
        net.zero_grad()
        return found

    for ours, theirs in zip(*by_both(net, gradients), strict=True):
        assert error(ours, theirs) < 2e-2


def test_gradients_that_the_kernels_lack_are_refused() -> None:
    net = model("Llama", head_dim=136)
    with torch.enable_grad(), pytest.raises(ArgumentError, match=r"requires grad"):
        net(tokens("cpu", 1, 8))


# --- what the kernels lack ----------------------------------------------------------------------


def attend(*mask: Any, dtype: Any = torch.float16, **options: Any) -> Any:
    interface = importlib.import_module("transformers.modeling_utils").AttentionInterface()
    torch.manual_seed(2)
    q = draw(1, 2, 4, 16, dtype=dtype)
    module = torch.nn.Module()
    return interface[NAME](module, q, q, q, *(mask or (None,)), scaling=0.25, **options)


LACKING: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((), {"dropout": 0.1}, r"dropout is 0.1; the kernels have no dropout. Call model.eval\(\)"),
    ((), {"s_aux": torch.zeros(2)}, r"s_aux is of shape \(2,\); the kernels do not take it. Load"),
    ((), {"position_bias": torch.zeros(1, 2, 4, 4)}, "position_bias is of shape"),
    ((), {"cu_seq_lens_q": torch.zeros(2)}, "cu_seq_lens_q is of shape"),
    ((), {"output_attentions": True}, "output_attentions is True; the kernels do not take it"),
    ((), {"dtype": torch.float32}, r"Load the model with dtype=torch.bfloat16"),
    ((torch.zeros(1, 1, 4, 4),), {}, r"attention_mask is of shape \(1, 1, 4, 4\); .* no other"),
    ((torch.ones(1, 1, 4, 4).bool(),), {}, "attention_mask is of shape"),
    ((torch.zeros(1, 1, 1, 4),), {}, "attention_mask is of shape"),
]


@pytest.mark.parametrize(("mask", "options", "message"), LACKING)
def test_what_the_kernels_lack_is_refused_in_words(
    mask: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        attend(*mask, **options)


def test_what_changes_nothing_is_taken() -> None:
    plain = attend(is_causal=True)[0]
    given = {"position_ids": torch.arange(4)[None], "use_cache": True, "s_aux": None}

    out, probabilities = attend(is_causal=True, output_attentions=False, **given)

    assert probabilities is None
    assert out.shape == (1, 4, 2, 16)
    assert torch.equal(out, plain)


def test_masks_of_a_models_own_are_refused() -> None:
    net, ids = model("Llama"), tokens("cpu", 1, 8)
    restarted = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]])
    with pytest.raises(ArgumentError, match=r"attention_mask is of shape \(1, 1, 8, 8\)"):
        net(ids, position_ids=restarted, use_cache=False)
    with pytest.raises(ArgumentError, match=r"attention_mask is of shape \(1, 1, 8, 8\)"):
        net(ids, attention_mask=torch.zeros(1, 1, 8, 8).half())


def test_padding_within_a_sequence_is_refused_with_a_window_only() -> None:
    gap = padding("cpu", 9, NEITHER)
    gap[0, 4] = 0
    ids = tokens("cpu", 2, 9)
    with pytest.raises(ArgumentError, match=r"0 between ones.*Pad on the left or on the right"):
        model("Gemma2")(ids, attention_mask=gap)
    net = model("Llama")

    ours, theirs = by_both(net, lambda: net(ids, attention_mask=gap).logits)

    assert error(ours[gap.bool()], theirs[gap.bool()]) < 5e-3


def test_chunks_are_refused_where_they_end() -> None:
    masks = importlib.import_module("transformers.masking_utils")
    chunks = masks.chunked_causal_mask_function(8, torch.zeros(1, dtype=torch.long))
    sizes = {"q_length": 16, "kv_length": 16, "mask_function": chunks}

    assert mask_of(**sizes, local_size=8).shape == (1, 1, 16, 16)
    assert mask_of(**sizes, local_size=16) is None


@pytest.mark.parametrize("name", ["eager", "sdpa", "flash_mine", "a/b", "", 3])
def test_a_name_that_is_taken_or_means_something_else_is_refused(name: Any) -> None:
    with pytest.raises(ArgumentError, match="name is"):
        operators.register_with_transformers(name)


def test_another_name_may_be_chosen_and_registered_again() -> None:
    for _ in range(2):
        operators.register_with_transformers("tma_attention")
    net = model("Llama")
    net.set_attn_implementation("tma_attention")
    ids = tokens("cpu", 1, 8)
    found = net(ids).logits
    net.set_attn_implementation(NAME)

    assert torch.equal(found, net(ids).logits)


def test_without_transformers_there_is_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", None)
    with pytest.raises(BackendError, match=r"cannot be imported.*pip install transformers"):
        operators.register_with_transformers()
