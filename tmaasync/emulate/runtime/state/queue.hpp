// A queue that owns no memory until it holds something, because most threads' queues stay empty.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace tmaasync_emulate {

template <typename T>
class Queue {
public:
    bool empty() const { return first_ == values_.size(); }
    std::size_t size() const { return values_.size() - first_; }
    T& operator[](std::size_t index) { return values_[first_ + index]; }
    const T& operator[](std::size_t index) const { return values_[first_ + index]; }
    T& front() { return values_[first_]; }
    const T& front() const { return values_[first_]; }
    T& back() { return values_.back(); }
    const T& back() const { return values_.back(); }
    auto begin() { return values_.begin() + static_cast<std::ptrdiff_t>(first_); }
    auto end() { return values_.end(); }
    auto begin() const { return values_.begin() + static_cast<std::ptrdiff_t>(first_); }
    auto end() const { return values_.end(); }

    void push_back(T value) {
        if (first_ > 0 && values_.size() == values_.capacity()) {
            values_.erase(values_.begin(), begin());
            first_ = 0;
        }
        values_.push_back(std::move(value));
    }
    void pop_front() {
        values_[first_++] = T{};
        if (empty()) clear();
    }
    void clear() {
        values_.clear();
        first_ = 0;
    }

private:
    std::vector<T> values_;
    std::size_t first_ = 0;
};

}  // namespace tmaasync_emulate
