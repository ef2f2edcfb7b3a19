#pragma pop_macro("__noinline__")
#pragma pop_macro("alignas")

// Declarations of cuda::std hide those in the C++ library.
namespace cuda::std {

using namespace ::std;

}  // namespace cuda::std
