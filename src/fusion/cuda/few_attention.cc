#include "fusion/cuda/few_attention.h"

#include <algorithm>

#include "base/try.h"
#include "fusion/cuda/send.h"

namespace reprise {
namespace {

using namespace kernels::cuda;

constexpr std::string_view kWhat = "a fused prompt";

uint32_t pages_of(int32_t tokens) {
  return static_cast<uint32_t>(tokens) / kernels::cuda::kPageTokens;
}

}  // namespace

Status FewAttention::begin(const FusedPrompt& prompt, const FewReads& few, const PackedKeys& packed,
                           const std::vector<uint32_t>& frames) {
  const std::vector<int32_t> keys(packed.keys().begin(), packed.keys().end());
  std::vector<PrefillRows> steps;
  std::vector<PackedTable> tables;
  std::vector<int32_t> among;  // positions among what is read
  uint32_t most = 0, done = 0;
  capacity_ = rows_.capacity();
  for (uint32_t i = 0; i < rows_.blocks(); ++i) {
    const LayerRows::Block block = rows_.block(i);
    const auto positions = rows_.positions().subspan(block.first, block.count);
    const auto reads = read_steps(prompt, few, positions);
    BlockSteps own = {static_cast<uint32_t>(steps.size()), static_cast<uint32_t>(reads.size()),
                      done};
    done = static_cast<uint32_t>(packed_before(keys, positions.back() + 1));
    own.end_key = done;
    blocks_.push_back(own);
    most = std::max(most, own.count);
    // Those of long contexts first.
    for (auto step = reads.rbegin(); step != reads.rend(); ++step) {
      const int32_t shift = step->packed - step->first;
      steps.push_back({step->first_row, step->rows, positions[step->first_row] + shift});
      const PackedTable table = {pages_of(step->packed), pages_of(step->first)};
      tables.push_back(table);
      capacity_ = std::max(capacity_, table.packed + rows_.capacity() - table.first);
    }
    for (const ReadStep& step : reads) {
      for (const int32_t at : positions.subspan(step.first_row, step.rows)) {
        among.push_back(at + step.packed - step.first);
      }
    }
  }
  REPRISE_CHECK(send(keys, b_.keys, parts_.stream));
  REPRISE_CHECK(send(frames, b_.packed, parts_.stream));
  REPRISE_CHECK(send(among, b_.positions, parts_.stream));
  REPRISE_CHECK(send(steps, b_.steps, parts_.stream));
  REPRISE_CHECK(send(tables, b_.tables, parts_.stream));
  return b_.pages.reserve(size_t{most} * capacity_, kWhat);
}

void FewAttention::set_block(LayerRows::Block block) {
  block_ = block;
  steps_ = blocks_[block.first / parts_.block];
}

Status FewAttention::attend(const LayerHeads& heads, cudaStream_t stream) {
  if (parts_.computes.config().window[heads.layer] > 0) {
    return parts_.executor.attend(heads, stream);
  }
  REPRISE_CHECK(parts_.executor.store(heads, stream));
  PackKeysArgs pack;
  pack.kv = parts_.kv;
  pack.pages = rows_.table(heads.layer);
  pack.positions = b_.keys.data();
  pack.packed_pages = b_.packed.data();
  pack.first = steps_.first_key;
  pack.end = steps_.end_key;
  REPRISE_CUDA(pack_keys(pack, stream), kWhat);
  PackedTablesArgs tables;
  tables.pages = pack.pages;
  tables.pages_end = rows_.capacity();
  tables.packed_pages = pack.packed_pages;
  tables.tables = b_.tables.data() + steps_.first;
  tables.count = steps_.count;
  tables.capacity = capacity_;
  tables.out = b_.pages.data();
  REPRISE_CUDA(packed_tables(tables, stream), kWhat);
  PrefillTables read;
  read.sequences = b_.steps.data() + steps_.first;
  read.positions = b_.positions.data() + block_.first;
  read.pages = tables.out;
  read.batch = steps_.count;
  read.capacity = capacity_;
  return parts_.executor.read_tables(heads, read, stream);
}

}  // namespace reprise
