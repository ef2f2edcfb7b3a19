"""Roles of warps: what a kernel calls them with ``set_role``."""

from __future__ import annotations

import numpy as np

ROLE_DTYPE = np.dtype([("cluster", "<u4"), ("rank", "<u2"), ("warp", "<u2"), ("role", "S40")])
"""``struct RoleRecord`` of the C++ runtime: 48 bytes. A later record of a warp replaces others."""

WarpRoles = dict[tuple[int, int, int], str]
"""The role of each warp that has one, by cluster, rank in the cluster, and warp of the block."""


def warp_roles(raw: bytes) -> WarpRoles:
    """Return the roles that these records hold."""
    return {
        (cluster, rank, warp): role.decode(errors="replace")
        for cluster, rank, warp, role in np.frombuffer(raw, ROLE_DTYPE).tolist()
    }
