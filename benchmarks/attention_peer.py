"""A peer that torch does not have: a module that offers FlashAttention's functions.

``--peer flash_attn_interface`` races FlashAttention-3 where it is installed, ``fa3_fwd_interface``
its forward from PyPI (fa3-fwd), and ``flash_attn.cute`` FlashAttention-4 (flash-attn-4). Any module
on the path will do that offers ``flash_attn_func``, and ``flash_attn_varlen_func`` for packed
sequences, with gradients through autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from peer_module import peer_module, peer_version

Run = Callable[[], torch.Tensor]
RunGradients = Callable[[], tuple[torch.Tensor, ...]]
# The same kernels in another package: their results share a section.
_SAME = {"fa3_fwd_interface": "flash_attn_interface"}


class AttentionPeer:
    """The module, by its name without dots.

    Attributes:
        versions: The module's version, as results record it.
    """

    def __init__(self, module_name: str) -> None:
        self._module = peer_module(module_name, ["flash_attn_func"])
        self.name = _SAME.get(module_name, module_name).replace(".", "_")
        self.versions = {module_name: peer_version(self._module)}

    def section(self, operation: str) -> str:
        """Return the section of the results of an operation's race with it."""
        return f"{operation}_{self.name}"

    def attention(self, arrays: Sequence[torch.Tensor], *, causal: bool) -> Run:
        """Return its attention of q, k and v: [batch, positions, heads, head_dim]."""
        return lambda: _output(self._module.flash_attn_func(*arrays, causal=causal))

    def varlen_attention(
        self,
        arrays: Sequence[torch.Tensor],
        cu_seqlens: torch.Tensor,
        longest: int,
        *,
        causal: bool,
    ) -> Run:
        """Return the same of packed sequences: [tokens, heads, head_dim]."""
        lengths = {
            "cu_seqlens_q": cu_seqlens,
            "cu_seqlens_k": cu_seqlens,
            "max_seqlen_q": longest,
            "max_seqlen_k": longest,
        }
        attend = self._module.flash_attn_varlen_func
        return lambda: _output(attend(*arrays, **lengths, causal=causal))


def backward_of(
    forward: Callable[[Sequence[torch.Tensor]], torch.Tensor],
    arrays: Sequence[torch.Tensor],
    dout: torch.Tensor,
) -> RunGradients:
    """Return the backward alone of a forward of q, k and v, which runs once."""
    leaves = [one.detach().requires_grad_() for one in arrays]
    out = forward(leaves)
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def _output(found: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return the output without its log-sum-exp, which some versions return too."""
    return found[0] if isinstance(found, tuple) else found
