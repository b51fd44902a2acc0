// What the scheduler does about memory: sequences wake, or are used from disk where it is short,
// and get copies of others' KV.
#include <algorithm>

#include "base/try.h"
#include "engine/scheduler.h"

namespace reprise {
namespace {

constexpr std::string_view kMoreRoom =
    "raise --kv-memory, choose a smaller --kv-type, or bound what is kept with --policy streaming";
constexpr int kMaxLosses = 2;  // after the last one nothing is kept

}  // namespace

void Scheduler::wake(Running& running) {
  Sequence& sequence = *running.sequence;
  const size_t before = sequence.tokens.size(), prefilled = sequence.prefilled;
  if (const Status status = wake(sequence); !status) {
    running.result = tl::unexpected<Error>(status.error());
    return;
  }
  // Where pages of a prompt were lost, the cell that they end in is read in one again.
  const size_t length = sequence.tokens.size();
  if (length == before || length >= prefilled) return;
  const size_t begin = cell_begin(*sequence.policy, length, running.request.prompt.size());
  if (!sequence.truncate(begin)) sequence.clear();
}

void Scheduler::recover(Running& running, const Error& error) {
  Sequence& sequence = *running.sequence;
  // What the policy took in of the pass's rows is forgotten.
  sequence.policy->truncate(static_cast<int32_t>(sequence.tokens.size()));
  const bool reads_prompt = error.code == ErrorCode::kCorrupt && running.answer.tokens.empty();
  if (!reads_prompt || ++running.losses > kMaxLosses) {
    running.result = tl::unexpected<Error>(error);
    return;
  }
  const auto length = static_cast<int32_t>(sequence.tokens.size());
  // A policy that evicts cannot go back: what it kept of the pages of this pass is gone.
  const bool resumes = sequence.policy->can_resume(sequence.kv, length);
  if (running.losses == kMaxLosses || !resumes) sequence.clear();
  wake(running);
}

Status Scheduler::wake(Sequence& sequence, bool may_page) {
  may_page = may_page && can_page(sequence);
  const bool others_are_paged = std::ranges::any_of(
      running_, [](const auto& running) { return running->sequence->kv.paged(); });
  Result<int32_t> kept = 0;
  if (others_are_paged && may_page) {
    kept = sequence.kv.page_out();
  } else {
    kept = sequence.kv.wake();
    if (!kept && kept.error().code == ErrorCode::kOutOfMemory && may_page) {
      kept = sequence.kv.page_out();
      page_out();
    }
  }
  if (!kept) return tl::unexpected<Error>(kept.error());
  const auto length = static_cast<size_t>(*kept);
  if (length < sequence.tokens.size() && !sequence.truncate(length)) sequence.clear();
  return {};
}

Status Scheduler::copy_prefix(const Policy& policy, std::span<const int32_t> from,
                              std::span<const int32_t> to) {
  PrefixCache* cache = prefix_cache(policy);
  if (cache == nullptr) return {};
  const size_t length = std::min(from.size(), to.size());
  SequenceKv copy = cache->match(from, length);
  REPRISE_TRY(const int32_t kept, copy.wake());
  copy.truncate(kept);
  if (cache->match(to, length).length() >= copy.length()) return {};
  std::vector<uint32_t> frames;
  for (uint32_t layer = 0; layer < pool_.layers(); ++layer) {
    for (size_t block = 0; block < copy.pages(layer).size(); ++block) {
      REPRISE_CHECK(copy.own_page(layer, block));
      frames.push_back(pool_.frame(layer, copy.pages(layer)[block]));
    }
  }
  REPRISE_CHECK(pool_.memory().written(frames));
  cache->insert(to.first(static_cast<size_t>(copy.length())), copy);
  return {};
}

bool Scheduler::page_out() {
  bool changed = false;
  for (const auto& running : running_) {
    SequenceKv& kv = running->sequence->kv;
    if (kv.paged() || !can_page(*running->sequence)) continue;
    kv.page_out();  // it was awake: nothing of it is lost
    changed = true;
  }
  return changed;
}

bool Scheduler::has_room(Running& running, uint64_t layer, const Pass& pass) {
  const uint64_t room = pool_.pageable();
  const bool others_hold =
      std::ranges::any_of(running_, [](const auto& other) { return !other->sequence->kv.paged(); });
  running.waits = layer > room && others_hold;  // a pass of its own would not help
  if (!running.waits && pass.paged > 0 && pass.paged + layer > room) {
    ++running.passed_over;
    return false;
  }
  running.passed_over = 0;
  return !running.waits;
}

size_t Scheduler::rows_in_memory(const Sequence& sequence, std::span<const size_t> cells) const {
  const uint64_t blocks = pool_.pageable() / (2 * pool_.layers());  // half for what they read
  const size_t most = std::max<size_t>(1, blocks * kPageTokens);
  size_t rows = cells.front();
  if (sequence.policy->prefill_grid() == 0) rows = std::min(rows, most);  // else it is not cut
  for (const size_t cell : cells.subspan(1)) {
    if (rows + cell > most) break;
    rows += cell;
  }
  return rows;
}

Status Scheduler::check_room(const Sequence& sequence, size_t tokens) const {
  const KvTiers tiers = pool_.tiers();
  const bool paged = can_page(sequence);
  const uint64_t memory = tiers.memory.limit_bytes + tiers.host.limit_bytes;
  // Through one page others are exchanged.
  const uint64_t room = memory + (paged ? tiers.disk.limit_bytes - pool_.page_bytes() : 0);
  const uint64_t layer = PageMap::blocks_of(tokens) * pool_.page_bytes();
  const uint64_t need = layer * pool_.layers();
  const uint64_t block = pool_.page_bytes() * pool_.layers();  // of 16 tokens
  if (need > room) {
    return fail(
        ErrorCode::kOutOfMemory,
        "the KV of the prompt's {} tokens needs {} MiB, there is room for {} MiB ({} tokens); {}{}",
        tokens, (need >> 20) + 1, room >> 20, room / block * kPageTokens, kMoreRoom,
        tiers.disk.limit_bytes > 0 && !paged ? " (--kv-disk holds only what rests)" : "");
  }
  // The rows of a pass take memory in every layer, what they read in one.
  if (need <= memory || layer + block <= memory) return {};
  return fail(ErrorCode::kOutOfMemory,
              "a layer's KV of the prompt's {} tokens needs {} MiB of memory, there are {} MiB; {}",
              tokens, ((layer + block) >> 20) + 1, memory >> 20, kMoreRoom);
}

Status Scheduler::reserve(Sequence& sequence, size_t rows) {
  Status status = sequence.kv.reserve(rows);
  if (status || status.error().code != ErrorCode::kOutOfMemory) return status;
  if (page_out()) {
    paged_out_ = true;  // the pass is planned anew
    return {};
  }
  const KvTier memory = pool_.tiers().memory;
  const bool paged = sequence.kv.paged();
  std::string_view first;
  if (paged && pool_.free_pages() <= PageMap::blocks_of(rows) * pool_.layers())
    first = "raise --kv-disk-size, ";
  else if (paged && rows > 1 && sequence.policy->prefill_grid() > 0)
    first = "give the policy a smaller chunk, ";
  else if (rows > kPageTokens && sequence.policy->evicts() && sequence.policy->prefill_grid() == 0)
    first = "lower --prefill-chunk, ";
  return fail(ErrorCode::kOutOfMemory,
              "no KV memory for {} more tokens ({} MiB of {} MiB in use); {}{}{}", rows,
              memory.bytes >> 20, memory.limit_bytes >> 20, first, kMoreRoom, pool_.disk_trouble());
}

}  // namespace reprise
