#include "kernels/cuda/nccl.h"

#include <cstdlib>

#include "base/try.h"

namespace reprise::kernels::cuda {

Result<Nccl> Nccl::load() {
  // Before NCCL first looks at its settings. Multicast objects are a resource of the whole host.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  constexpr const char* kNames[] = {"libnccl.so.2", "libnccl.so"};
  REPRISE_TRY(DynamicLibrary library,
              DynamicLibrary::open(kNames,
                                   "--tp needs NVIDIA's NCCL 2: install libnccl2 (or pip install "
                                   "nvidia-nccl-cu13) and name its folder in LD_LIBRARY_PATH"));
  Nccl nccl{.library = std::move(library)};
  const DynamicLibrary& from = nccl.library;
  REPRISE_CHECK(from.load("ncclGetErrorString", &nccl.get_error_string));
  REPRISE_CHECK(from.load("ncclCommInitAll", &nccl.comm_init_all));
  REPRISE_CHECK(from.load("ncclCommDestroy", &nccl.comm_destroy));
  REPRISE_CHECK(from.load("ncclCommAbort", &nccl.comm_abort));
  REPRISE_CHECK(from.load("ncclAllReduce", &nccl.all_reduce));
  REPRISE_CHECK(from.load("ncclAllGather", &nccl.all_gather));
  return nccl;
}

}  // namespace reprise::kernels::cuda
