"""One step of a causal attention layer over a sequence that is spread over devices.

Every rank projects its positions, two chunks of the sequence (zigzag), and attends to the keys of
all. The gradient of the weight is added over the ranks, and compared with one device's. It
runs on all GPUs, if there are two or more; else on two emulated devices.
"""

import contextlib

import numpy as np

from tmaasync import emulate, enable_peer_access, ops

try:
    import cupy as xp

    RANKS = min(xp.cuda.runtime.getDeviceCount(), 8)
except Exception:  # no CuPy, no driver or no device
    RANKS = 0
ON_GPUS = RANKS > 1
if not ON_GPUS:
    xp = np
RANKS, LENGTH, HEADS, HEAD_DIM = (RANKS, 2048 * RANKS, 16, 128) if ON_GPUS else (2, 256, 2, 64)
MODEL = HEADS * HEAD_DIM


def zigzag(whole):
    chunks = np.split(whole, 2 * RANKS, axis=1)
    return [np.concatenate([chunks[r], chunks[-1 - r]], axis=1) for r in range(RANKS)]


def each(work, *lists):
    for rank, own in enumerate(zip(*lists, strict=True)):
        with xp.cuda.Device(rank) if ON_GPUS else contextlib.nullcontext():
            yield work(*own)


def on_devices(world, work, *lists):
    found = list(each(work, *lists))
    return found if ON_GPUS else [one.array(own) for one, own in zip(world, found, strict=True)]


def heads_of(x, w_qkv):
    return np.moveaxis((x @ w_qkv).reshape(1, -1, 3, HEADS, HEAD_DIM), 2, 0)


def of_weight(x, dq, dk, dv):
    grad = np.concatenate([one.reshape(-1, MODEL) for one in (dq, dk, dv)], axis=1)
    found = x[0].T.astype(np.float32) @ grad.astype(np.float32)
    return found.get() if ON_GPUS else found


def step(world, x, w_qkv, target):
    # The gradient of the weight, of loss = |out - target|^2 / 2.
    x, w_qkv, target = (on_devices(world, xp.asarray, one) for one in (x, w_qkv, target))
    q, k, v = zip(*on_devices(world, heads_of, x, w_qkv), strict=True)
    out, lse = ops.ring_attention(q, k, v, causal=True, return_lse=True)
    ON_GPUS or world.synchronize()  # runs the queued launches
    dout = on_devices(world, np.subtract, out, target)
    gradients = ops.ring_attention_backward(dout, q, k, v, out, lse, causal=True)
    ON_GPUS or world.synchronize()
    return sum(each(of_weight, x, *gradients))


rng = np.random.default_rng(0)
shapes = (1, LENGTH, MODEL), (MODEL, 3 * MODEL), (1, LENGTH, HEADS, HEAD_DIM)
x, w_qkv, target = (rng.standard_normal(shape, np.float32) for shape in shapes)
x, w_qkv, target = (one.astype(np.float16) for one in (x, w_qkv / MODEL**0.5, target))
with contextlib.nullcontext() if ON_GPUS else emulate.devices(RANKS) as world:
    enable_peer_access(range(RANKS))
    found = step(world, zigzag(x), [w_qkv] * RANKS, zigzag(target))

x, w_qkv, target = map(xp.asarray, (x, w_qkv, target))
q, k, v = heads_of(x, w_qkv)
out, lse = ops.attention(q, k, v, causal=True, return_lse=True)
wanted = of_weight(x, *ops.attention_backward(out - target, q, k, v, out, lse, causal=True))
off = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
if not off < 0.01:
    raise SystemExit(f"wrong: the gradient is off by {off:.2%}")
print(f"{LENGTH} positions on {RANKS} devices: off by {off:.2%} of one device's gradient")
