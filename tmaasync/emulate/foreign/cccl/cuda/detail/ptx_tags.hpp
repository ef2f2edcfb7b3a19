// The tag arguments of cuda::ptx, which choose an instruction's qualifiers.
#pragma once

#include <cuda/detail/standard_names.hpp>

namespace cuda::ptx {

enum class dot_sem { acq_rel, acquire, relaxed, release, sc, weak };
enum class dot_space { global, cluster, shared };
enum class dot_scope { cta, cluster, gpu, sys };
enum class dot_op { add, dec, inc, max, min, and_op, or_op, xor_op, cas, exch };

// A tag, sem_acquire of the type sem_acquire_t.
#define TMAASYNC_EMULATE_TAG(KIND, NAME)                  \
    using KIND##_##NAME##_t = KIND##_t<dot_##KIND::NAME>; \
    inline constexpr KIND##_##NAME##_t KIND##_##NAME{};

template <dot_sem kSem>
using sem_t = ::std::integral_constant<dot_sem, kSem>;
TMAASYNC_EMULATE_TAG(sem, acq_rel)
TMAASYNC_EMULATE_TAG(sem, acquire)
TMAASYNC_EMULATE_TAG(sem, relaxed)
TMAASYNC_EMULATE_TAG(sem, release)
TMAASYNC_EMULATE_TAG(sem, sc)
TMAASYNC_EMULATE_TAG(sem, weak)

template <dot_space kSpace>
using space_t = ::std::integral_constant<dot_space, kSpace>;
TMAASYNC_EMULATE_TAG(space, global)
TMAASYNC_EMULATE_TAG(space, shared)
TMAASYNC_EMULATE_TAG(space, cluster)

template <dot_scope kScope>
using scope_t = ::std::integral_constant<dot_scope, kScope>;
TMAASYNC_EMULATE_TAG(scope, cta)
TMAASYNC_EMULATE_TAG(scope, cluster)
TMAASYNC_EMULATE_TAG(scope, gpu)
TMAASYNC_EMULATE_TAG(scope, sys)

template <dot_op kOp>
using op_t = ::std::integral_constant<dot_op, kOp>;
TMAASYNC_EMULATE_TAG(op, add)
TMAASYNC_EMULATE_TAG(op, dec)
TMAASYNC_EMULATE_TAG(op, inc)
TMAASYNC_EMULATE_TAG(op, max)
TMAASYNC_EMULATE_TAG(op, min)
TMAASYNC_EMULATE_TAG(op, and_op)
TMAASYNC_EMULATE_TAG(op, or_op)
TMAASYNC_EMULATE_TAG(op, xor_op)

#undef TMAASYNC_EMULATE_TAG

template <int n>
using n32_t = ::std::integral_constant<int, n>;

}  // namespace cuda::ptx
