#include "fusion/cuda/cuda_fused_pass.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/try.h"

namespace reprise {
namespace {

using namespace kernels::cuda;

constexpr std::string_view kWhat = "a fused prompt";

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

}  // namespace

CudaFusedPass::CudaFusedPass(FusionRanks& ranks, const FusedJob& job) : ranks_(ranks), job_(job) {
  for (uint32_t rank = 0; rank < ranks.count(); ++rank) {
    rows_.emplace_back(ranks.parts[rank], ranks.buffers[rank].rows);
  }
}

/// Not before pages have been reserved.
Status CudaFusedPass::send_tables() {
  if (std::exchange(has_tables_, true)) return {};
  const auto send = [&](uint32_t rank) -> Status {
    const DeviceModel& model = ranks_.parts[rank].computes;
    REPRISE_CHECK(ranks_.buffers[rank].logits.reserve(model.logits_room(1), kWhat));
    return rows_[rank].send_tables(job_.kv, job_.position_free);
  };
  REPRISE_CHECK(ranks_.calls.run(send));
  return loader_->begin_placing();
}

Status CudaFusedPass::start(std::vector<ChunkLoad> loads) {
  const DeviceParts& first = ranks_.parts.front();
  REPRISE_CHECK(ranks_.host_logits.reserve(first.model.config().vocab, kWhat));
  for (uint32_t i = 0; i < ranks_.layers() && !job_.position_free; ++i) {
    ropes_.push_back(&first.model.rope(i));
  }
  DeviceChunkLoader::Target target;
  for (uint32_t rank = 0; rank < ranks_.count(); ++rank) {
    const DeviceParts& parts = ranks_.parts[rank];
    target.ranks.push_back({parts.kv, &rows_[rank], parts.stream, &ranks_.buffers[rank].loads});
  }
  target.layers = ranks_.layers();
  target.ropes = ropes_;
  target.resident = ranks_.resident.get();
  target.slots = &ranks_.slots;
  target.row_ms = job_.prompt.row_ms;
  if (std::ranges::all_of(loads, [](const ChunkLoad& load) { return load.shift == 0; })) {
    target.first_layer = 1;
    for (const ChunkLoad& load : loads) {
      for (int32_t at = load.from; at < load.end; ++at) given_.push_back(at);
    }
  }
  REPRISE_TRY(loader_, DeviceChunkLoader::create(std::move(loads), std::move(target), first.pool));
  return {};
}

/// Keeps the host two layers ahead of the devices, so that a cancel is noticed.
Status CudaFusedPass::pace(std::string_view stage, uint32_t layer) {
  REPRISE_CHECK(ranks_.mark(layer % 2));
  const uint64_t rows = stage_rows_, done = rows * (layer + 1) / ranks_.layers();
  if (!job_.progress || rows == 0 || job_.progress({stage, done, rows, "tokens"})) return {};
  return fail(ErrorCode::kCancelled, "cancelled in layer {} of {}", layer + 1, ranks_.layers());
}

/// Keys and values of layer 0 follow from the tokens, and are computed sooner than they are loaded.
Status CudaFusedPass::store_first_layer(std::span<const int32_t> positions) {
  REPRISE_CHECK(send_tables());
  std::vector<int32_t> rest;  // that are not computed anyway
  std::ranges::set_difference(given_, positions, std::back_inserter(rest));
  given_.clear();
  return ranks_.calls.run([&](uint32_t rank) -> Status {
    REPRISE_CHECK(store_rows(rank, rest));
    return rows_[rank].begin(positions, job_.prompt.tokens);
  });
}

Status CudaFusedPass::store_rows(uint32_t rank, std::span<const int32_t> positions) {
  const DeviceParts& parts = ranks_.parts[rank];
  StoreOnly store(parts.executor);
  for (auto left = positions; !left.empty();) {
    const auto block = left.first(std::min<size_t>(left.size(), parts.block));
    REPRISE_CHECK(rows_[rank].begin(block, job_.prompt.tokens));
    REPRISE_CHECK(rows_[rank].run(0, LayerPart::kStore,
                                  [&](LayerRows::Block) -> DeviceAttentionOp& { return store; }));
    left = left.subspan(block.size());
  }
  return {};
}

Status CudaFusedPass::run_layer(uint32_t layer) {
  REPRISE_CHECK(loader_->load_through(layer));
  return ranks_.calls.enqueue([&](uint32_t rank) {
    return rows_[rank].run(layer, LayerPart::kWhole,
                           [&](LayerRows::Block block) -> DeviceAttentionOp& {
                             if (few_.empty()) return ranks_.parts[rank].executor;
                             few_[rank].set_block(block);
                             return few_[rank];
                           });
  });
}

Status CudaFusedPass::score_layer(uint32_t layer, LayerPart part, std::span<RowScorer> scorers) {
  REPRISE_CHECK(loader_->load_through(layer));
  return ranks_.calls.enqueue([&](uint32_t rank) {
    return rows_[rank].run(layer, part, [&](LayerRows::Block block) -> DeviceAttentionOp& {
      scorers[rank].set_block(block);
      return scorers[rank];
    });
  });
}

Status CudaFusedPass::run(uint32_t first_layer, std::string_view stage) {
  const uint32_t last = ranks_.layers() - 1;
  for (uint32_t layer = first_layer; layer < last; ++layer) {
    REPRISE_CHECK(run_layer(layer));
    REPRISE_CHECK(pace(stage, layer));
  }
  REPRISE_CHECK(loader_->load_through(last));
  REPRISE_CHECK(ranks_.calls.enqueue([&](uint32_t rank) {
    StoreOnly store(ranks_.parts[rank].executor);
    return rows_[rank].run(last, LayerPart::kStore,
                           [&](LayerRows::Block) -> DeviceAttentionOp& { return store; });
  }));
  REPRISE_CHECK(pace(stage, last));
  REPRISE_CHECK(take_logits());
  return finish();
}

/// Every device gets all of them.
Status CudaFusedPass::take_logits() {
  return ranks_.calls.enqueue([&](uint32_t rank) -> Status {
    float* logits = ranks_.buffers[rank].logits.data();
    REPRISE_CHECK(rows_[rank].finish(logits));
    if (rank > 0) return {};
    const auto to = ranks_.host_logits.span();
    REPRISE_CUDA(cudaMemcpyAsync(to.data(), logits, to.size_bytes(), cudaMemcpyDeviceToHost,
                                 ranks_.parts[rank].stream),
                 kWhat);
    return {};
  });
}

/// Waits, and tells policies of the pages that were written.
Status CudaFusedPass::finish() {
  REPRISE_CHECK(ranks_.settle());
  const PagePool& pool = job_.kv.pool();
  std::vector<uint32_t> frames;
  const auto first = static_cast<size_t>(job_.kv.length()) / kernels::kPageTokens;
  for (uint32_t layer = 0; layer < ranks_.layers(); ++layer) {
    for (const PageId page : job_.kv.pages(layer).subspan(first)) {
      frames.push_back(pool.frame(layer, page));
    }
  }
  return pool.memory().written(frames);
}

/// One layer's pages serve all layers, which follow each other on a stream.
Status CudaFusedPass::begin_few(std::span<const int32_t> positions, const FewReads& few) {
  packed_.emplace(job_.prompt, few, positions);
  PagePool& pool = job_.kv.pool();
  if (!packed_->begin(pool, 0, 0)) return {};
  std::vector<uint32_t> frames;
  if (packed_->pages() != nullptr) {
    for (const PageId page : packed_->pages()->pages(0)) frames.push_back(pool.frame(0, page));
  }
  for (uint32_t rank = 0; rank < ranks_.count(); ++rank) {
    few_.emplace_back(ranks_.parts[rank], ranks_.buffers[rank].few, rows_[rank]);
  }
  return ranks_.calls.run(
      [&](uint32_t rank) { return few_[rank].begin(job_.prompt, few, *packed_, frames); });
}

Status CudaFusedPass::compute(std::span<const int32_t> positions, const FewReads* few) {
  stage_rows_ = positions.size();
  REPRISE_CHECK(store_first_layer(positions));
  if (few != nullptr) REPRISE_CHECK(begin_few(positions, *few));
  return run(0, "prefill");
}

Status CudaFusedPass::check(std::span<const int32_t> positions, const RowCheck& check,
                            const ChooseFn& choose) {
  const ModelConfig& config = ranks_.parts.front().computes.config();
  REPRISE_TRY(const std::vector<uint32_t> scored, check_layers(check, config, job_.prompt.end()));
  const uint32_t at = scored.back();
  stage_rows_ = positions.size();
  REPRISE_CHECK(store_first_layer(positions));
  std::vector<RowScorer> scorers;  // [ranks]
  for (uint32_t rank = 0; rank < ranks_.count(); ++rank) {
    scorers.emplace_back(ranks_.parts[rank], ranks_.buffers[rank].scores, check, rows_[rank], at);
  }
  REPRISE_CHECK(ranks_.calls.run([&](uint32_t rank) { return scorers[rank].begin(); }));
  for (uint32_t layer = 0; layer <= at; ++layer) {
    if (std::ranges::count(scored, layer) == 0) {
      REPRISE_CHECK(run_layer(layer));
    } else {
      REPRISE_CHECK(
          score_layer(layer, layer < at ? LayerPart::kWhole : LayerPart::kAttend, scorers));
    }
    REPRISE_CHECK(pace(kChoosing, layer));
  }
  REPRISE_CHECK(ranks_.settle());
  REPRISE_TRY(const std::vector<float> scores, scorers.front().scores());
  const std::vector<int32_t> kept = choose(scores);
  if (kept.empty()) return {};
  REPRISE_CHECK(ranks_.calls.run([&](uint32_t rank) { return rows_[rank].keep(kept); }));
  return run(at, kChoosing);
}

}  // namespace reprise
