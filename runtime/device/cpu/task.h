// A function object held inline, so that enqueuing work never allocates.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace ashlar {

class Task {
 public:
  static constexpr size_t kCapacity = 448;

  Task() = default;
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, Task>)
      Task(F&& function) {  // NOLINT: implicit on purpose, as with std::function
    using Function = std::remove_cvref_t<F>;
    static_assert(sizeof(Function) <= kCapacity, "a task captures views and numbers, not data");
    static_assert(std::is_trivially_copyable_v<Function>, "a task captures views and numbers, not owners");
    new (storage_) Function(std::forward<F>(function));
    call_ = [](void* storage) { (*static_cast<Function*>(storage))(); };
  }

  void operator()() { call_(storage_); }
  explicit operator bool() const { return call_ != nullptr; }

 private:
  alignas(std::max_align_t) std::byte storage_[kCapacity];
  void (*call_)(void*) = nullptr;
};

}  // namespace ashlar
