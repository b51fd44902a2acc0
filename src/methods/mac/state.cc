// Rings between answers: in session files, and for a conversation's next turn.
#include "base/try.h"
#include "methods/mac/mac.h"

namespace reprise {

bool MacPolicy::remembers(int32_t begin, int32_t end) const {
  while (begin < end && !settings_.stores(begin)) ++begin;
  if (begin >= end) return true;
  size_t rings = 0;  // layers that mac is not asked for have none
  for (const Layer& layer : layers_) {
    if (!layer.ring) continue;
    if (!layer.ring->holds(begin, end)) return false;
    ++rings;
  }
  return rings > 0;
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
  return out.take();
}

Status MacPolicy::restore_state(std::string_view state, int32_t length) {
  truncate(0);
  StateReader in(state);
  std::vector<char> kept;
  in.array(kept, in.value<uint64_t>());
  std::vector<Layer> layers(layers_.size());
  for (Layer& layer : layers) {
    if (in.value<uint8_t>() == 0) continue;
    layer.guard.restore(in);
    layer.warm = in.value<int32_t>();
    layer.ring.emplace(*config_, static_cast<uint32_t>(settings_.window), ring_type_,
                       settings_.fixes);
    layer.ring->restore(in, length);
    if (!in.ok()) break;
  }
  if (!in.ended()) return fail(ErrorCode::kCorrupt, "what was saved are no rings of mac");
  REPRISE_CHECK(inner().restore_state({kept.data(), kept.size()}, length));
  layers_ = std::move(layers);
  return {};
}

}  // namespace reprise
