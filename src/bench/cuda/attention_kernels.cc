#include "bench/cuda/attention_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "base/float16.h"
#include "base/percentile.h"
#include "base/try.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/step_graph.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/kv_types.h"
#include "kernels/cuda/paged_prefill.h"

namespace reprise {
namespace {

using namespace kernels::cuda;
using kernels::cuda::kPageTokens;

constexpr double kTouched = 400e6;     // bytes of KV read in turn: several times what L2 holds
constexpr size_t kMaxCopies = 12;      // of small KV; even of 8 MB they are more than L2
constexpr size_t kCallsPerGraph = 24;  // of a decode step: launching the graph costs nothing
constexpr double kGraphBytes = 8e9;    // read by the calls of a graph, about, at most
constexpr size_t kBlockPages = 256;    // of random values, repeated over all pages
constexpr size_t kBlockRows = 64;      // of random queries, repeated
constexpr int kReplays = 9;
constexpr std::string_view kWhat = "measuring attention";

/// bf16 between -1 and 1 (below 2 as f16): power and so clocks depend on bits that change.
std::vector<std::byte> random_values(size_t count) {
  std::minstd_rand random(1);
  std::vector<std::byte> bytes(count * sizeof(Bf16));
  for (size_t at = 0; at < bytes.size(); at += sizeof(Bf16)) {
    const Bf16 value = to_bf16(static_cast<float>(random() >> 7 & 0xffff) / 32768.0f - 1.0f);
    std::memcpy(&bytes[at], &value, sizeof value);
  }
  return bytes;
}

/// Copies of block, one after the other.
Status fill(DeviceBuffer<std::byte>& data, size_t bytes, std::span<const std::byte> block) {
  REPRISE_CHECK(data.reserve(bytes, kWhat));
  size_t filled = std::min(bytes, block.size());
  REPRISE_CUDA(cudaMemcpy(data.data(), block.data(), filled, cudaMemcpyHostToDevice), kWhat);
  while (filled < bytes) {
    const size_t more = std::min(filled, bytes - filled);
    REPRISE_CUDA(cudaMemcpy(data.data() + filled, data.data(), more, cudaMemcpyDeviceToDevice),
                 kWhat);
    filled += more;
  }
  return {};
}

/// One layer's KV, queries and results.
class Layer {
 public:
  Layer(const AttentionShape& shape, KvType type, const AttentionCase& wanted)
      : shape_(shape), type_(type), case_(wanted) {}

  Status fill_memory();
  size_t calls() const {
    if (!case_.decode) return 1;
    const auto fit = static_cast<size_t>(kGraphBytes / static_cast<double>(pages() * page_bytes()));
    return std::max<size_t>(1, std::min(kCallsPerGraph, fit) / copies_) * copies_;
  }
  Status enqueue(size_t call, cudaStream_t stream) const;

 private:
  size_t tile() const { return tile_bytes(type_, shape_.head_dim); }
  size_t page_bytes() const { return size_t{2} * shape_.n_kv_head * tile(); }
  size_t rows() const { return case_.decode ? case_.batch : case_.context; }
  uint32_t capacity() const { return (case_.context + kPageTokens - 1) / kPageTokens; }
  size_t pages() const { return size_t{case_.decode ? case_.batch : 1} * capacity(); }
  std::vector<std::byte> page_block() const;
  Status fill_tables();
  PagedKv kv(size_t call) const {
    return {kv_.data() + call % copies_ * pages() * page_bytes(), type_, shape_.n_kv_head,
            shape_.head_dim};
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }
  cudaError_t decode(size_t call, cudaStream_t stream) const;
  cudaError_t prefill(cudaStream_t stream) const;

