#include "fusion/cuda/cuda_fusion.h"

#include <numeric>

#include "base/try.h"
#include "fusion/cuda/chunk_capture.h"
#include "fusion/cuda/cuda_fused_pass.h"

namespace reprise {
namespace {

using namespace kernels::cuda;

constexpr std::string_view kWhat = "a fused prompt";

class CudaFusion : public FusionDevice {
 public:
  CudaFusion(std::vector<DeviceParts> parts, RankCalls calls,
             std::unique_ptr<ResidentChunks> resident) {
    ranks_.buffers.resize(parts.size());
    ranks_.parts = std::move(parts);
    ranks_.calls = std::move(calls);
    ranks_.resident = std::move(resident);
  }
  ~CudaFusion() override { ranks_.synchronize(); }

  Status create();
  Result<std::vector<std::byte>> read_chunk(const ChunkIdentity& identity,
                                            const ChunkTokens& tokens, SequenceKv& kv) override;
  Result<std::unique_ptr<FusedPass>> begin(const FusedJob& job,
                                           std::vector<ChunkLoad> loads) override {
    auto pass = std::make_unique<CudaFusedPass>(ranks_, job);
    REPRISE_CHECK(pass->start(std::move(loads)));
    return pass;
  }

 private:
  FusionRanks ranks_;
};

Status CudaFusion::create() {
  return ranks_.calls.run([&](uint32_t rank) -> Status {
    for (CudaEvent& event : ranks_.buffers[rank].computed) {
      REPRISE_TRY(event, CudaEvent::create());
    }
    return {};
  });
}

Result<std::vector<std::byte>> CudaFusion::read_chunk(const ChunkIdentity& identity,
                                                      const ChunkTokens& tokens, SequenceKv& kv) {
  std::vector<int32_t> all(tokens.context.begin(), tokens.context.end());
  all.insert(all.end(), tokens.tokens.begin(), tokens.tokens.end());
  const auto known = static_cast<size_t>(kv.length());
  std::vector<int32_t> positions(all.size() - known);
  std::iota(positions.begin(), positions.end(), kv.length());
  REPRISE_CHECK(reserve_in_memory(kv, positions.size()));
  const size_t count = tokens.tokens.size(), block_bytes = 2 * count * identity.row_bytes();
  std::vector<LayerRows> rows;         // [ranks]
  std::vector<ChunkCapture> captures;  // [ranks]
  for (uint32_t rank = 0; rank < ranks_.count(); ++rank) {
    FusionBuffers& own = ranks_.buffers[rank];
    rows.emplace_back(ranks_.parts[rank], own.rows);
    captures.emplace_back(ranks_.parts[rank], own.captured, tokens.context.size() - known, count);
  }
  const auto begin = [&](uint32_t rank) -> Status {
    const PagedKv& own = ranks_.parts[rank].kv;
    const size_t values = 2 * count * own.n_kv_head * own.head_dim;
    REPRISE_CHECK(ranks_.buffers[rank].captured.reserve(values, kWhat));
    REPRISE_CHECK(rows[rank].send_tables(kv, false));
    return rows[rank].begin(positions, all);
  };
  REPRISE_CHECK(ranks_.calls.run(begin));
  std::vector<std::byte> blocks(ranks_.layers() * block_bytes);
  for (uint32_t layer = 0; layer < ranks_.layers(); ++layer) {
    const LayerPart part = layer + 1 < ranks_.layers() ? LayerPart::kWhole : LayerPart::kAttend;
    REPRISE_CHECK(ranks_.calls.enqueue([&](uint32_t rank) {
      return rows[rank].run(layer, part, [&](LayerRows::Block block) -> DeviceAttentionOp& {
        captures[rank].set_block(block);
        return captures[rank];
      });
    }));
    REPRISE_CHECK(ranks_.settle());
    std::byte* const block = &blocks[layer * block_bytes];
    REPRISE_CHECK(ranks_.calls.run(
        [&](uint32_t rank) { return captures[rank].copy_to(block, identity.row_bytes()); }));
  }
  kv.commit(positions.size());
  return blocks;
}

}  // namespace

Result<std::unique_ptr<FusionDevice>> cuda_fusion(std::vector<DeviceParts> ranks, RankCalls calls,
                                                  uint64_t resident_bytes) {
  REPRISE_TRY(auto resident, ResidentChunks::create(resident_bytes));
  auto made = std::make_unique<CudaFusion>(std::move(ranks), std::move(calls), std::move(resident));
  REPRISE_CHECK(made->create());
  return made;
}

}  // namespace reprise
