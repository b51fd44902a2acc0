#include "fusion/cuda/layer_rows.h"

#include <algorithm>

#include "base/try.h"
#include "fusion/cuda/send.h"
#include "kernels/cuda/elementwise.h"

namespace reprise {
namespace {

using namespace kernels::cuda;

constexpr std::string_view kWhat = "a fused prompt";

}  // namespace

Status LayerRows::send_tables(const SequenceKv& kv, bool position_free) {
  const PagePool& pool = kv.pool();
  std::vector<uint32_t> frames;
  capacity_ = static_cast<uint32_t>(kv.pages(0).size());
  position_free_ = position_free;
  if (position_free) REPRISE_CHECK(parts_.executor.reserve(b_.unrotated, capacity_));
  for (uint32_t layer = 0; layer < pool.layers(); ++layer) {
    for (const PageId page : kv.pages(layer)) frames.push_back(pool.frame(layer, page));
  }
  return send(frames, b_.tables, parts_.stream);
}

Status LayerRows::begin(std::span<const int32_t> positions, std::span<const int32_t> prompt) {
  positions_.assign(positions.begin(), positions.end());
  std::vector<int32_t> tokens;
  for (const int32_t position : positions) tokens.push_back(prompt[static_cast<size_t>(position)]);
  REPRISE_CHECK(send(tokens, b_.tokens, parts_.stream));
  REPRISE_CHECK(send(positions_, b_.positions, parts_.stream));
  const size_t hidden = parts_.computes.config().hidden;
  REPRISE_CHECK(b_.x.reserve(positions_.size() * hidden, kWhat));
  REPRISE_CHECK(b_.sequences.reserve(parts_.block, kWhat));
  // What finish() takes: nothing is allocated while ranks wait for each other.
  REPRISE_CHECK(b_.kept.reserve(1, kWhat));
  REPRISE_CHECK(b_.kept_x.reserve(hidden, kWhat));
  REPRISE_CHECK(send_steps());
  if (positions_.empty()) return {};
  return parts_.computes.embed(b_.tokens.data(), {rows(), b_.x.data()}, parts_.stream);
}

Status LayerRows::send_steps() {
  began_ = false;
  steps_.clear();
  for (uint32_t i = 0; i < blocks(); ++i) {
    steps_.push_back({0, block(i).count, positions_[block(i).first]});
  }
  return send(steps_, b_.steps, parts_.stream);
}

Status LayerRows::keep(std::span<const int32_t> positions) {
  std::vector<uint32_t> kept;
  uint32_t row = 0;
  for (const int32_t position : positions) {
    while (positions_[row] < position) ++row;
    kept.push_back(row);
  }
  const uint32_t hidden = parts_.computes.config().hidden;
  REPRISE_CHECK(send(kept, b_.kept, parts_.stream));
  REPRISE_CHECK(b_.kept_x.reserve(kept.size() * hidden, kWhat));
  REPRISE_CUDA(gather_rows(b_.x.data(), b_.kept.data(), static_cast<uint32_t>(kept.size()), hidden,
                           b_.kept_x.data(), parts_.stream),
               kWhat);
  std::swap(b_.x, b_.kept_x);
  positions_.assign(positions.begin(), positions.end());
  REPRISE_CHECK(send(positions_, b_.positions, parts_.stream));
  return send_steps();
}

LayerRows::Block LayerRows::block(uint32_t index) const {
  const uint32_t first = index * parts_.block;
  return {first, std::min(parts_.block, rows() - first)};
}

DeviceLayerRows LayerRows::layer_rows(uint32_t index) const {
  const Block own = block(index);
  return {own.count, b_.x.data() + size_t{own.first} * parts_.computes.config().hidden};
}

Status LayerRows::begin_block(uint32_t index) {
  if (began_) return {};
  began_ = blocks() == 1;
  const Block own = block(index);
  DeviceRows rows = device_rows(own.first, own.count);
  rows.prefill_steps = 1;
  rows.prefill = b_.steps.data() + index;
  rows.host_prefill = std::span(steps_).subspan(index, 1);
  rows.unrotated.end = static_cast<uint32_t>(positions_[own.first + own.count - 1]) + 1;
  if (own.first > 0) {
    rows.unrotated.first_page =
        static_cast<uint32_t>(positions_[own.first - 1]) / kernels::kPageTokens;
  }
  return parts_.executor.begin(rows, parts_.stream);
}

Status LayerRows::run_block(uint32_t layer, LayerPart part, const DeviceLayerRows& rows,
                            DeviceAttentionOp& attention) {
  DeviceModel& model = parts_.computes;
  switch (part) {
    case LayerPart::kStore:
      return model.store(layer, rows, attention, parts_.stream);
    case LayerPart::kAttend:
      return model.attend(layer, rows, attention, parts_.stream);
    case LayerPart::kWhole:
      break;
  }
  return model.forward_layer(layer, rows, attention, parts_.stream);
}

DeviceRows LayerRows::device_rows(uint32_t first, uint32_t count) const {
  DeviceRows rows;
  rows.rows = count;
  rows.positions = b_.positions.data() + first;
  rows.sequences = b_.sequences.data();
  rows.tables = tables();
  rows.table_rows = 1;
  rows.capacity = capacity_;
  rows.scattered = true;
  rows.unrotated.keys = unrotated();
  return rows;
}

Status LayerRows::finish(float* logits) {
  REPRISE_CHECK(keep(std::vector<int32_t>{positions_.back()}));
  static constexpr DeviceGroup kReadsAll = {0, 1, nullptr};
  DeviceRows rows = device_rows(0, 1);
  rows.decode_rows = 1;
  rows.groups = {&kReadsAll, 1};
  REPRISE_CHECK(parts_.executor.begin(rows, parts_.stream));
  return parts_.computes.finish(layer_rows(0), parts_.executor, logits, parts_.stream);
}

}  // namespace reprise
