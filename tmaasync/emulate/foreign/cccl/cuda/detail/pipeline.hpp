// cuda::pipeline: for one thread over groups of cp.async, or for a group over two barriers per
// stage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda/detail/atomic.hpp>
#include <cuda/detail/barrier.hpp>
#include <cuda/detail/memcpy_async.hpp>

namespace cuda {

enum class pipeline_role { producer, consumer };

template <thread_scope kScope>
class pipeline;

// Trivial, because `__shared__` variables have no constructors.
template <thread_scope kScope, ::std::uint8_t kStages>
class pipeline_shared_state {
public:
    pipeline_shared_state() = default;
    pipeline_shared_state(const pipeline_shared_state&) = delete;
    pipeline_shared_state& operator=(const pipeline_shared_state&) = delete;

private:
    friend class pipeline<kScope>;

    barrier<kScope> produced[kStages];
    barrier<kScope> consumed[kStages];
    unsigned producers;
    unsigned users;

public:
    // Internal functions by which make_pipeline uses the state.
    TMAASYNC_EMULATE_INLINE atomic_ref<unsigned, kScope> count_of_producers() {
        return atomic_ref<unsigned, kScope>(producers);
    }
    TMAASYNC_EMULATE_INLINE pipeline<kScope> start(
        unsigned threads, unsigned producing, unsigned consuming, unsigned rank
    ) {
        if (rank == 0) {
            for (unsigned stage = 0; stage < kStages; ++stage) {
                init(&produced[stage], producing);
                init(&consumed[stage], consuming);
            }
            atomic_ref<unsigned, kScope>(users).store(threads, memory_order_relaxed);
        }
        return pipeline<kScope>(produced, consumed, &users, kStages);
    }
};

template <thread_scope kScope>
class pipeline {
public:
    pipeline(pipeline&& other)
        : produced_(other.produced_),
          consumed_(other.consumed_),
          users_(other.users_),
          stages_(other.stages_),
          head_(other.head_),
          tail_(other.tail_) {
        other.users_ = nullptr;
    }
    pipeline(const pipeline&) = delete;
    pipeline& operator=(const pipeline&) = delete;
    TMAASYNC_EMULATE_INLINE ~pipeline() { quit(); }

    // Returns true in the last thread that leaves: its stages are then free for another pipeline.
    // Lanes that leave together leave by one of them, as in libcu++.
    TMAASYNC_EMULATE_INLINE bool quit() {
        if (!users_) return false;
        const auto state = reinterpret_cast<unsigned long long>(users_);
        const unsigned lanes = __match_any_sync(__activemask(), state);
        atomic_ref<unsigned, kScope> users(*users_);
        users_ = nullptr;
        const unsigned before_own = (1u << tmaasync_emulate::current_thread().lane) - 1;
        if (lanes & before_own) return false;
        const unsigned leaving = __popc(lanes);
        if (users.fetch_sub(leaving, memory_order_acq_rel) != leaving) return false;
        if constexpr (kScope == thread_scope_block) {
            for (unsigned stage = 0; stage < stages_; ++stage) {
                detail::tma::mbarrier_inval(detail::shared_address(&produced_[stage]));
                detail::tma::mbarrier_inval(detail::shared_address(&consumed_[stage]));
            }
        }
        return true;
    }

    TMAASYNC_EMULATE_INLINE void producer_acquire() {
        consumed_[head_ % stages_].wait_parity(!(head_ / stages_ & 1));
    }
    TMAASYNC_EMULATE_INLINE void producer_commit() {
        auto& stage = produced_[head_++ % stages_];
        if constexpr (kScope == thread_scope_block) {
            detail::tma::cp_async_mbarrier_arrive(detail::shared_address(&stage));
        } else {
            detail::tma::cp_async_wait_all();
        }
        (void)stage.arrive();
    }
    TMAASYNC_EMULATE_INLINE void consumer_wait() {
        produced_[tail_ % stages_].wait_parity(tail_ / stages_ & 1);
    }
    TMAASYNC_EMULATE_INLINE void consumer_release() { (void)consumed_[tail_++ % stages_].arrive(); }

    // Tries once: the emulator has no clock.
    template <typename Duration>
    TMAASYNC_EMULATE_INLINE bool consumer_wait_for(const Duration&) {
        return produced_[tail_ % stages_].try_wait_parity(tail_ / stages_ & 1);
    }

private:
    template <thread_scope kOfState, ::std::uint8_t kStages>
    friend class pipeline_shared_state;

    TMAASYNC_EMULATE_INLINE pipeline(
        barrier<kScope>* produced, barrier<kScope>* consumed, unsigned* users, unsigned stages
    )
        : produced_(produced), consumed_(consumed), users_(users), stages_(stages) {}

    barrier<kScope>* produced_;
    barrier<kScope>* consumed_;
    unsigned* users_;  // null once the thread has left
    unsigned stages_;
    unsigned head_ = 0;  // number of stages that the thread has committed
    unsigned tail_ = 0;  // number of stages that the thread has released
};

// The stages are groups of cp.async, which only this thread sees.
template <>
class pipeline<thread_scope_thread> {
public:
    pipeline(pipeline&&) = default;
    pipeline(const pipeline&) = delete;
    pipeline& operator=(const pipeline&) = delete;

