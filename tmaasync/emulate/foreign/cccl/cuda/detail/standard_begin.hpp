// Between this header and standard_end.hpp lie headers of the C++ library, in which two of CUDA's
// words have another meaning. Neither has an include guard: every header of <cuda/std> includes
// them.
#pragma push_macro("alignas")
#pragma push_macro("__noinline__")
#undef alignas
#undef __noinline__