  const AttentionShape& shape_;
  const KvType type_;
  const AttentionCase case_;
  size_t copies_ = 1;
  DeviceBuffer<std::byte> kv_;        // [copies_, pages(), page_bytes()]
  DeviceBuffer<std::byte> q_, out_;   // [rows(), n_head, head_dim] bf16, or f32 in decode
  DeviceBuffer<float> lse_;           // [rows(), n_head]
  DeviceBuffer<uint32_t> table_;      // [pages()]
  DeviceBuffer<int32_t> keys_;        // [batch]
  DeviceBuffer<PrefillRows> prompt_;  // [1]
  DeviceBuffer<std::byte> workspace_;
};

std::vector<std::byte> Layer::page_block() const {
  auto block = random_values(kBlockPages * page_bytes() / sizeof(Bf16));
  if (type_ != KvType::kFP8) return block;
  for (std::byte& code : block) code &= std::byte{0xf7};  // 0x7f and 0xff are NaN
  const float code_scale = 0.01f;
  for (size_t at = 0; at < block.size(); at += tile()) {
    for (uint32_t token = 0; token < kPageTokens; ++token) {
      std::memcpy(&block[at + fp8_scale_offset(shape_.head_dim, token)], &code_scale,
                  sizeof code_scale);
    }
  }
  return block;
}

Status Layer::fill_tables() {
  std::vector<uint32_t> table(pages());
  std::iota(table.begin(), table.end(), 0u);
  std::shuffle(table.begin(), table.end(), std::minstd_rand(1));
  REPRISE_CHECK(upload(std::span<const uint32_t>(table), table_, kWhat));
  const std::vector<int32_t> keys(case_.batch, static_cast<int32_t>(case_.context));
  REPRISE_CHECK(upload(std::span<const int32_t>(keys), keys_, kWhat));
  const PrefillRows prompt{0, case_.context, 0};
  return upload(std::span(&prompt, 1), prompt_, kWhat);
}

Status Layer::fill_memory() {
  const size_t copy = pages() * page_bytes(), row = size_t{shape_.n_head} * shape_.head_dim;
  if (case_.decode) {
    const auto wanted = static_cast<size_t>(std::ceil(kTouched / static_cast<double>(copy)));
    copies_ = std::min(wanted, kMaxCopies);
  }
  REPRISE_CHECK(fill(kv_, copies_ * copy, page_block()));
  REPRISE_CHECK(fill(q_, rows() * row * sizeof(float), random_values(kBlockRows * row)));
  REPRISE_CHECK(out_.reserve(rows() * row * sizeof(float), kWhat));
  REPRISE_CHECK(lse_.reserve(rows() * shape_.n_head, kWhat));
  const size_t room =
      paged_decode_workspace(case_.batch, shape_.n_head, shape_.n_kv_head, shape_.head_dim);
  REPRISE_CHECK(
      workspace_.reserve(std::max(room, paged_prefill_workspace(shape_.head_dim)), kWhat));
  return fill_tables();
}

Status Layer::enqueue(size_t call, cudaStream_t stream) const {
  REPRISE_CUDA(case_.decode ? decode(call, stream) : prefill(stream), kWhat);
  return {};
}

cudaError_t Layer::decode(size_t call, cudaStream_t stream) const {
  PagedDecodeArgs args;
  args.kv = kv(call);
  args.lists.pages = table_.data();
  args.lists.keys = keys_.data();
  args.lists.capacity = capacity();
  args.batch = case_.batch;
  args.n_head = shape_.n_head;
  args.q = reinterpret_cast<const float*>(q_.data());
  args.scale = scale();
  args.out = reinterpret_cast<float*>(out_.data());
  args.lse = lse_.data();
  args.workspace = workspace_.data();
  return paged_decode(args, stream);
}

cudaError_t Layer::prefill(cudaStream_t stream) const {
  PagedPrefillArgs args;
  args.kv = kv(0);
  args.sequences = prompt_.data();
  args.pages = table_.data();
  args.batch = 1;
  args.capacity = capacity();
  args.n_head = shape_.n_head;
  args.rows = case_.context;
  args.q = q_.data();
  args.scale = scale();
  args.out = out_.data();
  args.lse = lse_.data();
  args.workspace = workspace_.data();
  return paged_prefill(args, stream);
}

class DeviceAttention : public AttentionKernels {
 public:
  DeviceAttention(const AttentionShape& shape, KvType type) : shape_(shape), type_(type) {}

  Status start() {
    REPRISE_TRY(stream_, CudaStream::create());
    REPRISE_TRY(begin_, CudaEvent::create(true));
    REPRISE_TRY(end_, CudaEvent::create(true));
    return {};
  }
  Status prepare(const AttentionCase& wanted) override {
    graph_ = {};
    layer_.reset();
    layer_.emplace(shape_, type_, wanted);
    REPRISE_CHECK(layer_->fill_memory());
    REPRISE_TRY(graph_, StepGraph::capture(stream_.get(), [&]() -> Status {
                  for (size_t call = 0; call < layer_->calls(); ++call)
                    REPRISE_CHECK(layer_->enqueue(call, stream_.get()));
                  return {};
                }));
    return {};
  }
  Result<double> microseconds() override {
    std::vector<double> times;
    for (int replay = 0; replay <= kReplays; ++replay) {
      REPRISE_CHECK(begin_.record(stream_.get()));
      REPRISE_CHECK(graph_.launch(stream_.get()));
      REPRISE_CHECK(end_.record(stream_.get()));
      REPRISE_CHECK(end_.wait());
      REPRISE_TRY(const double ms, end_.ms_since(begin_));
      if (replay > 0) times.push_back(ms * 1e3 / static_cast<double>(layer_->calls()));
    }
    return percentile(times, 0.5);
  }
  double kv_bytes_per_token() const override {
    return 2.0 * shape_.n_kv_head * tile_bytes(type_, shape_.head_dim) / kPageTokens;
  }

 private:
  const AttentionShape shape_;
  const KvType type_;
  CudaStream stream_;
  CudaEvent begin_, end_;
  std::optional<Layer> layer_;
  StepGraph graph_;
};

}  // namespace

Result<std::unique_ptr<AttentionKernels>> device_attention(const AttentionShape& shape) {
  REPRISE_CHECK(find_cuda_devices(1));
  REPRISE_TRY(const KvType type, device_kv_type(shape.kv_type));
  auto kernels = std::make_unique<DeviceAttention>(shape, type);
  REPRISE_CHECK(kernels->start());
  return kernels;
}

}  // namespace reprise
