#include "attention/cuda/position_free_keys.h"

#include <numeric>

#include "base/try.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "position-free keys";

/// [count][pairs][2] of positions first + step * i.
std::vector<float> angles_of(const RopeTable& rope, int32_t first, uint32_t count, uint32_t step) {
  std::vector<float> table(count * rope.pairs() * 2);
  for (uint32_t i = 0; i < count; ++i) {
    rope.cos_sin(first + static_cast<int32_t>(step * i), table.data() + i * rope.pairs() * 2);
  }
  return table;
}

}  // namespace

Status PositionFreeKeys::reserve(std::span<const RopeTable* const> ropes, const PagedKv& kv,
                                 uint32_t pages, uint32_t packed_keys) {
  capacity_ = 0;  // until all of it is there
  copies_ = {};
  angles_.resize(ropes.size());
  for (size_t i = 0; i < ropes.size(); ++i) {
    REPRISE_CHECK(make_angles(*ropes[i], pages, packed_keys, angles_[i]));
  }
  const KvType type = rotated_type(kv.type);
  REPRISE_CHECK(
      bytes_.reserve(size_t{pages} * kv.n_kv_head * 2 * tile_bytes(type, kv.head_dim), kWhat));
  copies_ = {bytes_.data(), type, kv.n_kv_head, kv.head_dim};
  std::vector<uint32_t> ids(pages);
  std::iota(ids.begin(), ids.end(), 0u);
  REPRISE_CHECK(upload(std::span<const uint32_t>(ids), pages_, kWhat));
  capacity_ = pages;
  return {};
}

Status PositionFreeKeys::make_angles(const RopeTable& rope, uint32_t pages, uint32_t packed_keys,
                                     Angles& angles) {
  angles.pairs = static_cast<uint32_t>(rope.pairs());
  constexpr int32_t kBefore = kPageTokens - 1;
  const auto of_pages = angles_of(rope, 0, pages, kPageTokens);
  auto of_tokens = angles_of(rope, 0, kPageTokens, 1);
  // Both are multiplied: one of them has the factor.
  for (float& x : of_tokens) x /= rope.attention_factor();
  REPRISE_CHECK(upload(std::span(of_pages), angles.of_pages, kWhat));
  if (packed_keys > 0) {
    const auto of_positions = angles_of(rope, -kBefore, packed_keys + kBefore, 1);
    REPRISE_CHECK(upload(std::span(of_positions), angles.of_positions, kWhat));
  }
  return upload(std::span<const float>(of_tokens), angles.of_tokens, kWhat);
}

KeyAngles PositionFreeKeys::angles(uint32_t rope) const {
  const Angles& own = angles_[rope];
  return {own.of_pages.data(), own.of_tokens.data(), own.pairs, nullptr};
}

KeyAngles PositionFreeKeys::packed_angles(uint32_t rope, const uint32_t* rows) const {
  const Angles& own = angles_[rope];
  return {own.of_positions.data(), own.of_tokens.data(), own.pairs, rows};
}

PositionAngles PositionFreeKeys::positions(uint32_t rope) const {
  return {angles_[rope].of_positions.data(), angles_[rope].pairs};
}

Status PositionFreeKeys::rotate(const PagedKv& kv, const Source& source, uint32_t rope,
                                cudaStream_t stream) const {
  RotatedPagesArgs args;
  args.kv = kv;
  args.pages = source.pages + source.first_page;
  args.count = (source.keys + kPageTokens - 1) / kPageTokens - source.first_page;
  args.tokens = source.tokens;
  args.keys = source.packed_keys;
  args.angles = angles(rope);
  args.angles.of_pages += size_t{source.first_page} * args.angles.pairs * 2;
  const size_t page_bytes =
      size_t{2} * copies_.n_kv_head * tile_bytes(copies_.type, copies_.head_dim);
  args.out = bytes_.data() + source.first_page * page_bytes;
  REPRISE_CUDA(rotate_pages(args, stream), "rotating keys");
  return {};
}

}  // namespace reprise
