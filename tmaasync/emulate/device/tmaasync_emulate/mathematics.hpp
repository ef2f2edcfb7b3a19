// Fast and special functions: CUDA Math API, "Single Precision Intrinsics" and "Mathematical
// Functions". The C library has the others.
#pragma once

#include <cfenv>
#include <cmath>
#include <limits>
#include <tmaasync_emulate/built_ins.hpp>
#include <tmaasync_emulate/calls.hpp>
#include <tmaasync_emulate/conversions.hpp>
#include <tmaasync_emulate/special_functions.hpp>

// --- fast functions ------------------------------------------------------------------------------

// Functions that are approximate on the chip; nvcc takes exp2f for one. Here they take the chip's
// steps: exponentials and logarithms of other bases use base 2. Sine and cosine are the C
// library's.
inline float __fdividef(float a, float b) noexcept {
    return ::tmaasync_emulate::special::quotient<false, false>(a, b);
}
inline float fdividef(float a, float b) noexcept {
    return a / b;
}
inline double fdivide(double a, double b) noexcept {
    return a / b;
}
inline float __saturatef(float x) noexcept {
    return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}

#define TMAASYNC_EMULATE_FAST(NAME, RESULT)                           \
    extern "C" TMAASYNC_EMULATE_INLINE float NAME(float x) noexcept { \
        return RESULT;                                                \
    }
TMAASYNC_EMULATE_FAST(__expf, ::tmaasync_emulate::special::ex2_approx<false>(x * 1.44269504f))
TMAASYNC_EMULATE_FAST(__exp10f, ::tmaasync_emulate::special::ex2_approx<false>(x * 3.32192809f))
TMAASYNC_EMULATE_FAST(__log2f, ::tmaasync_emulate::special::lg2_approx<false>(x))
TMAASYNC_EMULATE_FAST(__logf, __log2f(x) * 0.693147181f)
TMAASYNC_EMULATE_FAST(__log10f, __log2f(x) * 0.301029996f)
TMAASYNC_EMULATE_FAST(__sinf, ::sinf(x))
TMAASYNC_EMULATE_FAST(__cosf, ::cosf(x))
TMAASYNC_EMULATE_FAST(__tanf, __fdividef(::sinf(x), ::cosf(x)))
TMAASYNC_EMULATE_FAST(__tanhf, ::tmaasync_emulate::special::tanh(x))
extern "C" TMAASYNC_EMULATE_INLINE float __powf(float x, float y) noexcept {
    return ::tmaasync_emulate::special::ex2_approx<false>(y * __log2f(x));
}
extern "C" TMAASYNC_EMULATE_INLINE void __sincosf(float x, float* sine, float* cosine) noexcept {
    *sine = ::sinf(x);
    *cosine = ::cosf(x);
}

// --- roots and lengths ---------------------------------------------------------------------------

namespace tmaasync_emulate {

// A type with more digits than T, whose range holds the square of any T.
template <typename T>
struct WiderOf;
template <>
struct WiderOf<float> {
    using Type = double;
};
template <>
struct WiderOf<double> {
    using Type = long double;
};
template <typename T>
using Wider = typename WiderOf<T>::Type;

template <typename T>
auto square(T x) {
    return Wider<T>{x} * Wider<T>{x};
}

template <typename T>
auto is_infinite(T x) {
    return std::fabs(x) == std::numeric_limits<T>::infinity();
}

// An infinite component makes a vector infinitely long, even if another one is NaN.
template <typename T, typename... Rest>
auto length_of(T first, Rest... rest) {
    if ((is_infinite(first) || ... || is_infinite(rest))) {
        return std::numeric_limits<Wider<T>>::infinity();
    }
    return std::sqrt((square(first) + ... + square(rest)));
}

template <typename T>
auto length_of_array(int count, const T* components) {
    Wider<T> sum = 0;
    bool has_infinite = false;
    for (int i = 0; i < count; ++i) {
        has_infinite |= is_infinite(components[i]);
        sum += square(components[i]);
    }
    return has_infinite ? std::numeric_limits<Wider<T>>::infinity() : std::sqrt(sum);
}

}  // namespace tmaasync_emulate

