#include "methods/mac/ring_room.h"

#include <map>
#include <mutex>
#include <utility>

namespace reprise {
namespace {

/// Policies are made one by one: what those of an engine have in common is its model's config.
std::shared_ptr<std::atomic<uint64_t>> taken_of(const ModelConfig& config, uint64_t limit) {
  static std::mutex mutex;
  static std::map<std::pair<const ModelConfig*, uint64_t>, std::weak_ptr<std::atomic<uint64_t>>>
      known;
  const std::scoped_lock lock(mutex);
  std::erase_if(known, [](const auto& each) { return each.second.expired(); });
  auto& own = known[{&config, limit}];
  auto taken = own.lock();
  if (taken == nullptr) own = taken = std::make_shared<std::atomic<uint64_t>>(0);
  return taken;
}

}  // namespace

MacRingRoom::MacRingRoom(const ModelConfig& config, uint64_t limit) : limit_(limit) {
  if (limited()) taken_ = taken_of(config, limit);
}

MacRingRoom::MacRingRoom(const MacRingRoom& other) : limit_(other.limit_), taken_(other.taken_) {
  if (other.bytes_ > 0) take(other.bytes_);
}

MacRingRoom::~MacRingRoom() {
  if (limited()) *taken_ -= bytes_;
}

bool MacRingRoom::could_take(uint64_t bytes) const {
  return !limited() || bytes_ >= bytes || bytes - bytes_ <= limit_ - *taken_;
}

bool MacRingRoom::take(uint64_t bytes) {
  if (!limited() || bytes_ >= bytes) return true;
  const uint64_t more = bytes - bytes_;
  uint64_t taken = *taken_;
  do {
    if (more > limit_ - taken) return false;
  } while (!taken_->compare_exchange_weak(taken, taken + more));
  bytes_ = bytes;
  return true;
}

}  // namespace reprise
