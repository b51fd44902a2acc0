#include "kernels/cuda/split_memory.h"

#include <sys/mman.h>

#include <cstring>

#include "base/system.h"
#include "base/thread_pool.h"
#include "base/try.h"

namespace reprise::kernels::cuda {
namespace {

constexpr std::string_view kWhat = "keys and values in the host's memory";

}  // namespace

Status SplitMemory::reserve(size_t device_bytes, size_t host_bytes) {
  if (const uint64_t free = available_memory_bytes(); free > 0 && host_bytes > free) {
    return fail(ErrorCode::kOutOfMemory,
                "{} MiB of the host's memory for KV, {} MiB are available; lower --kv-host",
                host_bytes >> 20, free >> 20);
  }
  device_bytes_ = device_bytes;
  device_room_ = AddressRange::whole_steps(device_bytes);
  host_room_ = AddressRange::whole_steps(host_bytes);
  REPRISE_CHECK(range_.reserve(device_room_ + host_room_, nullptr, kWhat));
  REPRISE_CHECK(range_.extend(device_room_, false, kWhat));
  // Containers may forbid the driver to choose a NUMA node: then memory is registered.
  if (!range_.extend(device_room_ + host_room_, true, kWhat)) REPRISE_CHECK(register_beside());
  REPRISE_CUDA(cudaMemset(data(), 0, device_bytes), kWhat);
  REPRISE_CUDA(cudaStreamSynchronize(nullptr), kWhat);
  return {};
}

/// Gives the host's part of the range back to the system and maps and registers memory there.
Status SplitMemory::register_beside() {
  std::byte* const start = range_.data();
  REPRISE_CHECK(range_.reserve(device_room_, start, kWhat));
  REPRISE_CHECK(range_.extend(device_room_, false, kWhat));
  std::byte* const host = range_.data() + device_room_;
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
  constexpr size_t kStep = AddressRange::kStep;
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
  if (registered_ != nullptr) {
    cudaHostUnregister(registered_);
    ::munmap(registered_, host_room_);
    registered_ = nullptr;
  }
  range_.release();
}

}  // namespace reprise::kernels::cuda