inline float rsqrtf(float x) noexcept {
    return ::tmaasync_emulate::special::rsqrt_approx<false>(x);
}
inline float __frsqrt_rn(float x) noexcept {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x)));
}
inline double rsqrt(double x) noexcept {
    return static_cast<double>(1.0L / std::sqrt(static_cast<long double>(x)));
}
inline float rcbrtf(float x) noexcept {
    return static_cast<float>(1.0 / std::cbrt(static_cast<double>(x)));
}
inline double rcbrt(double x) noexcept {
    return static_cast<double>(1.0L / std::cbrt(static_cast<long double>(x)));
}

#define TMAASYNC_EMULATE_LENGTHS(TYPE, F)                                                     \
    inline TYPE rhypot##F(TYPE a, TYPE b) {                                                   \
        return static_cast<TYPE>(1 / ::tmaasync_emulate::length_of(a, b));                    \
    }                                                                                         \
    inline TYPE norm3d##F(TYPE a, TYPE b, TYPE c) {                                           \
        return static_cast<TYPE>(::tmaasync_emulate::length_of(a, b, c));                     \
    }                                                                                         \
    inline TYPE rnorm3d##F(TYPE a, TYPE b, TYPE c) {                                          \
        return static_cast<TYPE>(1 / ::tmaasync_emulate::length_of(a, b, c));                 \
    }                                                                                         \
    inline TYPE norm4d##F(TYPE a, TYPE b, TYPE c, TYPE d) {                                   \
        return static_cast<TYPE>(::tmaasync_emulate::length_of(a, b, c, d));                  \
    }                                                                                         \
    inline TYPE rnorm4d##F(TYPE a, TYPE b, TYPE c, TYPE d) {                                  \
        return static_cast<TYPE>(1 / ::tmaasync_emulate::length_of(a, b, c, d));              \
    }                                                                                         \
    inline TYPE norm##F(int count, const TYPE* components) {                                  \
        return static_cast<TYPE>(::tmaasync_emulate::length_of_array(count, components));     \
    }                                                                                         \
    inline TYPE rnorm##F(int count, const TYPE* components) {                                 \
        return static_cast<TYPE>(1 / ::tmaasync_emulate::length_of_array(count, components)); \
    }
TMAASYNC_EMULATE_LENGTHS(double, )
TMAASYNC_EMULATE_LENGTHS(float, f)

// --- sine and cosine of multiples of pi ----------------------------------------------------------

namespace tmaasync_emulate {

struct SineAndCosine {
    long double sine;
    long double cosine;
};

// Sine and cosine of pi times x.
inline SineAndCosine of_pi_times(double x) {
    if (is_infinite(x)) return {std::nan(""), std::nan("")};
    // Quarters of a turn, and a remainder between -1/4 and 1/4: both exact.
    const double turns = 2 * std::nearbyint(x / 2);
    const double within = x - turns;
    const double quarters = std::nearbyint(2 * within);
    const long double angle = (within - quarters / 2) * 3.14159265358979323846264338327950288L;
    const long double sine = std::sin(angle), cosine = std::cos(angle);
    const int quadrant = static_cast<int>(quarters) & 3;
    const long double sines[4] = {sine, cosine, -sine, -cosine};
    const long double cosines[4] = {cosine, -sine, -cosine, sine};
    // A multiple of pi has the sine 0 with the sign of x. An odd multiple of pi/2 has the cosine
    // +0.
    const bool is_half = within == std::nearbyint(2 * within) / 2 && (quadrant & 1);
    return {
        within == std::nearbyint(within) ? std::copysign(0.0L, x) : sines[quadrant],
        is_half ? 0.0L : cosines[quadrant],
    };
}

}  // namespace tmaasync_emulate

