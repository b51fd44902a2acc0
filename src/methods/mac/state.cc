// Rings between answers: in session files, and for a conversation's next turn.
#include <algorithm>

#include "base/try.h"
#include "methods/mac/mac.h"

namespace reprise {

bool MacPolicy::remembers(int32_t begin, int32_t end) const {
  while (begin < end && !settings_.stores(begin)) ++begin;
  if (begin >= end) return true;
  if (device_.state != nullptr || restored_ != nullptr) return device_remembers(begin, end);
  size_t rings = 0;  // layers that mac is not asked for have none
  for (const Layer& layer : layers_) {
    if (!layer.ring) continue;
    if (!layer.ring->holds(begin, end)) return false;
    ++rings;
  }
  return rings > 0;
}

bool MacPolicy::device_remembers(int32_t begin, int32_t end) const {
  if (end > device_.truncated) return false;
  const auto held = restored_ != nullptr ? restored_->positions : device_.state->positions();
  const auto from = std::lower_bound(held.begin(), held.end(), begin);
  const int32_t wanted = end - begin;
  return held.end() - from >= wanted && *from == begin && from[wanted - 1] == end - 1;
}

MacDeviceRing MacPolicy::device_ring() const {
  MacDeviceRing ring;
  if (restored_ != nullptr) ring = *restored_;
  if (device_.state != nullptr) ring = {device_.state->positions(), device_.state->fetch()};
  std::erase_if(ring.positions, [&](int32_t position) { return position >= device_.truncated; });
  return ring;
}

std::string MacPolicy::save_state() const {
  StateWriter out;
  const std::string kept = inner().save_state();
  out.value(uint64_t{kept.size()});
  out.array(kept.data(), kept.size());
  for (const Layer& layer : layers_) {
    out.value(static_cast<uint8_t>(layer.ring.has_value()));
    if (!layer.ring) continue;
    layer.guard.save(out);
    out.value(layer.warm);
    layer.ring->save(out);
  }
  const MacDeviceRing ring = device_ring();
  out.value(uint64_t{ring.positions.size()});
  out.array(ring.positions.data(), ring.positions.size());
  out.value(uint64_t{ring.bytes.size()});
  out.array(ring.bytes.data(), ring.bytes.size());
  return out.take();
}

Status MacPolicy::restore_state(std::string_view state, int32_t length) {
  truncate(0);
  device_ = {};
  restored_.reset();
  StateReader in(state);
  std::vector<char> kept;
  in.array(kept, in.value<uint64_t>());
  std::vector<Layer> layers = new_layers();
  for (Layer& layer : layers) {
    if (in.value<uint8_t>() == 0) continue;
    layer.guard.restore(in);
    layer.warm = in.value<int32_t>();
    layer.ring = new_ring();
    layer.ring->restore(in, length);
    if (!in.ok()) break;
  }
  auto ring = std::make_shared<MacDeviceRing>();
  in.array(ring->positions, in.value<uint64_t>());
  in.array(ring->bytes, in.value<uint64_t>());
  in.require(std::ranges::is_sorted(ring->positions));
  if (!in.ended()) return fail(ErrorCode::kCorrupt, "what was saved are no rings of mac");
  REPRISE_CHECK(inner().restore_state({kept.data(), kept.size()}, length));
  const bool rings =
      std::ranges::any_of(layers, [](const Layer& each) { return each.ring.has_value(); });
  if (!rings || room_.take(rings_bytes())) layers_ = std::move(layers);
  if (ring->bytes.empty()) return {};
  restored_ = std::move(ring);
  device_.truncate(length);  // a row that was computed ahead has an entry, too
  return {};
}

}  // namespace reprise
