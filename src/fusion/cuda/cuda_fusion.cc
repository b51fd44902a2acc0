#include "fusion/cuda/cuda_fusion.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/try.h"
#include "fusion/cuda/chunk_capture.h"
#include "fusion/cuda/device_chunk_loader.h"
#include "fusion/cuda/layer_rows.h"
#include "fusion/cuda/row_scorer.h"
#include "fusion/cuda/send.h"
#include "fusion/row_choice.h"

namespace reprise {
namespace {

using namespace kernels::cuda;

constexpr std::string_view kWhat = "a fused prompt";

/// What a device keeps from one prompt to the next.
struct Buffers {
  RowBuffers rows;
  LoadBuffers loads;
  std::unique_ptr<ResidentChunks> resident;
  ScoreBuffers scores;
  DeviceBuffer<__nv_bfloat16> captured;  // [block, n_kv_head, head_dim]
  DeviceBuffer<float> logits;            // of a row
  PinnedBuffer<float> host_logits;
  CudaEvent computed[2];  // of layers, in turns
};

/// Stores keys and values and reads nothing: what is left of the last layer.
class StoreOnly : public DeviceAttentionOp {
 public:
  explicit StoreOnly(DeviceExecutor& executor) : executor_(executor) {}
  Status attend(const LayerHeads& heads, cudaStream_t stream) override {
    return executor_.store(heads, stream);
  }

 private:
  DeviceExecutor& executor_;
};

class CudaFusedPass : public FusedPass {
 public:
  CudaFusedPass(const DeviceParts& parts, Buffers& buffers, const FusedJob& job)
      : parts_(parts), b_(buffers), job_(job), rows_(parts, buffers.rows) {}
  // What is enqueued reads the loader's memory and writes the sequence's pages.
  ~CudaFusedPass() override { cudaStreamSynchronize(parts_.stream); }

  Status start(std::vector<ChunkLoad> loads);
  Status compute(std::span<const int32_t> positions) override;
  Status check(std::span<const int32_t> positions, const RowCheck& check,
               const ChooseFn& choose) override;
  std::span<const float> logits() const override { return b_.host_logits.span(); }
  const StoredChunk* failed() const override { return loader_->failed(); }
  void add_cost(FusionCost& cost) const override {
    cudaStreamSynchronize(parts_.stream);  // a pass that failed may not have waited for it
    loader_->add_cost(cost);
  }

 private:
  uint32_t layers() const { return parts_.computes.config().n_layer; }
  Status store_first_layer(std::span<const int32_t> positions);
  Status run(uint32_t first_layer);
  Status pace(uint32_t layer);
  Status take_logits();
  Status finish();