// --- integrals of the normal distribution --------------------------------------------------------

namespace tmaasync_emulate {

constexpr long double kRootOfPi = 1.77245385090551602729816748334114518L;
constexpr long double kRootOfTwo = 1.41421356237309504880168872420969808L;

// exp(x * x) * erfc(x)
inline long double scaled_erfc(long double x) {
    if (x < 20) return std::exp(x * x) * std::erfc(x);
    // The asymptotic series: 1/(x sqrt(pi)) * (1 - 1/(2 x^2) + 3/(4 x^4) - ...).
    const long double step = -1 / (2 * x * x);
    long double term = 1, sum = 1;
    for (int i = 1; i < 12; ++i) sum += term *= step * (2 * i - 1);
    return sum / (x * kRootOfPi);
}

// One step of Halley's method towards the zero of f, which is erf or erfc plus a constant.
inline long double closer_root(long double t, long double f, long double slope) {
    const long double step = f / slope;
    return t - step / (1 + t * step);
}

inline long double density_at(long double t) {
    return 2 / kRootOfPi * std::exp(-t * t);
}

// The inverse of erf for x of at most 1/2.
inline long double inverse_erf_of_small(long double x) {
    long double t = x * kRootOfPi / 2;
    for (int i = 0; i < 4; ++i) t = closer_root(t, std::erf(t) - x, density_at(t));
    return t;
}

inline long double inverse_erfc_of_small(long double x) {
    // S. Winitzki's approximation, within 0.2 %.
    constexpr long double kFitted = 0.147L;
    const long double logarithm = std::log(x * (2 - x));
    const long double half = 2 / (kRootOfPi * kRootOfPi * kFitted) + logarithm / 2;
    long double t = std::sqrt(std::sqrt(half * half - logarithm / kFitted) - half);
    for (int i = 0; i < 4; ++i) t = closer_root(t, std::erfc(t) - x, -density_at(t));
    return t;
}

// The differences from 1 are exact.
inline long double inverse_erfc(long double x) {
    if (!(x >= 0 && x <= 2)) return std::nan("");
    if (x == 0 || x == 2) return x == 0 ? HUGE_VALL : -HUGE_VALL;
    if (x >= 0.5L && x <= 1.5L) return inverse_erf_of_small(1 - x);
    return x < 1 ? inverse_erfc_of_small(x) : -inverse_erfc_of_small(2 - x);
}
inline long double inverse_erf(long double x) {
    if (std::fabs(x) <= 0.5L) return inverse_erf_of_small(x);
    return std::copysign(inverse_erfc(1 - std::fabs(x)), x);
}

inline long double normal_distribution(long double x) {
    return std::erfc(-x / kRootOfTwo) / 2;
}
inline long double inverse_normal_distribution(long double x) {
    return -kRootOfTwo * inverse_erfc(2 * x);
}

// --- Bessel functions ----------------------------------------------------------------------------

// The modified Bessel function of the first kind, of order 0 or 1. All terms of its power series
// are positive.
template <int kOrder>
auto modified_bessel(long double x) {
    if (std::fabs(x) > 720) return kOrder == 1 && x < 0 ? -HUGE_VALL : HUGE_VALL;
    const long double quarter = x * x / 4;
    long double term = kOrder == 1 ? x / 2 : 1, sum = term;
    for (int i = 1; std::fabs(term) > std::fabs(sum) * 0x1p-66L; ++i) {
        term *= quarter / (static_cast<long double>(i) * (i + kOrder));
        sum += term;
    }
    return sum;
}

}  // namespace tmaasync_emulate

