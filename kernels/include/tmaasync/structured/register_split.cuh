#pragma once

namespace tmaasync {

// Registers that a producer thread keeps and a consumer thread claims (setmaxnreg). 0 for both
// means no setmaxnreg. RegisterSplit on the host computes and explains numbers that fit.
template <int kProducer, int kConsumer>
struct RegisterSplit {
    static constexpr int kProducerRegisters = kProducer;
    static constexpr int kConsumerRegisters = kConsumer;
    static constexpr bool kIsOff = kProducer == 0 && kConsumer == 0;

    static_assert(
        kIsOff || (kProducer % 8 == 0 && kProducer >= 24 && kProducer <= 256),
        "setmaxnreg takes multiples of 8 from 24 to 256"
    );
    static_assert(
        kIsOff || (kConsumer % 8 == 0 && kConsumer >= 24 && kConsumer <= 256),
        "setmaxnreg takes multiples of 8 from 24 to 256"
    );

    // Initial registers per thread of a CTA with one producer and `consumers` consumer warpgroups:
    // the compiler derives them from __launch_bounds__(threads, 1); at most the consumers' claim.
    __device__ static constexpr int launch_registers(int consumers) {
        const int most = min_of(64 * 1024 / (128 * (1 + consumers)) / 8 * 8, 256);
        return kIsOff ? most : min_of(most, kConsumer);
    }

    // Whether these consumers and one producer need no more registers than the CTA starts with.
    // Otherwise a claim waits forever.
    __device__ static constexpr bool fits(int consumers) {
        const int launched = launch_registers(consumers);
        return kProducer <= launched &&
               kProducer + consumers * kConsumer <= (1 + consumers) * launched;
    }

private:
    __device__ static constexpr int min_of(int a, int b) { return a < b ? a : b; }
};

// The split of consumers with different roles, which claim or release registers themselves: the
// producer keeps kProducer, 0 for all.
template <int kProducer>
struct ProducerRegisters {
    static constexpr int kProducerRegisters = kProducer;
    static constexpr int kConsumerRegisters = 0;

    __device__ static constexpr bool fits(int consumers) {
        return kProducer <= RegisterSplit<0, 0>::launch_registers(consumers);
    }
};

// The default split of GEMMs: the producer keeps at most 40 registers, enough for multicast loads;
// consumers claim the rest, up to 232.
template <int kConsumers>
struct DefaultRegisterSplitOf {
    static constexpr int kAll =
        (1 + kConsumers) * RegisterSplit<0, 0>::launch_registers(kConsumers);
    static constexpr int kShare = (kAll - 24) / kConsumers / 8 * 8;
    static constexpr int kConsumer = kShare < 232 ? kShare : 232;
    static constexpr int kLeft = kAll - kConsumers * kConsumer;
    static constexpr int kProducer = kLeft < 40 ? kLeft : 40;
    using type = RegisterSplit<kProducer, kConsumer>;
};
template <int kConsumers>
using DefaultRegisterSplit = typename DefaultRegisterSplitOf<kConsumers>::type;

}  // namespace tmaasync