  const DeviceParts& parts_;
  Buffers& b_;
  const FusedJob job_;
  LayerRows rows_;
  std::vector<const RopeTable*> ropes_;  // [n_layer] that loaded keys are rotated by, or none
  std::vector<int32_t> given_;           // rows that are loaded in all layers but the first
  std::unique_ptr<DeviceChunkLoader> loader_;
};

Status CudaFusedPass::start(std::vector<ChunkLoad> loads) {
  REPRISE_CHECK(rows_.send_tables(job_.kv, job_.position_free));
  for (uint32_t i = 0; i < layers() && !job_.position_free; ++i) {
    ropes_.push_back(&parts_.model.rope(i));
  }
  DeviceChunkLoader::Target target;
  target.kv = parts_.kv;
  target.tables = rows_.tables();
  target.capacity = rows_.capacity();
  target.layers = layers();
  target.ropes = ropes_;
  target.stream = parts_.stream;
  target.resident = b_.resident.get();
  if (std::ranges::all_of(loads, [](const ChunkLoad& load) { return load.shift == 0; })) {
    target.first_layer = 1;
    for (const ChunkLoad& load : loads) {
      for (int32_t at = load.from; at < load.end; ++at) given_.push_back(at);
    }
  }
  REPRISE_TRY(loader_, DeviceChunkLoader::create(std::move(loads), target, parts_.pool, b_.loads));
  for (CudaEvent& event : b_.computed) {
    REPRISE_TRY(event, CudaEvent::create());
  }
  return {};
}

/// Keeps the host two layers ahead of the device, so that a cancel is noticed.
Status CudaFusedPass::pace(uint32_t layer) {
  CudaEvent& event = b_.computed[layer % 2];
  REPRISE_CHECK(event.wait());
  REPRISE_CHECK(event.record(parts_.stream));
  const uint64_t rows = rows_.positions().size(), done = rows * (layer + 1) / layers();
  if (!job_.progress || rows == 0 || job_.progress({"prefill", done, rows, "tokens"})) return {};
  return fail(ErrorCode::kCancelled, "cancelled in layer {} of {}", layer + 1, layers());
}

/// Keys and values of layer 0 follow from the tokens, and are computed sooner than they are loaded.
Status CudaFusedPass::store_first_layer(std::span<const int32_t> positions) {
  REPRISE_CHECK(loader_->copy_ahead());
  std::vector<int32_t> rest;  // that are not computed anyway
  std::ranges::set_difference(given_, positions, std::back_inserter(rest));
  StoreOnly store(parts_.executor);
  for (std::span<const int32_t> rows = rest; !rows.empty();) {
    const auto block = rows.first(std::min<size_t>(rows.size(), parts_.block));
    REPRISE_CHECK(rows_.begin(block, job_.prompt.tokens));
    REPRISE_CHECK(rows_.run(0, LayerPart::kStore,
                            [&](LayerRows::Block) -> DeviceAttentionOp& { return store; }));
    rows = rows.subspan(block.size());
  }
  given_.clear();
  return rows_.begin(positions, job_.prompt.tokens);
}

Status CudaFusedPass::run(uint32_t first_layer) {
  StoreOnly store(parts_.executor);
  for (uint32_t layer = first_layer; layer < layers(); ++layer) {
    REPRISE_CHECK(loader_->load_through(layer));
    const bool last = layer + 1 == layers();
    const LayerPart part = last ? LayerPart::kStore : LayerPart::kWhole;
    REPRISE_CHECK(rows_.run(layer, part, [&](LayerRows::Block) -> DeviceAttentionOp& {
      if (last) return store;
      return parts_.executor;
    }));
    REPRISE_CHECK(pace(layer));
  }
  REPRISE_CHECK(take_logits());
  return finish();
}

Status CudaFusedPass::take_logits() {
  const DeviceModel& model = parts_.computes;
  REPRISE_CHECK(b_.logits.reserve(model.logits_room(1), kWhat));
  REPRISE_CHECK(b_.host_logits.reserve(model.config().vocab, kWhat));
  REPRISE_CHECK(rows_.finish(b_.logits.data()));
  REPRISE_CUDA(
      cudaMemcpyAsync(b_.host_logits.data(), b_.logits.data(), b_.host_logits.span().size_bytes(),
                      cudaMemcpyDeviceToHost, parts_.stream),
      kWhat);
  return {};
}

/// Waits, and tells policies of the pages that were written.
Status CudaFusedPass::finish() {
  REPRISE_CUDA(cudaStreamSynchronize(parts_.stream), kWhat);
  const PagePool& pool = job_.kv.pool();
  std::vector<uint32_t> frames;
  const auto first = static_cast<size_t>(job_.kv.length()) / kernels::kPageTokens;
  for (uint32_t layer = 0; layer < layers(); ++layer) {
    for (const PageId page : job_.kv.pages(layer).subspan(first)) {
      frames.push_back(pool.frame(layer, page));
    }
  }
  return pool.memory().written(frames);
}

Status CudaFusedPass::compute(std::span<const int32_t> positions) {
  REPRISE_CHECK(store_first_layer(positions));
  return run(0);
}

Status CudaFusedPass::check(std::span<const int32_t> positions, const RowCheck& check,
                            const ChooseFn& choose) {
  const uint32_t at = check_layer(check, layers());
  REPRISE_CHECK(store_first_layer(positions));
  for (uint32_t layer = 0; layer < at; ++layer) {
    REPRISE_CHECK(loader_->load_through(layer));
    REPRISE_CHECK(rows_.run(layer, LayerPart::kWhole, [&](LayerRows::Block) -> DeviceAttentionOp& {
      return parts_.executor;
    }));
  }
  REPRISE_CHECK(loader_->load_through(at));
  RowScorer scorer(parts_, b_.scores, check, rows_, rows_.table(at));
  REPRISE_CHECK(scorer.begin());
  REPRISE_CHECK(
      rows_.run(at, LayerPart::kAttend, [&](LayerRows::Block block) -> DeviceAttentionOp& {
        scorer.set_block(block);
        return scorer;
      }));
  REPRISE_TRY(const std::vector<float> scores, scorer.scores());
  const std::vector<int32_t> kept = choose(scores);
  if (kept.empty()) return {};
  REPRISE_CHECK(rows_.keep(kept));
  return run(at);
}

class CudaFusion : public FusionDevice {
 public:
  CudaFusion(const DeviceParts& parts, std::unique_ptr<ResidentChunks> resident) : parts_(parts) {
    buffers_.resident = std::move(resident);
  }
  ~CudaFusion() override { cudaStreamSynchronize(parts_.stream); }

