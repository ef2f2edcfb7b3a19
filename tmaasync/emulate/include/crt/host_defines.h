#pragma once

// Stand-in for the CUDA compiler's header of that name, which the wheel with <vector_types.h> and
// <cuda_fp16.h> leaves out: the words that mark functions, variables and types.
#define __host__
#define __device__
#define __global__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(BYTES) __attribute__((aligned(BYTES)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)

#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define CUDARTAPI
#define __builtin_align__(BYTES) __attribute__((aligned(BYTES)))
