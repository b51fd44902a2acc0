// Libraries that may be missing, so that the program starts where they are.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "reprise/error.h"

namespace reprise::kernels::cuda {

class DynamicLibrary {
 public:
  /// The first of the names that can be loaded. kDeviceUnavailable ends with the advice: how to
  /// get the library.
  static Result<DynamicLibrary> open(std::span<const char* const> names, const char* advice);

  /// Sets *function, a pointer to a function, to the one of this name. kDeviceUnavailable.
  template <class F>
  Status load(const char* name, F* function) const {
    void* address = find(name);
    if (address == nullptr) {
      return fail(ErrorCode::kDeviceUnavailable, "{} has no function {}; install a newer one",
                  name_, name);
    }
    *function = reinterpret_cast<F>(address);
    return {};
  }

 private:
  struct Close {
    void operator()(void* handle) const;
  };

  DynamicLibrary(void* handle, const char* name) : handle_(handle), name_(name) {}
  void* find(const char* name) const;

  std::unique_ptr<void, Close> handle_;
  std::string name_;
};

}  // namespace reprise::kernels::cuda
