#include "kernels/cuda/cublas_lt.h"

#include "base/try.h"

namespace reprise::kernels::cuda {

Result<CublasLt> CublasLt::load() {
  constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
  REPRISE_TRY(DynamicLibrary library,
              DynamicLibrary::open(kNames,
                                   "install NVIDIA's cuBLAS 12 or 13 (of the CUDA toolkit, or pip "
                                   "install nvidia-cublas) and name its folder in "
                                   "LD_LIBRARY_PATH"));
  CublasLt lt{.library = std::move(library)};
  const DynamicLibrary& from = lt.library;
  REPRISE_CHECK(from.load("cublasLtGetStatusString", &lt.get_status_string));
  REPRISE_CHECK(from.load("cublasLtCreate", &lt.create));
  REPRISE_CHECK(from.load("cublasLtDestroy", &lt.destroy));
  REPRISE_CHECK(from.load("cublasLtMatmul", &lt.matmul));
  REPRISE_CHECK(from.load("cublasLtMatmulAlgoGetHeuristic", &lt.get_heuristic));
  REPRISE_CHECK(from.load("cublasLtMatmulDescCreate", &lt.desc_create));
  REPRISE_CHECK(from.load("cublasLtMatmulDescDestroy", &lt.desc_destroy));
  REPRISE_CHECK(from.load("cublasLtMatmulDescSetAttribute", &lt.desc_set));
  REPRISE_CHECK(from.load("cublasLtMatrixLayoutCreate", &lt.layout_create));
  REPRISE_CHECK(from.load("cublasLtMatrixLayoutDestroy", &lt.layout_destroy));
  REPRISE_CHECK(from.load("cublasLtMatrixLayoutSetAttribute", &lt.layout_set));
  REPRISE_CHECK(from.load("cublasLtMatmulPreferenceCreate", &lt.preference_create));
  REPRISE_CHECK(from.load("cublasLtMatmulPreferenceDestroy", &lt.preference_destroy));
  REPRISE_CHECK(from.load("cublasLtMatmulPreferenceSetAttribute", &lt.preference_set));
  return lt;
}

}  // namespace reprise::kernels::cuda
