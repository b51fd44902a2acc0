#include "kernels/cuda/split_memory.h"

#include <cuda.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/system.h"
#include "base/thread_pool.h"
#include "base/try.h"

namespace reprise::kernels::cuda {
namespace {

constexpr size_t kStep = size_t{2} << 20;  // the driver maps whole steps
constexpr std::string_view kWhat = "keys and values in the host's memory";

size_t whole_steps(size_t bytes) { return (bytes + kStep - 1) / kStep * kStep; }

CUdeviceptr address_of(const std::byte* at) { return reinterpret_cast<CUdeviceptr>(at); }

// Sets *function to the driver's function of that name.
template <class F>
Status find(const char* name, F* function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  REPRISE_CUDA(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result),
               kWhat);
#else
  REPRISE_CUDA(cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result), kWhat);
#endif
  if (found == nullptr || result != cudaDriverEntryPointSuccess) {
    return fail(ErrorCode::kDeviceUnavailable,
                "the driver has no {}, which --kv-host needs; install a newer one", name);
  }
  *function = reinterpret_cast<F>(found);
  return {};
}

Status driver_status(CUresult result, std::string_view what) {
  if (result == CUDA_SUCCESS) return {};
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    return fail(ErrorCode::kOutOfMemory, "no memory for {}; lower --kv-memory or --kv-host", what);
  }
  return fail(ErrorCode::kDeviceUnavailable, "the CUDA driver failed at {} (error {})", what,
              static_cast<int>(result));
}

}  // namespace

struct SplitMemory::Driver {
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;

  Status load() {
    REPRISE_CHECK(find("cuMemAddressReserve", &reserve));
    REPRISE_CHECK(find("cuMemAddressFree", &free));
    REPRISE_CHECK(find("cuMemCreate", &create));
    REPRISE_CHECK(find("cuMemRelease", &release));
    REPRISE_CHECK(find("cuMemMap", &map));
    REPRISE_CHECK(find("cuMemUnmap", &unmap));
    return find("cuMemSetAccess", &set_access);
  }
};

Status SplitMemory::reserve(size_t device_bytes, size_t host_bytes) {
  if (const uint64_t free = available_memory_bytes(); free > 0 && host_bytes > free) {
    return fail(ErrorCode::kOutOfMemory,
                "{} MiB of the host's memory for KV, {} MiB are available; lower --kv-host",
                host_bytes >> 20, free >> 20);
  }
  Driver driver;
  REPRISE_CHECK(driver.load());
  device_bytes_ = device_bytes;
  device_room_ = whole_steps(device_bytes);
  host_room_ = whole_steps(host_bytes);
  REPRISE_CHECK(map_window(driver));
  // Containers may forbid the driver to choose a NUMA node: then memory is registered.
  if (!map(driver, start_ + device_room_, host_room_, true)) REPRISE_CHECK(register_beside(driver));
  REPRISE_CUDA(cudaMemset(data(), 0, device_bytes), kWhat);
  REPRISE_CUDA(cudaStreamSynchronize(nullptr), kWhat);
  return {};
}

/// The whole range, with the device's part behind it.
Status SplitMemory::map_window(const Driver& driver) {
  CUdeviceptr address = 0;
  const size_t bytes = device_room_ + host_room_;
  REPRISE_CHECK(driver_status(driver.reserve(&address, bytes, kStep, 0, 0), "reserving addresses"));
  start_ = reinterpret_cast<std::byte*>(address);
  reserved_ = bytes;
  return map(driver, start_, device_room_, false);
}

Status SplitMemory::map(const Driver& driver, std::byte* at, size_t bytes, bool on_host) {
  int device = 0, node = 0;
  REPRISE_CUDA(cudaGetDevice(&device), kWhat);
  REPRISE_CUDA(cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, device), kWhat);
  CUmemAllocationProp wanted = {};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = on_host ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.location.id = on_host ? std::max(node, 0) : device;
  CUmemGenericAllocationHandle handle = 0;
  REPRISE_CHECK(driver_status(driver.create(&handle, bytes, &wanted, 0), kWhat));
  const CUresult mapped = driver.map(address_of(at), bytes, 0, handle, 0);
  driver.release(handle);  // the mapping keeps it
  REPRISE_CHECK(driver_status(mapped, kWhat));
  mapped_ += bytes;
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return driver_status(driver.set_access(address_of(at), bytes, &access, 1), kWhat);
}

/// Gives the host's part of the range back to the system and maps and registers memory there.
Status SplitMemory::register_beside(const Driver& driver) {
  std::byte* const start = start_;
  release();
  CUdeviceptr address = 0;
  REPRISE_CHECK(driver_status(driver.reserve(&address, device_room_, kStep, address_of(start), 0),
                              "reserving addresses"));
  start_ = reinterpret_cast<std::byte*>(address);
  reserved_ = device_room_;
  REPRISE_CHECK(map(driver, start_, device_room_, false));
  std::byte* const host = start_ + device_room_;
  void* made = ::mmap(host, host_room_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (made != host) {
    if (made != MAP_FAILED) ::munmap(made, host_room_);
    return fail(ErrorCode::kDeviceUnavailable,
                "host memory cannot be mapped beside the device's here; use --kv-disk instead of "
                "--kv-host");
  }
  registered_ = host;
  ::madvise(host, host_room_, MADV_HUGEPAGE);  // a refusal costs speed alone
  ThreadPool threads;                          // touching it takes most of the time
  threads.run(host_room_ / kStep, [&](size_t i, int) { std::memset(host + i * kStep, 0, kStep); });
  REPRISE_CUDA(cudaHostRegister(host, host_room_, cudaHostRegisterMapped), kWhat);
  void* seen = nullptr;
  REPRISE_CUDA(cudaHostGetDevicePointer(&seen, host, 0), kWhat);
  if (seen == host) return {};
  return fail(ErrorCode::kDeviceUnavailable,
              "the device does not see host memory at the host's addresses; use --kv-disk instead "
              "of --kv-host");
}

void SplitMemory::release() {
  Driver driver;
  if (registered_ != nullptr) {
    cudaHostUnregister(registered_);
    ::munmap(registered_, host_room_);
    registered_ = nullptr;
  }
  if (reserved_ == 0 || !driver.load()) return;
  if (mapped_ > 0) driver.unmap(address_of(start_), mapped_);
  driver.free(address_of(start_), reserved_);
  reserved_ = mapped_ = 0;
}

}  // namespace reprise::kernels::cuda
