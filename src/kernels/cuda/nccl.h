// The functions of NCCL that Communicator calls, loaded when they are first needed. Declared here:
// the toolkit does not bring NCCL's header, and these have not changed since NCCL 2.4.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/dynamic_library.h"
#include "reprise/error.h"

namespace reprise::kernels::cuda {

/// Names as in nccl.h, without nccl. Communicators are opaque, enumerations ints.
struct Nccl {
  using Result = int;
  using Comm = void*;
  static constexpr Result kSuccess = 0;
  static constexpr int kFloat32 = 7, kSum = 0;

  /// kDeviceUnavailable. Keeps NVLink multicast off unless NCCL_NVLS_ENABLE is set.
  static ::reprise::Result<Nccl> load();

  DynamicLibrary library;
  const char* (*get_error_string)(Result) = nullptr;
  Result (*comm_init_all)(Comm* comms, int count, const int* devices) = nullptr;
  Result (*comm_destroy)(Comm) = nullptr;
  Result (*comm_abort)(Comm) = nullptr;
  Result (*all_reduce)(const void* from, void* to, size_t count, int type, int operation, Comm,
                       cudaStream_t) = nullptr;
  Result (*all_gather)(const void* from, void* to, size_t count, int type, Comm,
                       cudaStream_t) = nullptr;

  /// kDeviceUnavailable with the library's words.
  Status check(Result result, const char* what) const {
    if (result == kSuccess) return {};
    return fail(ErrorCode::kDeviceUnavailable,
                "{} failed: NCCL says \"{}\"; NCCL_DEBUG=WARN tells more", what,
                get_error_string(result));
  }
};

}  // namespace reprise::kernels::cuda
