#pragma once

// Stand-in for CUDA's header of the same name. Kernels use only the types that it declares.
#include <device_types.h>
#include <vector_functions.h>
#include <vector_types.h>
