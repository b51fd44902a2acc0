#include "bench/cuda/device_roof.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "base/float16.h"
#include "base/try.h"
#include "engine/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/device_matrix.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/peak.h"

namespace reprise {
namespace {

using namespace kernels::cuda;

constexpr size_t kMemoryBytes = size_t{2} << 30;   // far more than any device's L2 holds
constexpr size_t kCacheBytes = size_t{512} << 20;  // smaller sets may be served by L2
constexpr size_t kRunBytes = size_t{1} << 30;      // read by a run at least
constexpr uint32_t kSide = 8192;                   // of the matrices that are multiplied
constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr int kRuns = 24;
constexpr std::string_view kWhat = "measuring its speed";

/// Of the default stream; the first run only warms up.
Result<double> best_seconds(const std::function<Status()>& enqueue) {
  REPRISE_TRY(CudaEvent start, CudaEvent::create(true));
  REPRISE_TRY(CudaEvent end, CudaEvent::create(true));
  double best_ms = std::numeric_limits<double>::max();
  for (int run = 0; run <= kRuns; ++run) {
    REPRISE_CHECK(start.record(nullptr));
    REPRISE_CHECK(enqueue());
    REPRISE_CHECK(end.record(nullptr));
    REPRISE_CHECK(end.wait());
    REPRISE_TRY(const double ms, end.ms_since(start));
    if (run > 0) best_ms = std::min(best_ms, ms);
  }
  return best_ms * 1e-3;
}

Result<double> measure_read(size_t bytes) {
  const size_t size = (bytes + kReadPieceBytes - 1) / kReadPieceBytes * kReadPieceBytes;
  DeviceBuffer<std::byte> data;
  DeviceBuffer<uint32_t> sum;
  REPRISE_CHECK(data.reserve(std::max(size, kReadPieceBytes), kWhat));
  REPRISE_CHECK(sum.reserve(1, kWhat));
  const auto rounds = static_cast<uint32_t>(std::max<size_t>(1, kRunBytes / data.size()));
  REPRISE_TRY(const double seconds, best_seconds([&]() -> Status {
                REPRISE_CUDA(read_all(data.data(), data.size(), rounds, sum.data(), nullptr),
                             kWhat);
                return {};
              }));
  return static_cast<double>(data.size()) * rounds / seconds * 1e-9;
}

/// bf16 [kSide, kSide]; zeros would need less power than weights do, and run faster.
DeviceImage random_square() {
  DeviceImage image{.type = TensorType::kBF16, .rows = kSide, .cols = kSide};
  image.tiles = kSide / kTileRows;
  image.chunks = kSide / device_format(image.type).chunk_columns();
  image.codes.resize(size_t{kSide} * kSide * sizeof(Bf16));
  uint32_t state = 1;
  for (size_t at = 0; at < image.codes.size(); at += sizeof(Bf16)) {
    state = state * 1664525u + 1013904223u;
    const Bf16 value = to_bf16(static_cast<float>(state >> 24) / 128.0f - 1.0f);
    std::memcpy(&image.codes[at], &value, sizeof value);
  }
  return image;
}

Result<double> measure_products() {
  DeviceMatrix weight;
  REPRISE_CUDA(DeviceMatrix::upload(random_square(), &weight), kWhat);
  DeviceBuffer<__nv_bfloat16> x, out;  // [kSide, kSide]
  REPRISE_CHECK(x.reserve(size_t{kSide} * kSide, kWhat));
  REPRISE_CHECK(out.reserve(size_t{kSide} * kSide, kWhat));
  REPRISE_CUDA(cudaMemcpy(x.data(), weight.weights().codes, x.size() * sizeof(__nv_bfloat16),
                          cudaMemcpyDeviceToDevice),
               kWhat);
  REPRISE_TRY(const auto gemm, Gemm::create(kWorkspaceBytes));
  GemmArgs args;
  args.weight = &weight;
  args.x = x.data();
  args.rows = kSide;
  args.out = out.data();
  args.type = GemmOut::kBF16;
  args.out_stride = kSide;
  REPRISE_TRY(const double seconds, best_seconds([&] { return gemm->multiply(args, nullptr); }));
  return 2.0 * kSide * kSide * kSide / seconds * 1e-12;
}

/// Of any of the devices.
Result<size_t> least_free_bytes(uint32_t count) {
  size_t least = std::numeric_limits<size_t>::max();
  for (uint32_t device = count; device-- > 0;) {  // ends with the one that is measured
    size_t free = 0, total = 0;
    REPRISE_CUDA(cudaSetDevice(static_cast<int>(device)), kWhat);
    REPRISE_CUDA(cudaMemGetInfo(&free, &total), kWhat);
    least = std::min(least, free);
  }
  return least;
}

class DeviceRoof : public Roof {
 public:
  explicit DeviceRoof(uint32_t count) : count_(count) {}

  Status measure() {
    cudaDeviceProp properties = {};
    REPRISE_CUDA(cudaGetDeviceProperties(&properties, 0), kWhat);
    machine_.device =
        count_ == 1 ? properties.name : fmt::format("{} x {}", count_, properties.name);
    REPRISE_TRY(free_bytes_, least_free_bytes(count_));
    REPRISE_TRY(const double read, measure_read(std::min(kMemoryBytes, free_bytes_ / 2)));
    REPRISE_TRY(const double products, measure_products());
    machine_.read_gb_s = read * count_;
    machine_.bf16_tflop_s = machine_.quantised_tflop_s = products * count_;
    return {};
  }

  MachineRoof machine() override { return machine_; }
  double memory_gb_s() override { return machine_.read_gb_s; }
  Result<double> read_gb_s(size_t bytes) override {
    const size_t part = bytes / count_;
    if (part >= kCacheBytes) return machine_.read_gb_s;
    REPRISE_TRY(const double read, measure_read(part));
    return read * count_;
  }
  uint64_t free_bytes() const override { return free_bytes_; }

 private:
  const uint32_t count_;
  MachineRoof machine_;
  size_t free_bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<Roof>> device_roof(uint32_t count) {
  REPRISE_CHECK(find_cuda_devices(count));
  auto roof = std::make_unique<DeviceRoof>(count);
  REPRISE_CHECK(roof->measure());
  return roof;
}

}  // namespace reprise
