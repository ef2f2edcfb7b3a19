"""The GEMM kernels on the host: tile configs, the cost model that chooses one, epilogues, tiles."""
