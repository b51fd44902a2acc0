#include "kernels/cuda/address_range.h"

#include <cuda.h>

#include <algorithm>

#include "base/try.h"

namespace reprise::kernels::cuda {
namespace {

CUdeviceptr address_of(const std::byte* at) { return reinterpret_cast<CUdeviceptr>(at); }

// Sets *function to the driver's function of that name.
template <class F>
Status find(const char* name, F* function) {
  constexpr std::string_view kWhat = "asking for the driver's functions";
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
                "the driver has no {}, which --kv-host and mac need; install a newer one", name);
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

struct AddressRange::Driver {
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

Status AddressRange::reserve(size_t bytes, std::byte* near, std::string_view what) {
  release();
  Driver driver;
  REPRISE_CHECK(driver.load());
  CUdeviceptr address = 0;
  const size_t room = whole_steps(bytes);
  if (room == 0) return {};
  REPRISE_CHECK(driver_status(driver.reserve(&address, room, kStep, address_of(near), 0), what));
  start_ = reinterpret_cast<std::byte*>(address);
  reserved_ = room;
  return {};
}

Status AddressRange::extend(size_t bytes, bool on_host, std::string_view what) {
  const size_t wanted = whole_steps(bytes);
  if (wanted <= mapped_) return {};
  Driver driver;
  REPRISE_CHECK(driver.load());
  int device = 0, node = 0;
  REPRISE_CUDA(cudaGetDevice(&device), what);
  REPRISE_CUDA(cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, device), what);
  CUmemAllocationProp kind = {};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location.type = on_host ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
  kind.location.id = on_host ? std::max(node, 0) : device;
  const size_t added = wanted - mapped_;
  const CUdeviceptr at = address_of(start_ + mapped_);
  CUmemGenericAllocationHandle handle = 0;
  REPRISE_CHECK(driver_status(driver.create(&handle, added, &kind, 0), what));
  const CUresult mapped = driver.map(at, added, 0, handle, 0);
  driver.release(handle);  // the mapping keeps it
  REPRISE_CHECK(driver_status(mapped, what));
  mapped_ = wanted;
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return driver_status(driver.set_access(at, added, &access, 1), what);
}

void AddressRange::release() {
  Driver driver;
  if (reserved_ == 0 || !driver.load()) return;
  cudaDeviceSynchronize();  // what runs may still use it
  if (mapped_ > 0) driver.unmap(address_of(start_), mapped_);
  driver.free(address_of(start_), reserved_);
  start_ = nullptr;
  reserved_ = mapped_ = 0;
}

}  // namespace reprise::kernels::cuda