    TMAASYNC_EMULATE_INLINE bool quit() { return true; }
    TMAASYNC_EMULATE_INLINE void producer_acquire() {}
    TMAASYNC_EMULATE_INLINE void producer_commit() {
        detail::tma::cp_async_commit_group();
        ++head_;
    }
    TMAASYNC_EMULATE_INLINE void consumer_wait() {
        if (head_ == tail_) return;
        ++tail_;
        tmaasync_emulate::thread_copies_wait(head_ - tail_);
    }
    TMAASYNC_EMULATE_INLINE void consumer_release() {}
    template <typename Duration>
    TMAASYNC_EMULATE_INLINE bool consumer_wait_for(const Duration&) {
        consumer_wait();
        return true;
    }

private:
    pipeline() = default;

    friend pipeline<thread_scope_thread> make_pipeline();
    template <::std::uint8_t kPending>
    friend void pipeline_consumer_wait_prior(pipeline<thread_scope_thread>& pipeline);

    unsigned head_ = 0;
    unsigned tail_ = 0;
};

TMAASYNC_EMULATE_INLINE pipeline<thread_scope_thread> make_pipeline() {
    return {};
}

// Every thread of the group produces and consumes.
template <typename Group, thread_scope kScope, ::std::uint8_t kStages>
TMAASYNC_EMULATE_INLINE pipeline<kScope> make_pipeline(
    const Group& group, pipeline_shared_state<kScope, kStages>* state
) {
    const auto threads = static_cast<unsigned>(group.size());
    const auto rank = static_cast<unsigned>(group.thread_rank());
    auto made = state->start(threads, threads, threads, rank);
    group.sync();
    return made;
}

template <typename Group, thread_scope kScope, ::std::uint8_t kStages>
TMAASYNC_EMULATE_INLINE pipeline<kScope> make_pipeline(
    const Group& group, pipeline_shared_state<kScope, kStages>* state, ::std::size_t producers
) {
    const auto threads = static_cast<unsigned>(group.size());
    const auto producing = static_cast<unsigned>(producers);
    const auto rank = static_cast<unsigned>(group.thread_rank());
    auto made = state->start(threads, producing, threads - producing, rank);
    group.sync();
    return made;
}

// Each thread states whether it produces or consumes.
template <typename Group, thread_scope kScope, ::std::uint8_t kStages>
TMAASYNC_EMULATE_INLINE pipeline<kScope> make_pipeline(
    const Group& group, pipeline_shared_state<kScope, kStages>* state, pipeline_role role
) {
    const auto threads = static_cast<unsigned>(group.size());
    const auto rank = static_cast<unsigned>(group.thread_rank());
    const auto producers = state->count_of_producers();
    if (rank == 0) producers.store(0, memory_order_relaxed);
    group.sync();
    if (role == pipeline_role::producer) producers.fetch_add(1, memory_order_relaxed);
    group.sync();
    const unsigned producing = producers.load(memory_order_relaxed);
    auto made = state->start(threads, producing, threads - producing, rank);
    group.sync();
    return made;
}

template <::std::uint8_t kPending>
TMAASYNC_EMULATE_INLINE void pipeline_consumer_wait_prior(pipeline<thread_scope_thread>& pipeline) {
    tmaasync_emulate::thread_copies_wait(kPending);
    pipeline.tail_ = pipeline.head_ - kPending;
}

// The copies so far arrive on the barrier once they have landed.
TMAASYNC_EMULATE_INLINE void pipeline_producer_commit(
    pipeline<thread_scope_thread>&, barrier<thread_scope_block>& barrier
) {
    detail::tma::cp_async_mbarrier_arrive(detail::shared_address(&barrier));
}

}  // namespace cuda

namespace cuda::detail {

template <typename T, typename Group, typename Size>
TMAASYNC_EMULATE_INLINE async_contract_fulfillment
copy_in_stage(const Group& group, T* target, const T* source, Size bytes) {
    return copy_share<kCopyAlignment<T, Size>>(group, target, source, bytes)
               ? async_contract_fulfillment::async
               : async_contract_fulfillment::none;
}

}  // namespace cuda::detail

namespace cuda {

template <typename Group, typename T, typename Size, thread_scope kScope>
TMAASYNC_EMULATE_INLINE async_contract_fulfillment
memcpy_async(const Group& group, T* target, const T* source, Size bytes, pipeline<kScope>&) {
    return detail::copy_in_stage(group, target, source, bytes);
}
template <typename Group, typename Size, thread_scope kScope>
TMAASYNC_EMULATE_INLINE async_contract_fulfillment
memcpy_async(const Group& group, void* target, const void* source, Size bytes, pipeline<kScope>&) {
    return detail::copy_in_stage<void>(group, target, source, bytes);
}
template <typename T, typename Size, thread_scope kScope>
TMAASYNC_EMULATE_INLINE async_contract_fulfillment
memcpy_async(T* target, const T* source, Size bytes, pipeline<kScope>&) {
    return detail::copy_in_stage(detail::OneThread(), target, source, bytes);
}
template <typename Size, thread_scope kScope>
TMAASYNC_EMULATE_INLINE async_contract_fulfillment
memcpy_async(void* target, const void* source, Size bytes, pipeline<kScope>&) {
    return detail::copy_in_stage<void>(detail::OneThread(), target, source, bytes);
}

}  // namespace cuda
