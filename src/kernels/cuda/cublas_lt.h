// The functions of cuBLASLt that Gemm calls, loaded when they are first needed.
#pragma once

#include <cublasLt.h>

#include <memory>

#include "kernels/cuda/dynamic_library.h"
#include "reprise/error.h"

namespace reprise::kernels::cuda {

/// Names as in cublasLt.h, without cublasLt.
struct CublasLt {
  /// kDeviceUnavailable.
  static Result<CublasLt> load();

  DynamicLibrary library;
  decltype(&cublasLtGetStatusString) get_status_string = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;

  /// kDeviceUnavailable with the library's words.
  Status check(cublasStatus_t status, const char* what) const {
    if (status == CUBLAS_STATUS_SUCCESS) return {};
    return fail(ErrorCode::kDeviceUnavailable, "{} failed: {}", what, get_status_string(status));
  }
};

/// An object of the library; frees itself.
template <class Handle>
using CublasLtObject = std::unique_ptr<std::remove_pointer_t<Handle>, cublasStatus_t (*)(Handle)>;

}  // namespace reprise::kernels::cuda
