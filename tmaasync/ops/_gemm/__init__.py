"""Host side of the GEMM kernels: tile configs, cost model, epilogues and tiles."""
