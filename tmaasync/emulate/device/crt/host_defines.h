#pragma once

// Stand-in for the CUDA compiler's header of the same name: the keywords that mark functions,
// variables and types. The wheel with <vector_types.h> and <cuda_fp16.h> leaves that header out. An
// installed CUDA toolkit has it, and the toolkit's headers include it in quotes, which find the
// toolkit's file before this one. <tmaasync_emulate/cuda.hpp> therefore includes this one first,
// and the next line, the include guard of the toolkit's file, keeps that one out.
#define __HOST_DEFINES_H__

#define __host__
#define __device__
#define __global__
// Keeps variables that no kernel writes and Python may fill.
#define __constant__ __attribute__((used))
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(BYTES) __attribute__((aligned(BYTES)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __block_size__(...)
#define __maxnreg__(...)
#define __managed__
#define __nv_pure__
#define __inline_hint__ inline

#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define CUDARTAPI
#define __builtin_align__(BYTES) __attribute__((aligned(BYTES)))
