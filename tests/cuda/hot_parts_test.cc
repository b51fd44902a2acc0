#include "kernels/cuda/hot_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>

#include "cuda/device_testing.h"

namespace reprise::kernels::cuda {
namespace {

constexpr uint32_t kLayers = 2, kHeads = 3, kRows = 2, kSlots = 40, kHost = 300;
constexpr uint32_t kFirstSlot = 7, kFirstHost = kFirstSlot + kLayers * kSlots + 2;
constexpr uint32_t kFrames = kFirstHost + kHost + 3, kPartBytes = 48, kCapacity = 64;

struct List {
  std::vector<uint32_t> pages;  // the last is the row's own
  int32_t keys = 0;
};

std::vector<uint8_t> noise() {
  std::vector<uint8_t> bytes(size_t{kFrames} * kHeads * kPartBytes);
  std::mt19937 random(3);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

// On the device.
struct Arrays {
  DeviceArray<uint32_t> slots{kHost * kHeads, 0xff};
  DeviceArray<uint32_t> held{kLayers * kHeads * kSlots, 0xff};
  DeviceArray<uint32_t> used{kLayers * kHeads * kSlots}, wanted{kLayers * kHeads * kSlots},
      given{kLayers * kHeads * kSlots};
  DeviceArray<uint32_t> wants{kLayers * kHeads}, gifts{kLayers * kHeads}, step{1};
  DeviceArray<HotCounts> counts{1};
  DeviceArray<uint8_t> pages{noise()};
};

// Which frames have slots, and when each was needed last: what the kernels must do, by the rules.
class HotPartsTest : public testing::Test {
 protected:
  using Held = std::map<uint32_t, uint32_t>;  // frame: step

  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "no CUDA device";
    on_ = std::make_unique<Arrays>();
    hot_.n_layer = kLayers;
    hot_.n_kv_head = kHeads;
    hot_.first_host = kFirstHost;
    hot_.host_frames = kHost;
    hot_.first_slot = kFirstSlot;
    hot_.layer_slots = kSlots;
    hot_.slots = on_->slots.get();
    hot_.held = on_->held.get();
    hot_.used = on_->used.get();
    hot_.wanted = on_->wanted.get();
    hot_.given = on_->given.get();
    hot_.wants = on_->wants.get();
    hot_.gifts = on_->gifts.get();
    hot_.step = on_->step.get();
    hot_.counts = on_->counts.get();
  }

  static size_t index(uint32_t layer, uint32_t head) { return layer * kHeads + head; }

  // What lies where; checks that both tables agree and that slots hold what they should.
  std::vector<Held> state() const {
    std::vector<Held> all(kLayers * kHeads);
    const auto slots = on_->slots.host(), held = on_->held.host(), used = on_->used.host();
    const auto bytes = on_->pages.host();
    const auto part = [&](uint32_t frame, size_t head) {
      const auto* first = bytes.data() + (frame * kHeads + head) * kPartBytes;
      return std::vector<uint8_t>(first, first + kPartBytes);
    };
    size_t taken = 0;
    for (size_t i = 0; i < held.size(); ++i) {
      if (held[i] == kNoSlot) continue;
      const size_t list = i / kSlots, head = list % kHeads;
      const auto slot = static_cast<uint32_t>(kFirstSlot + list / kHeads * kSlots + i % kSlots);
      EXPECT_EQ(slots[(held[i] - kFirstHost) * kHeads + head], slot);
      EXPECT_EQ(part(slot, head), part(held[i], head)) << "slot " << i;
      all[list][held[i]] = used[i];
      ++taken;
    }
    const auto taken_by_part =
        std::count_if(slots.begin(), slots.end(), [](uint32_t slot) { return slot < kSlotToCome; });
    EXPECT_EQ(taken, static_cast<size_t>(taken_by_part));
    return all;
  }

  // Lists of a layer; looks up whether hits, misses and slots are as the state says. Returns what
  // each head misses.
  std::vector<std::set<uint32_t>> look_up(uint32_t layer, const std::vector<List>& lists,
                                          uint32_t ahead) {
    const auto before = state();
    const HotCounts counted = on_->counts.host().front();
    std::vector<uint32_t> pages(lists.size() * kCapacity);
    std::vector<int32_t> keys;
    for (size_t i = 0; i < lists.size(); ++i) {
      std::copy(lists[i].pages.begin(), lists[i].pages.end(), &pages[i * kCapacity]);
      keys.push_back(lists[i].keys);
    }
    const DeviceArray<uint32_t> device_pages(pages), found(pages.size());
    const DeviceArray<int32_t> device_keys(keys);
    HotLookUp args;
    args.layer = layer;
    args.rows = kRows;
    args.pages = device_pages.get();
    args.keys = device_keys.get();
    args.capacity = kCapacity;
    args.found = ahead == 0 ? found.get() : nullptr;
    args.fetch = true;
    args.ahead = ahead;
    EXPECT_EQ(look_up_hot_parts(hot_, args, nullptr), cudaSuccess);
    const auto slots = on_->slots.host(), places = found.host(), used = on_->used.host();
    std::vector<std::set<uint32_t>> missed(kHeads);
    uint64_t hits = 0, misses = 0;
    for (size_t i = 0; i < lists.size(); ++i) {
      const size_t head = i % kHeads;
      const Held& own = before[index(layer, static_cast<uint32_t>(head))];
      for (size_t n = 0; n < lists[i].pages.size(); ++n) {
        const uint32_t frame = lists[i].pages[n];
        const bool cached = n + 1 < lists[i].pages.size() && frame >= kFirstHost;
        uint32_t place = frame;
        if (cached && own.contains(frame)) {
          place = slots[(frame - kFirstHost) * kHeads + head];
          const size_t slot = place - kFirstSlot - layer * kSlots;
          EXPECT_EQ(used[index(layer, static_cast<uint32_t>(head)) * kSlots + slot], now_ + ahead);
          ++hits;
        } else if (cached) {
          missed[head].insert(frame);
          ++misses;
        }
        if (ahead > 0) continue;
        EXPECT_EQ(places[i * kCapacity + n], place) << "list " << i << ", " << n;
      }
    }
    const HotCounts after = on_->counts.host().front();
    EXPECT_EQ(after.hits - counted.hits, ahead == 0 ? hits : 0);
    EXPECT_EQ(after.misses - counted.misses, ahead == 0 ? misses : 0);
    return missed;
  }

  void fetch(uint32_t layer, uint32_t ahead, uint32_t most,
             const std::vector<std::set<uint32_t>>& missed) {
    // Slots are needed as of the look-up; what is to come is not there yet.
    const auto held = on_->held.host(), used = on_->used.host();
    ASSERT_EQ(fetch_hot_parts(hot_, {layer, ahead, most, on_->pages.get(), kPartBytes}, nullptr),
              cudaSuccess);
    const auto after = state();
    const auto slots = on_->slots.host();
    ASSERT_EQ(std::count(slots.begin(), slots.end(), kSlotToCome), 0);
    for (uint32_t head = 0; head < kHeads; ++head) {
      SCOPED_TRACE("head " + std::to_string(head));
      Held before;
      for (size_t i = 0; i < kSlots; ++i) {
        const size_t at = index(layer, head) * kSlots + i;
        if (held[at] != kNoSlot) before[held[at]] = used[at];
      }
      std::vector<uint32_t> idle, given_up;  // when what may be, and is, given up was needed
      for (const auto& [frame, when] : before) {
        if (when < now_ + ahead) idle.push_back(when);
        if (!after[index(layer, head)].contains(frame)) given_up.push_back(when);
      }
      const size_t empty = kSlots - before.size();
      const size_t found = before.size() - idle.size(), allowed = std::max<size_t>(found, most);
      const size_t wanted = std::min({missed[head].size(), size_t{kSlots}, allowed});
      const size_t brought = std::min(wanted, empty + idle.size());
      std::sort(idle.begin(), idle.end());
      size_t came = 0;
      for (const auto& [frame, when] : after[index(layer, head)]) {
        if (before.contains(frame)) continue;
        EXPECT_TRUE(missed[head].contains(frame)) << frame;
        EXPECT_EQ(when, now_ + ahead);
        ++came;
      }
      std::sort(given_up.begin(), given_up.end());
      EXPECT_EQ(came, brought);
      idle.resize(brought - std::min(brought, empty));  // the least recently needed
      EXPECT_EQ(given_up, idle);
    }
  }

  void begin_step(const std::vector<int32_t>& positions, const std::vector<uint32_t>& table) {
    const DeviceArray<int32_t> device_positions(positions);
    const DeviceArray<uint32_t> sequences(std::vector<uint32_t>{0, 1}), tables(table);
    ASSERT_EQ(
        begin_hot_step(
            hot_, {device_positions.get(), sequences.get(), kRows, tables.get(), kRows, kCapacity},
            nullptr),
        cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(on_->step.host().front(), ++now_);
  }

  // Of each list of a layer half what it had before. Pages are of one layer.
  void change(uint32_t layer, std::vector<List>& lists, std::mt19937& random) const {
    const uint32_t share = kHost / kLayers, first = kFirstHost + layer * share;
    for (List& list : lists) {
      std::set<uint32_t> pages;
      const size_t size = random() % 3 == 0 ? random() % (kCapacity - 2) : 20;
      for (const uint32_t page : list.pages) {
        if (random() % 2 == 0 && pages.size() < size) pages.insert(page);
      }
      // Most pages lie in the host's memory, some of them are asked for more often.
      while (pages.size() < size) {
        pages.insert(random() % 8 == 0 ? random() % kFirstSlot
                                       : first + random() % (random() % 2 ? 60 : share));
      }
      list.pages.assign(pages.begin(), pages.end());
      list.pages.push_back(first + random() % share);
      list.keys = static_cast<int32_t>(list.pages.size() * 16 - random() % 16);
      if (random() % 10 == 0) list = {{}, 0};  // a row that reads nothing
    }
  }

  HotParts hot_;
  uint32_t now_ = 0;
  std::unique_ptr<Arrays> on_;
};

TEST_F(HotPartsTest, TheLeastRecentlyNeededMakeRoom) {
  std::mt19937 random(1);
  std::vector<std::vector<List>> lists(kLayers, std::vector<List>(kRows * kHeads));
  std::vector<uint32_t> table(kLayers * kRows * kCapacity);
  for (uint32_t& frame : table) frame = kFirstHost + random() % kHost;
  for (int step = 0; step < 50 && !HasFailure(); ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    begin_step({-1, int32_t{kCapacity} * 16}, table);  // neither stores a key
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      change(layer, lists[layer], random);
      auto missed = look_up(layer, lists[layer], 0);
      const uint32_t ahead = step % 3 == 2 ? 1 : 0;
      if (ahead == 1) {  // what the next step reads is known
        change(layer, lists[layer], random);
        const auto more = look_up(layer, lists[layer], 1);
        for (uint32_t head = 0; head < kHeads; ++head) {
          missed[head].insert(more[head].begin(), more[head].end());
        }
      }
      fetch(layer, ahead, step % 3 == 1 ? 5 : ~0u, missed);
    }
  }
  EXPECT_GT(on_->counts.host().front().hits, 1000u);
  EXPECT_GT(on_->counts.host().front().fetched, 1000u);
}

TEST_F(HotPartsTest, PagesThatAreWrittenAreForgotten) {
  std::mt19937 random(2);
  std::vector<List> lists(kRows * kHeads);
  std::vector<uint32_t> table(kLayers * kRows * kCapacity);
  begin_step({-1, -1}, table);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (List& list : lists) {
      list.pages.resize(21);
      std::iota(list.pages.begin(), list.pages.end(), kFirstHost + layer * 30);
      list.keys = 21 * 16;
    }
    const auto missed = look_up(layer, lists, 0);
    fetch(layer, 0, ~0u, missed);
  }
  // Row 0 stores in page 5 of its table, row 1 in page 2; other entries are not looked at.
  std::fill(table.begin(), table.end(), kFirstHost + 1);
  const uint32_t stored[kLayers][kRows] = {{kFirstHost + 3, kFirstHost + 19}, {kFirstHost + 40, 2}};
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    table[(layer * kRows + 0) * kCapacity + 5] = stored[layer][0];
    table[(layer * kRows + 1) * kCapacity + 2] = stored[layer][1];
  }
  auto want = state();
  begin_step({5 * 16 + 9, 2 * 16}, table);
  for (uint32_t i = 0; i < kLayers * kHeads; ++i) {
    for (const uint32_t frame : stored[i / kHeads]) want[i].erase(frame);
  }
  EXPECT_EQ(state(), want);
  const std::vector<uint32_t> ids = {kFirstHost + 7, kFirstHost + 35, kFirstHost + 200, 3};
  const DeviceArray<uint32_t> device_ids(ids);
  ASSERT_EQ(forget_hot_pages(hot_, {device_ids.get(), 0, 4}, nullptr), cudaSuccess);
  ASSERT_EQ(forget_hot_pages(hot_, {nullptr, kFirstHost + 10, 2}, nullptr), cudaSuccess);
  for (Held& held : want) {
    for (const uint32_t frame : ids) held.erase(frame);
    held.erase(kFirstHost + 10);
    held.erase(kFirstHost + 11);
  }
  EXPECT_EQ(state(), want);
  ASSERT_EQ(forget_hot_layer(hot_, 1, nullptr), cudaSuccess);
  for (uint32_t head = 0; head < kHeads; ++head) want[index(1, head)].clear();
  EXPECT_EQ(state(), want);
  EXPECT_FALSE(want[index(0, 0)].empty());
}

TEST_F(HotPartsTest, PartsThatNoKernelCopiesAreRefused) {
  EXPECT_EQ(fetch_hot_parts(hot_, {0, 0, ~0u, on_->pages.get(), 40}, nullptr),
            cudaErrorInvalidValue);
}

}  // namespace
}  // namespace reprise::kernels::cuda
