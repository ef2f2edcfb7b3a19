#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <tmaasync/same_type.cuh>

// The names that a tile's element type has in kernels. The only header that includes anything from
// outside the project: the element types of the CUDA runtime.
namespace tmaasync {

using bfloat16 = __nv_bfloat16;
using float16 = __half;
using float8_e4m3 = __nv_fp8_e4m3;
using float8_e5m2 = __nv_fp8_e5m2;

// An fp32 word that the tensor cores read as tf32; a load through a tf32 map rounds it.
struct tfloat32 {
    float value;
};

}  // namespace tmaasync
