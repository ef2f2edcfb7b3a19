// The tag arguments of cuda::ptx, which choose an instruction's qualifiers.
#pragma once

#include <cuda/detail/standard_names.hpp>

namespace cuda::ptx {

enum class dot_sem { acq_rel, acquire, relaxed, release, sc, weak };
enum class dot_space { global, cluster, shared };
enum class dot_scope { cta, cluster, gpu, sys };
enum class dot_op { add, dec, inc, max, min, and_op, or_op, xor_op, cas, exch };

template <dot_sem kSem>
using sem_t = ::std::integral_constant<dot_sem, kSem>;
using sem_acq_rel_t = sem_t<dot_sem::acq_rel>;
using sem_acquire_t = sem_t<dot_sem::acquire>;
using sem_relaxed_t = sem_t<dot_sem::relaxed>;
using sem_release_t = sem_t<dot_sem::release>;
using sem_sc_t = sem_t<dot_sem::sc>;
using sem_weak_t = sem_t<dot_sem::weak>;
inline constexpr sem_acq_rel_t sem_acq_rel{};
inline constexpr sem_acquire_t sem_acquire{};
inline constexpr sem_relaxed_t sem_relaxed{};
inline constexpr sem_release_t sem_release{};
inline constexpr sem_sc_t sem_sc{};
inline constexpr sem_weak_t sem_weak{};

template <dot_space kSpace>
using space_t = ::std::integral_constant<dot_space, kSpace>;
using space_global_t = space_t<dot_space::global>;
using space_shared_t = space_t<dot_space::shared>;
using space_cluster_t = space_t<dot_space::cluster>;
inline constexpr space_global_t space_global{};
inline constexpr space_shared_t space_shared{};
inline constexpr space_cluster_t space_cluster{};

template <dot_scope kScope>
using scope_t = ::std::integral_constant<dot_scope, kScope>;
using scope_cta_t = scope_t<dot_scope::cta>;
using scope_cluster_t = scope_t<dot_scope::cluster>;
using scope_gpu_t = scope_t<dot_scope::gpu>;
using scope_sys_t = scope_t<dot_scope::sys>;
inline constexpr scope_cta_t scope_cta{};
inline constexpr scope_cluster_t scope_cluster{};
inline constexpr scope_gpu_t scope_gpu{};
inline constexpr scope_sys_t scope_sys{};

template <dot_op kOp>
using op_t = ::std::integral_constant<dot_op, kOp>;
using op_add_t = op_t<dot_op::add>;
using op_dec_t = op_t<dot_op::dec>;
using op_inc_t = op_t<dot_op::inc>;
using op_max_t = op_t<dot_op::max>;
using op_min_t = op_t<dot_op::min>;
using op_and_op_t = op_t<dot_op::and_op>;
using op_or_op_t = op_t<dot_op::or_op>;
using op_xor_op_t = op_t<dot_op::xor_op>;
inline constexpr op_add_t op_add{};
inline constexpr op_dec_t op_dec{};
inline constexpr op_inc_t op_inc{};
inline constexpr op_max_t op_max{};
inline constexpr op_min_t op_min{};
inline constexpr op_and_op_t op_and_op{};
inline constexpr op_or_op_t op_or_op{};
inline constexpr op_xor_op_t op_xor_op{};

template <int n>
using n32_t = ::std::integral_constant<int, n>;

}  // namespace cuda::ptx
