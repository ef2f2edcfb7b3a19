"""FlashAttention on Hopper: tile configs, cost model, schedules, split-KV, and the kernels."""
