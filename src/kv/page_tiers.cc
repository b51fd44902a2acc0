#include "kv/page_tiers.h"

#include <algorithm>
#include <cstring>

namespace reprise {
namespace {

constexpr size_t kBatch = 64;  // pages that are on their way between memory and disk at a time

}  // namespace

Place PageTiers::take(Tier tier, uint32_t layer) {
  if (tier != Tier::kDisk) return frames_.take(tier, layer);
  const uint32_t slot = file_ ? file_->take() : PageFile::kNoSlot;
  return slot == PageFile::kNoSlot ? kNoPlace : slot | kDiskPlace;
}

Place PageTiers::take_for_move(Tier tier, uint32_t layer) {
  return tier == Tier::kDisk ? take(tier, layer) : frames_.take(tier, layer, true);
}

void PageTiers::give_back(uint32_t layer, Place place) {
  if ((place & kDiskPlace) != 0)
    file_->give_back(place & ~kDiskPlace);
  else
    frames_.give_back(layer, place);
}

uint64_t PageTiers::limit(Tier tier) const {
  return tier != Tier::kDisk ? frames_.limit(tier) : file_ ? file_->limit() : 0;
}

uint64_t PageTiers::used(Tier tier) const {
  return tier != Tier::kDisk ? frames_.used(tier) : file_ ? file_->used() : 0;
}

KvTiers PageTiers::stats() const {
  const uint64_t bytes = frames_.page_bytes();
  const auto tier = [&](Tier which) {
    const auto i = static_cast<size_t>(which);
    return KvTier{limit(which) * bytes, used(which) * bytes, moved_in_[i] * bytes,
                  moved_out_[i] * bytes};
  };
  return {tier(Tier::kMemory),
          tier(Tier::kHost),
          tier(Tier::kDisk),
          {},
          lost_,
          file_ ? file_->error() : std::string()};
}

void PageTiers::move(std::span<PageMove> moves) {
  const auto disk_first = std::partition(moves.begin(), moves.end(), [](const PageMove& m) {
    return (m.from & kDiskPlace) == 0 && (m.to & kDiskPlace) == 0;
  });
  const auto reads = std::partition(disk_first, moves.end(),
                                    [](const PageMove& m) { return (m.to & kDiskPlace) != 0; });
  const std::span<PageMove> to_disk(disk_first, reads), from_disk(reads, moves.end());
  if (!to_disk.empty()) write_out(to_disk);
  if (!from_disk.empty()) read_in(from_disk);
  const std::span<PageMove> copies(moves.begin(), disk_first);
  if (!copies.empty()) {
    copy(copies, tier(copies.front().layer, copies.front().to) == Tier::kMemory);
  }
}

void PageTiers::finish(PageMove& move, bool failed) {
  const Tier from = tier(move.layer, move.from), to = tier(move.layer, move.to);
  if (!failed) {
    ++moved_out_[static_cast<size_t>(from)];
    ++moved_in_[static_cast<size_t>(to)];
    move.result = move.to;
    return give_back(move.layer, move.from);
  }
  if (from != Tier::kDisk) {
    give_back(move.layer, move.to);
    move.result = move.from;
    return;
  }
  discard(move.layer, move.to);
  move.result = kNoPlace;
  count_lost(move.from);
}

void PageTiers::discard(uint32_t layer, Place frame) {
  if (memory().reachable()) std::memset(frames_.data(layer, frame), 0, frames_.page_bytes());
  frames_.give_back(layer, frame);
}

void PageTiers::start(std::span<Arrival* const> arrivals, bool urgent) {
  std::vector<PageReader::Read*> reads;
  for (Arrival* arrival : arrivals) {
    std::byte* frame = frames_.data(arrival->layer, arrival->frame);
    file_->describe(arrival->slot & ~kDiskPlace, frame, arrival->read);
    reads.push_back(&arrival->read);
  }
  std::ranges::sort(reads, {}, &PageReader::Read::offset);  // neighbours are read at once
  file_->reader().start(reads, urgent);
}

bool PageTiers::finish(Arrival& arrival) {
  file_->reader().wait(arrival.read);
  if (arrival.read.state == PageReader::Read::kDone) {
    ++moved_in_[static_cast<size_t>(Tier::kMemory)];
    ++moved_out_[static_cast<size_t>(Tier::kDisk)];
    return true;
  }
  discard(arrival.layer, arrival.frame);
  return false;
}

void PageTiers::count_lost(Place slot) {
  ++lost_;
  file_->give_back(slot & ~kDiskPlace);
}

Status PageTiers::read(std::byte* host, uint32_t layer, Place place) {
  settle();
  if (place != kNoPlace && tier(layer, place) != Tier::kDisk) {
    return memory().read(host, frames_.data(layer, place), frames_.page_bytes());
  }
  PageFile::Transfer transfer = {place & ~kDiskPlace, host};
  if (place != kNoPlace) file_->read({&transfer, 1});
  if (place != kNoPlace && !transfer.failed) return {};
  return fail(ErrorCode::kCorrupt, "KV that was moved to --kv-disk cannot be read back");
}

void PageTiers::copy(std::span<PageMove> moves, bool arriving) {
  std::stable_sort(moves.begin(), moves.end(),
                   [](const PageMove& a, const PageMove& b) { return a.layer < b.layer; });
  copies_.clear();
  for (const PageMove& move : moves) copies_.push_back({move.layer, move.from, move.to});
  const bool failed = !frames_.start_copies(copies_, arriving);
  for (PageMove& move : moves) finish(move, failed);
}

std::byte* PageTiers::staged(const PageMove& move, Place frame, size_t index) {
  if (memory().reachable()) return frames_.data(move.layer, frame);
  copy_.resize(kBatch * frames_.page_bytes());
  return &copy_[index * frames_.page_bytes()];
}

void PageTiers::write_out(std::span<PageMove> moves) {
  settle();
  for (size_t first = 0; first < moves.size(); first += kBatch) {
    const auto batch = moves.subspan(first, std::min(kBatch, moves.size() - first));
    transfers_.clear();
    bool readable = true;
    for (size_t i = 0; i < batch.size(); ++i) {
      const PageMove& move = batch[i];
      std::byte* bytes = staged(move, move.from, i);
      transfers_.push_back({move.to & ~kDiskPlace, bytes});
      if (memory().reachable()) continue;
      const std::byte* frame = frames_.data(move.layer, move.from);
      readable = readable && memory().read(bytes, frame, frames_.page_bytes());
    }
    if (readable) file_->write(transfers_);
    for (size_t i = 0; i < batch.size(); ++i) finish(batch[i], !readable || transfers_[i].failed);
  }
}

void PageTiers::read_in(std::span<PageMove> moves) {
  settle();
  std::vector<uint32_t> written;
  for (size_t first = 0; first < moves.size(); first += kBatch) {
    const auto batch = moves.subspan(first, std::min(kBatch, moves.size() - first));
    transfers_.clear();
    for (size_t i = 0; i < batch.size(); ++i) {
      transfers_.push_back({batch[i].from & ~kDiskPlace, staged(batch[i], batch[i].to, i)});
    }
    file_->read(transfers_);
    for (size_t i = 0; i < batch.size(); ++i) {
      PageMove& move = batch[i];
      bool failed = transfers_[i].failed;
      if (!failed && !memory().reachable()) {
        std::byte* frame = frames_.data(move.layer, move.to);
        failed = !memory().write(frame, transfers_[i].data, frames_.page_bytes());
      }
      if (!failed) written.push_back(move.to);
      finish(move, failed);
    }
  }
  // A failure is the device's, and the next pass reports it.
  static_cast<void>(memory().written(written));
}

}  // namespace reprise
