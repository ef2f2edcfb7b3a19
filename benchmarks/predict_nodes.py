"""What overlap with the network between nodes can give: predicted, since no cluster was at hand.

    python benchmarks/predict_nodes.py

The first linear layer of an MLP with a tensor-parallel group over 2 to 64 nodes of 8 GPUs, by
`tmaasync.torch.all_gather_matmul` with a mesh. Next to it, NCCL's all-gather and one matmul after
it, at the same throughput and bandwidth. Needs no GPU.
"""

from __future__ import annotations

from typing import NamedTuple

NODES = (2, 4, 8, 16, 32, 64)
GPUS = 8  # of a node
NETWORK = 50e9  # bytes/s of a GPU's 400 Gb/s port (ConnectX-7, DGX H100 and H200), one way
TENSOR = 650e12  # FLOP/s of bf16 within a node: all_gather_matmul on two H200s, M of 8192 and more
MEMORY = 4.3e12  # bytes/s of an H200: benchmarks/results/nvidia_h200/copy.jsonl


class Layer(NamedTuple):
    name: str
    m: int
    n: int
    k: int

    def seconds(self, nodes: int) -> tuple[float, float]:
        """Return the time with overlap, and the time of a gather and then a matmul."""
        ranks = nodes * GPUS
        kernel = 2 * self.m / nodes * self.n / ranks * self.k / TENSOR  # of the rows of a node
        arrival = 2 * self.m / ranks * self.k / NETWORK  # of the shard of another node's rank
        end = kernel
        for shift in range(1, nodes):
            end = max(end, shift * arrival) + kernel
        concatenated = 2 * 2 * self.m * self.n / ranks / MEMORY
        return end + concatenated, (nodes - 1) * arrival + nodes * kernel


LAYERS = (
    Layer("Llama-70B", 16384, 28672, 8192),
    Layer("Llama-405B", 16384, 53248, 16384),
    Layer("Llama-405B", 131072, 53248, 16384),
)


def main() -> None:
    for layer in LAYERS:
        for nodes in NODES:
            ours, theirs = (1e6 * one for one in layer.seconds(nodes))
            sides = f"{layer.m} x {layer.n} x {layer.k}"
            print(
                f"{layer.name:10s} {sides:24s} {nodes:2d} nodes: "
                f"{ours:8.0f} us, one after the other {theirs:8.0f}: {theirs / ours:.2f} x"
            )


if __name__ == "__main__":
    main()