// Defines a function of double, one of float whose name ends in f, and an overload for float
// without the f.
#define TMAASYNC_EMULATE_SPECIAL(NAME, RESULT) \
    inline double NAME(double x) noexcept {    \
        using namespace ::tmaasync_emulate;    \
        return static_cast<double>(RESULT);    \
    }                                          \
    inline float NAME##f(float x) noexcept {   \
        using namespace ::tmaasync_emulate;    \
        return static_cast<float>(RESULT);     \
    }                                          \
    inline float NAME(float x) noexcept {      \
        return NAME##f(x);                     \
    }
TMAASYNC_EMULATE_SPECIAL(sinpi, of_pi_times(x).sine)
TMAASYNC_EMULATE_SPECIAL(cospi, of_pi_times(x).cosine)
TMAASYNC_EMULATE_SPECIAL(erfcx, scaled_erfc(x))
TMAASYNC_EMULATE_SPECIAL(erfinv, inverse_erf(x))
TMAASYNC_EMULATE_SPECIAL(erfcinv, inverse_erfc(x))
TMAASYNC_EMULATE_SPECIAL(normcdf, normal_distribution(x))
TMAASYNC_EMULATE_SPECIAL(normcdfinv, inverse_normal_distribution(x))
TMAASYNC_EMULATE_SPECIAL(cyl_bessel_i0, modified_bessel<0>(x))
TMAASYNC_EMULATE_SPECIAL(cyl_bessel_i1, modified_bessel<1>(x))

// These functions write through pointers. The kernel's calls go to functions of
// tmaasync_emulate/c_library.hpp instead, which check and note the writes.
#define TMAASYNC_EMULATE_RENAMED(RESULT, NAME, ...) \
    extern "C" RESULT NAME(__VA_ARGS__) noexcept __asm__("tmaasync_emulate_" #NAME);
TMAASYNC_EMULATE_RENAMED(void, sincosf, float, float*, float*)
TMAASYNC_EMULATE_RENAMED(void, sincos, double, double*, double*)
TMAASYNC_EMULATE_RENAMED(float, modff, float, float*)
TMAASYNC_EMULATE_RENAMED(double, modf, double, double*)
TMAASYNC_EMULATE_RENAMED(float, frexpf, float, int*)
TMAASYNC_EMULATE_RENAMED(double, frexp, double, int*)
TMAASYNC_EMULATE_RENAMED(float, remquof, float, float, int*)
TMAASYNC_EMULATE_RENAMED(double, remquo, double, double, int*)

inline void sincospi(double x, double* sine, double* cosine) noexcept {
    *sine = sinpi(x);
    *cosine = cospi(x);
}
inline void sincospif(float x, float* sine, float* cosine) noexcept {
    *sine = sinpif(x);
    *cosine = cospif(x);
}
inline void sincospi(float x, float* sine, float* cosine) noexcept {
    sincospif(x, sine, cosine);
}
inline void sincos(float x, float* sine, float* cosine) noexcept {
    *sine = ::sinf(x);
    *cosine = ::cosf(x);
}

// Overloads for float that the C library does not have; <math.h> has the others.
#define TMAASYNC_EMULATE_OF_FLOAT(NAME)   \
    inline float NAME(float x) noexcept { \
        return NAME##f(x);                \
    }
TMAASYNC_EMULATE_OF_FLOAT(exp10)
TMAASYNC_EMULATE_OF_FLOAT(rsqrt)
TMAASYNC_EMULATE_OF_FLOAT(rcbrt)
TMAASYNC_EMULATE_OF_FLOAT(j0)
TMAASYNC_EMULATE_OF_FLOAT(j1)
TMAASYNC_EMULATE_OF_FLOAT(y0)
TMAASYNC_EMULATE_OF_FLOAT(y1)
inline float jn(int order, float x) noexcept {
    return ::jnf(order, x);
}
inline float yn(int order, float x) noexcept {
    return ::ynf(order, x);
}
inline float pow(float x, int exponent) noexcept {
    return ::powf(x, static_cast<float>(exponent));
}
