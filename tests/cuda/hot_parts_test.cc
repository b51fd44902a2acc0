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

  using Missed = std::vector<std::set<uint32_t>>;  // of each head

  // A layer's lists on the device.
  struct Sent {
    Sent(uint32_t own_layer, const std::vector<List>& own_lists)
        : layer(own_layer), lists(own_lists) {}

    static std::vector<uint32_t> pages_of(const std::vector<List>& lists) {
      std::vector<uint32_t> all(lists.size() * kCapacity);
      for (size_t i = 0; i < lists.size(); ++i) {
        std::copy(lists[i].pages.begin(), lists[i].pages.end(), &all[i * kCapacity]);
      }
      return all;
    }
    static std::vector<int32_t> keys_of(const std::vector<List>& lists) {
      std::vector<int32_t> all;
      for (const List& list : lists) all.push_back(list.keys);
      return all;
    }

    uint32_t layer;
    const std::vector<List>& lists;
    DeviceArray<uint32_t> pages{pages_of(lists)}, found{lists.size() * kCapacity};
    DeviceArray<int32_t> keys{keys_of(lists)};
  };

  // Looks up lists of layers and whether hits, misses and slots are as the state says. Returns what
  // each head of each layer misses.
  std::vector<Missed> look_up(const std::vector<uint32_t>& layers,
                              const std::vector<std::vector<List>>& lists, uint32_t ahead) {
    const auto before = state();
    const HotCounts counted = on_->counts.host().front();
    HotLookUp args;
    args.rows = kRows;
    args.fetch = true;
    args.ahead = ahead;
    std::vector<std::unique_ptr<Sent>> sent;
    for (const uint32_t layer : layers) {
      const Sent& own = *sent.emplace_back(std::make_unique<Sent>(layer, lists[layer]));
      args.lists[args.layers++] = {layer, kCapacity, own.pages.get(), own.keys.get(),
                                   ahead == 0 ? own.found.get() : nullptr};
    }
    EXPECT_EQ(look_up_hot_parts(hot_, args, nullptr), cudaSuccess);
    std::vector<Missed> missed(kLayers, Missed(kHeads));
    uint64_t hits = 0, misses = 0;
    for (const auto& own : sent) {
      hits += check_found(*own, before, ahead, missed[own->layer], misses);
    }
    const HotCounts after = on_->counts.host().front();
    EXPECT_EQ(after.hits - counted.hits, ahead == 0 ? hits : 0);
    EXPECT_EQ(after.misses - counted.misses, ahead == 0 ? misses : 0);
    return missed;
  }

  // Returns hits; adds what is missed.
  uint64_t check_found(const Sent& sent, const std::vector<Held>& before, uint32_t ahead,
                       Missed& missed, uint64_t& misses) const {
    const auto slots = on_->slots.host(), places = sent.found.host(), used = on_->used.host();
    uint64_t hits = 0;
    for (size_t i = 0; i < sent.lists.size(); ++i) {
      const size_t head = i % kHeads, own = index(sent.layer, static_cast<uint32_t>(head));
      const std::vector<uint32_t>& pages = sent.lists[i].pages;
      for (size_t n = 0; n < pages.size(); ++n) {
        const uint32_t frame = pages[n];
        const bool cached = n + 1 < pages.size() && frame >= kFirstHost;
        uint32_t place = frame;
        if (cached && before[own].contains(frame)) {
          place = slots[(frame - kFirstHost) * kHeads + head];
          const size_t slot = place - kFirstSlot - sent.layer * kSlots;
          EXPECT_EQ(used[own * kSlots + slot], now_ + ahead);
          ++hits;
        } else if (cached) {
          missed[head].insert(frame);
          ++misses;
        }
        if (ahead > 0) continue;
        EXPECT_EQ(places[i * kCapacity + n], place) << "list " << i << ", " << n;
      }
    }
    return hits;
  }

  void fetch(const std::vector<uint32_t>& layers, uint32_t ahead, uint32_t most,
             const std::vector<Missed>& missed) {
    // Slots are needed as of the look-up; what is to come is not there yet.
    const auto held = on_->held.host(), used = on_->used.host();
    HotFetch args;
    for (const uint32_t layer : layers) args.layers[args.count++] = layer;
    args.ahead = ahead;
    args.most = most;
    args.pages = on_->pages.get();
    args.part_bytes = kPartBytes;
    ASSERT_EQ(fetch_hot_parts(hot_, args, nullptr), cudaSuccess);
    const auto after = state();
    const auto slots = on_->slots.host();
    ASSERT_EQ(std::count(slots.begin(), slots.end(), kSlotToCome), 0);
    for (const uint32_t layer : layers) {
      for (uint32_t head = 0; head < kHeads; ++head) {
        SCOPED_TRACE("layer " + std::to_string(layer) + ", head " + std::to_string(head));
        Held before;
        for (size_t i = 0; i < kSlots; ++i) {
          const size_t at = index(layer, head) * kSlots + i;
          if (held[at] != kNoSlot) before[held[at]] = used[at];
        }
        check_brought(before, after[index(layer, head)], missed[layer][head], now_ + ahead, most);
      }
    }
  }

  // Of a head: what it held, holds and missed.
  static void check_brought(const Held& before, const Held& after, const std::set<uint32_t>& missed,
                            uint32_t now, size_t most) {
    std::vector<uint32_t> idle, given_up;  // when what may be, and is, given up was needed
    for (const auto& [frame, when] : before) {
      if (when < now) idle.push_back(when);
      if (!after.contains(frame)) given_up.push_back(when);
    }
    const size_t empty = kSlots - before.size();
    const size_t found = before.size() - idle.size(), allowed = std::max(found, most);
    const size_t wanted = std::min({missed.size(), size_t{kSlots}, allowed});
    const size_t brought = std::min(wanted, empty + idle.size());
    std::sort(idle.begin(), idle.end());
    size_t came = 0;
    for (const auto& [frame, when] : after) {
      if (before.contains(frame)) continue;
      EXPECT_TRUE(missed.contains(frame)) << frame;
      EXPECT_EQ(when, now);
      ++came;
    }
    std::sort(given_up.begin(), given_up.end());
    EXPECT_EQ(came, brought);
    idle.resize(brought - std::min(brought, empty));  // the least recently needed
    EXPECT_EQ(given_up, idle);
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
    const auto groups = step % 2 == 0 ? std::vector<std::vector<uint32_t>>{{1}, {0}}
                                      : std::vector<std::vector<uint32_t>>{{1, 0}};
    for (const std::vector<uint32_t>& layers : groups) {
      for (const uint32_t layer : layers) change(layer, lists[layer], random);
      auto missed = look_up(layers, lists, 0);
      const uint32_t ahead = step % 3 == 2 ? 1 : 0;
      if (ahead == 1) {  // what the next step reads is known
        for (const uint32_t layer : layers) change(layer, lists[layer], random);
        const auto more = look_up(layers, lists, 1);
        for (uint32_t i = 0; i < kLayers * kHeads; ++i) {
          const auto& heads = more[i / kHeads][i % kHeads];
          missed[i / kHeads][i % kHeads].insert(heads.begin(), heads.end());
        }
      }
      fetch(layers, ahead, step % 3 == 1 ? 5 : ~0u, missed);
    }
  }
  EXPECT_GT(on_->counts.host().front().hits, 1000u);
  EXPECT_GT(on_->counts.host().front().fetched, 1000u);
}

TEST_F(HotPartsTest, PagesThatAreWrittenAreForgotten) {
  std::mt19937 random(2);
  std::vector<std::vector<List>> lists(kLayers, std::vector<List>(kRows * kHeads));
  std::vector<uint32_t> table(kLayers * kRows * kCapacity);
  begin_step({-1, -1}, table);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (List& list : lists[layer]) {
      list.pages.resize(21);
      std::iota(list.pages.begin(), list.pages.end(), kFirstHost + layer * 30);
      list.keys = 21 * 16;
    }
  }
  fetch({0, 1}, 0, ~0u, look_up({0, 1}, lists, 0));
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
  HotFetch args;
  args.count = 1;
  args.pages = on_->pages.get();
  args.part_bytes = 40;
  EXPECT_EQ(fetch_hot_parts(hot_, args, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace reprise::kernels::cuda
