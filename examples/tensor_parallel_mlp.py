"""Train a tensor-parallel MLP with sequence parallelism, next to the same MLP of torch's layers.

    torchrun --nproc-per-node 2 examples/tensor_parallel_mlp.py

Every rank has some rows of the activations, some columns of the first linear layer, and the same
rows of the second. Without GPUs, a small MLP takes three steps on the emulator.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard
from torch.distributed.tensor import parallel as tp

import tmaasync.torch as tt

KIND, BACKEND = ("cuda", "nccl") if torch.cuda.is_available() else ("cpu", "gloo")
ROWS, WIDTH, HIDDEN, STEPS = (1024, 1024, 4096, 200) if KIND == "cuda" else (16, 32, 64, 3)


class MLP(nn.Module):
    """The shards of a rank: up is [HIDDEN / ranks, WIDTH], down is [WIDTH, HIDDEN / ranks]."""

    def __init__(self, up, down):
        super().__init__()
        self.up, self.down = nn.Parameter(up), nn.Parameter(down)

    def forward(self, x):
        hidden = nn.functional.gelu(tt.all_gather_matmul(x, self.up.T))
        return tt.matmul_reduce_scatter(hidden, self.down.T)


def torchs_mlp(up, down, mesh):
    mlp = nn.Sequential(nn.Linear(1, 1, False), nn.GELU(), nn.Linear(1, 1, False))
    mlp[0].weight, mlp[2].weight = nn.Parameter(up), nn.Parameter(down)
    first = tp.ColwiseParallel(input_layouts=Shard(0))
    second = tp.RowwiseParallel(output_layouts=Shard(0))
    return tp.parallelize_module(mlp, mesh, {"0": first, "2": second})


def losses_of(mlp, x, target):
    """Train; return the mean loss over all ranks at each step."""
    optimizer, losses = torch.optim.SGD(mlp.parameters(), 0.5), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (x + mlp(x) - target).float().square().mean() / dist.get_world_size()
        losses.append(loss.detach())
        loss.backward()
        optimizer.step()
    dist.all_reduce(every := torch.stack(losses))
    return every


def main(rank, ranks):
    def draw(*shape):
        return torch.randn(*shape, generator=generator).bfloat16().to(KIND)

    generator = torch.Generator().manual_seed(0)  # as on the other ranks: shards of one weight
    up, down = draw(HIDDEN, WIDTH) / WIDTH**0.5, draw(WIDTH, HIDDEN) / HIDDEN**0.5
    ours = MLP(up.chunk(ranks)[rank].clone(), down.chunk(ranks, 1)[rank].clone())
    theirs = torchs_mlp(up, down, dist.init_device_mesh(KIND, (ranks,)))
    generator.manual_seed(1 + rank)
    x, target = draw(ROWS // ranks, WIDTH), draw(ROWS // ranks, WIDTH)

    found, wanted = losses_of(ours, x, target), losses_of(theirs, x, target)
    difference = float((found / wanted - 1).abs().max())
    result = f"loss {found[0]:.4f} to {found[-1]:.4f}, torch's differs by at most {difference:.3%}"
    if not (difference < 0.01 and found[-1] < 0.99 * found[0]):  # 1 %: noise of bfloat16
        raise SystemExit(f"wrong: {result}")
    print(f"rank {rank} of {ranks}, {STEPS} steps: {result}")


if __name__ == "__main__":
    if KIND == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(BACKEND)
    main(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()
