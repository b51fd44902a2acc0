#include "kernels/cuda/dynamic_library.h"

#include <dlfcn.h>

namespace reprise::kernels::cuda {

Result<DynamicLibrary> DynamicLibrary::open(std::span<const char* const> names,
                                            const char* advice) {
  std::string reason;
  for (const char* name : names) {
    // Once loaded they stay: threads and exit handlers of theirs may outlive the last user.
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); handle != nullptr) {
      return DynamicLibrary(handle, name);
    }
    if (reason.empty()) reason = dlerror();
  }
  return fail(ErrorCode::kDeviceUnavailable, "cannot load {}; {}", reason, advice);
}

void* DynamicLibrary::find(const char* name) const { return dlsym(handle_.get(), name); }

void DynamicLibrary::Close::operator()(void* handle) const { dlclose(handle); }

}  // namespace reprise::kernels::cuda
