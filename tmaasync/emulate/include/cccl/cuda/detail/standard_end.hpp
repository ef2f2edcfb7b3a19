#pragma pop_macro("__noinline__")
#pragma pop_macro("alignas")

// What cuda::std declares itself hides the C++ library's.
namespace cuda::std {

using namespace ::std;

}  // namespace cuda::std
