#include "races/clocks.hpp"

#include <algorithm>

namespace tmaasync_emulate {

// Epochs side by side. A clock has one for every thread of a cluster, and every arrival and every
// wait joins clocks. Without vector instructions, this took half the time of a race-checked GEMM.

__attribute__((always_inline)) inline LaterEpochs later_epochs_body(
    const Epoch* a, const Epoch* b, std::size_t count
) {
    Epoch of_a = 0, of_b = 0;
    for (std::size_t i = 0; i < count; ++i) {
        of_a |= a[i] > b[i];
        of_b |= b[i] > a[i];
    }
    return {of_a != 0, of_b != 0};
}

__attribute__((always_inline)) inline void raise_epochs_body(
    Epoch* a, const Epoch* b, std::size_t count
) {
    for (std::size_t i = 0; i < count; ++i) a[i] = a[i] < b[i] ? b[i] : a[i];
}

#if defined(__x86_64__)
__attribute__((target("avx2"), optimize("O3"))) static LaterEpochs later_epochs_avx2(
    const Epoch* a, const Epoch* b, std::size_t count
) {
    return later_epochs_body(a, b, count);
}

__attribute__((target("avx2"), optimize("O3"))) static void raise_epochs_avx2(
    Epoch* a, const Epoch* b, std::size_t count
) {
    raise_epochs_body(a, b, count);
}
#endif

static LaterEpochs later_epochs(const Epoch* a, const Epoch* b, std::size_t count) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return later_epochs_avx2(a, b, count);
#endif
    return later_epochs_body(a, b, count);
}

static void raise_epochs(Epoch* a, const Epoch* b, std::size_t count) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return raise_epochs_avx2(a, b, count);
#endif
    raise_epochs_body(a, b, count);
}

void Clock::join(const Clock& other, Agent first) {
    if (other.epochs_ == epochs_ || !other.epochs_) return;
    if (first == 0 && !epochs_) {
        epochs_ = other.epochs_;
        return;
    }
    const auto [ours, theirs] = later(other, first);
    if (first == 0 && !ours) {
        epochs_ = other.epochs_;
    } else if (theirs) {
        const std::vector<Epoch>& others = *other.epochs_;
        std::vector<Epoch>& epochs = own(others.size());
        if (first < others.size()) {
            raise_epochs(&epochs[first], &others[first], others.size() - first);
        }
    }
}

LaterEpochs Clock::later(const Clock& other, Agent first) const {
    static const std::vector<Epoch> nothing;
    const std::vector<Epoch>& a = epochs_ ? *epochs_ : nothing;
    const std::vector<Epoch>& b = *other.epochs_;
    const std::size_t both = std::min(a.size(), b.size());
    LaterEpochs found;
    if (first < both) found = later_epochs(&a[first], &b[first], both - first);
    for (std::size_t i = std::max<std::size_t>(both, first); i < a.size(); ++i) {
        found.of_a |= a[i] != 0;
    }
    for (std::size_t i = std::max<std::size_t>(both, first); i < b.size(); ++i) {
        found.of_b |= b[i] != 0;
    }
    return found;
}

std::vector<Epoch>& Clock::own(std::size_t size) {
    if (!epochs_) {
        epochs_ = std::make_shared<std::vector<Epoch>>(size);
    } else if (epochs_.use_count() > 1) {
        epochs_ = std::make_shared<std::vector<Epoch>>(*epochs_);
    }
    if (epochs_->size() < size) epochs_->resize(size);
    return *epochs_;
}

template <class Key>
Clock KeyedClocks<Key>::of(Key key) const {
    if (!clocks_) return {};
    const auto found = clocks_->find(key);
    return found == clocks_->end() ? Clock{} : found->second;
}

template <class Key>
void KeyedClocks<Key>::join(Key key, const Clock& clock) {
    if (!clock.is_empty()) own()[key].join(clock);
}

template <class Key>
void KeyedClocks<Key>::join(const KeyedClocks& other) {
    if (other.clocks_ == clocks_ || !other.clocks_) return;
    if (!clocks_) {
        clocks_ = other.clocks_;
        return;
    }
    // A polling thread joins the same clocks again and again.
    if (is_after(other)) return;
    if (other.is_after(*this)) {
        clocks_ = other.clocks_;
        return;
    }
    for (const auto& [key, clock] : *other.clocks_) join(key, clock);
}

template <class Key>
bool KeyedClocks<Key>::is_after(const KeyedClocks& other) const {
    if (clocks_->size() < other.clocks_->size()) return false;
    auto mine = clocks_->begin();
    for (const auto& [key, clock] : *other.clocks_) {
        while (mine != clocks_->end() && mine->first < key) ++mine;
        if (mine == clocks_->end() || mine->first != key) return false;
        if (!mine->second.is_after(clock)) return false;
    }
    return true;
}

template <class Key>
auto KeyedClocks<Key>::own() -> Clocks& {
    if (!clocks_) {
        clocks_ = std::make_shared<Clocks>();
    } else if (clocks_.use_count() > 1) {
        clocks_ = std::make_shared<Clocks>(*clocks_);
    }
    return *clocks_;
}

template class KeyedClocks<uintptr_t>;
template class KeyedClocks<uint32_t>;

}  // namespace tmaasync_emulate
