#pragma once

// NVRTC has no C library. <cuda.h> and kernels include this header. The types are the ones that
// libcu++ defines for NVRTC.
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using intptr_t = int64_t;
using uintptr_t = uint64_t;
