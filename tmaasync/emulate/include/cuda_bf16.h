#pragma once

// As <cuda_fp16.h> here, which comes first: CUDA's header would include CUDA's own.
#include <cuda_fp16.h>

#pragma push_macro("__CUDACC__")
#pragma push_macro("__CUDACC_RTC__")
#undef __CUDACC__
#undef __CUDACC_RTC__
#include_next <cuda_bf16.h>
#pragma pop_macro("__CUDACC_RTC__")
#pragma pop_macro("__CUDACC__")

#include <tmaasync_emulate/bfloat16.hpp>
