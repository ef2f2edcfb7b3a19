"""Roles of warps: what a kernel calls them with ``set_role``."""

from __future__ import annotations

import numpy as np

__all__ = ["ROLE_DTYPE", "WarpRoles", "role_name", "warp_roles"]

ROLE_DTYPE = np.dtype([("cluster", "<u4"), ("rank", "<u2"), ("warp", "<u2"), ("role", "S40")])
"""``struct RoleRecord`` of the C++ runtime: 48 bytes. A later record of a warp replaces others."""

WarpRoles = dict[tuple[int, int, int], str]
"""The role of each warp that has one, by cluster, rank in the cluster, and warp of the block."""

_NO_NUMBER = 0xFFFFFFFF


def role_name(name: bytes, number: int) -> str | None:
    """Return the role that a kernel gave, with its number; None for an empty name.

    >>> role_name(b"consumer", 1), role_name(b"producer", 0xFFFFFFFF), role_name(b"", 0)
    ('consumer 1', 'producer', None)
    """
    text = name.decode(errors="replace")
    if not text:
        return None
    return text if number == _NO_NUMBER else f"{text} {number}"


def warp_roles(raw: bytes) -> WarpRoles:
    """Return the roles that these records hold."""
    return {
        (cluster, rank, warp): role.decode(errors="replace")
        for cluster, rank, warp, role in np.frombuffer(raw, ROLE_DTYPE).tolist()
    }
