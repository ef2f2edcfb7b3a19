#pragma once

// Works like <cuda_fp16.h> here, which comes first: CUDA's header would include CUDA's own.
#include <cuda_fp16.h>

#include <nv/target>

#pragma push_macro("TMAASYNC_EMULATE_TARGET")
#pragma push_macro("__CUDACC__")
#pragma push_macro("__CUDACC_RTC__")
#undef __CUDACC__
#undef __CUDACC_RTC__
#undef TMAASYNC_EMULATE_TARGET
#define TMAASYNC_EMULATE_TARGET TMAASYNC_HOST
#include_next <cuda_bf16.h>
#pragma pop_macro("__CUDACC_RTC__")
#pragma pop_macro("__CUDACC__")
#pragma pop_macro("TMAASYNC_EMULATE_TARGET")

#include <tmaasync_emulate/bfloat16.hpp>
