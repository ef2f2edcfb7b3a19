"""Attention in tiles (FlashAttention-3): tile configs, cost model, schedules, and the kernels."""
