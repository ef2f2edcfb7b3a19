"""flash_attn's functions over random arguments, on the CPU and on a GPU."""

from __future__ import annotations

import pytest
from parity.test_attention import few_builds

pytest.importorskip("torch")

from parity import random_flash_attn

# Each function with a head_dim that is padded and with one that is not; a cache once more.
ON_THE_CPU, ON_A_GPU = (*range(5), 11, 14), range(200)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", ON_THE_CPU)
def test_emulated_calls_do_what_flash_attn_documents(number: int) -> None:
    with few_builds(1):
        random_flash_attn.check(number, "cpu", is_small=True)


@pytest.mark.hopper
@pytest.mark.gpu
@pytest.mark.parametrize("number", ON_A_GPU)
def test_calls_on_a_gpu_do_what_flash_attn_documents(number: int) -> None:
    random_flash_attn.check(number, "cuda", is_small=False)