  Result<std::vector<std::byte>> read_chunk(const ChunkIdentity& identity,
                                            const ChunkTokens& tokens, PagePool& pool) override;
  Result<std::unique_ptr<FusedPass>> begin(const FusedJob& job,
                                           std::vector<ChunkLoad> loads) override {
    auto pass = std::make_unique<CudaFusedPass>(parts_, buffers_, job);
    REPRISE_CHECK(pass->start(std::move(loads)));
    return pass;
  }

 private:
  const DeviceParts parts_;
  Buffers buffers_;
};

Result<std::vector<std::byte>> CudaFusion::read_chunk(const ChunkIdentity&,
                                                      const ChunkTokens& tokens, PagePool& pool) {
  std::vector<int32_t> all(tokens.context.begin(), tokens.context.end());
  all.insert(all.end(), tokens.tokens.begin(), tokens.tokens.end());
  std::vector<int32_t> positions(all.size());
  std::iota(positions.begin(), positions.end(), 0);
  SequenceKv kv(pool);
  REPRISE_CHECK(kv.reserve(all.size()));
  LayerRows rows(parts_, buffers_.rows);
  REPRISE_CHECK(rows.send_tables(kv, false));
  REPRISE_CHECK(rows.begin(positions, all));
  const size_t width = size_t{parts_.kv.n_kv_head} * parts_.kv.head_dim;
  REPRISE_CHECK(buffers_.captured.reserve(parts_.block * width, kWhat));
  ChunkCapture capture(parts_, buffers_.captured, tokens.context.size(), tokens.tokens.size());
  const uint32_t layers = parts_.computes.config().n_layer;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    const LayerPart part = layer + 1 < layers ? LayerPart::kWhole : LayerPart::kAttend;
    REPRISE_CHECK(rows.run(layer, part, [&](LayerRows::Block block) -> DeviceAttentionOp& {
      capture.set_block(block);
      return capture;
    }));
  }
  return capture.finish();
}

}  // namespace

Result<std::unique_ptr<FusionDevice>> cuda_fusion(const DeviceParts& parts,
                                                  uint64_t resident_bytes) {
  REPRISE_TRY(auto resident, ResidentChunks::create(resident_bytes));
  return std::make_unique<CudaFusion>(parts, std::move(resident));
}

}  // namespace reprise
