// What ranks the keys of one sequence: the interface of CSAttention's indexes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/policy.h"
#include "base/state_bytes.h"

namespace reprise {

class KeyCodes;

/// The rows whose queries shape an index: positions [first, end).
struct QueryWindow {
  int32_t first = 0, end = 0;
};

/// Best units of a search; lists are KV heads or query heads.
using KeyPicks =
    std::vector<std::vector<int32_t>>;  // [lists] ascending, from the first candidate on

class KeyIndex {
 public:
  virtual ~KeyIndex() = default;
  virtual std::unique_ptr<KeyIndex> clone() const = 0;

  /// Learns from the queries of rows at positions of the window, for the next build.
  virtual void take_queries(const QueryRows& rows, const QueryWindow& window) = 0;
  /// Makes the index of the rows' layer from the queries taken since the last build, which it gives
  /// up; it holds no key yet. keys: those it is fitted to.
  virtual void build(const QueryRows& rows, KeyRange keys) = 0;
  /// End of the keys that the layer's index was fitted to; 0 = there is none yet.
  virtual int32_t built_end(uint32_t layer) const = 0;
  /// End of the keys that it holds, from the first one on.
  virtual int32_t held_end(uint32_t layer) const = 0;
  /// How many times as large as for what the layer's index was built from the mean squared errors
  /// of its logits are for the queries taken since, over the keys, which it holds; reads some of
  /// them. 1: as large, or it cannot say. keys: from the first one of build() on.
  virtual float drift(const QueryRows&, KeyRange /*keys*/) const { return 1.0f; }
  /// Gives up the queries taken since the last build.
  virtual void forget_queries(uint32_t /*layer*/) {}
  /// Takes in the keys below end that it does not hold yet.
  virtual void extend(const QueryRows& rows, int32_t end) = 0;
  /// The k best units of the candidates, all of which it holds, for the one row of a decode step;
  /// fewer where it knows fewer. Returns the bytes read for it.
  virtual uint64_t find(const QueryRows& rows, KeyRange candidates, size_t k, KeyPicks& picks) = 0;
  /// What find() will probably find, without reading keys; false: it cannot say.
  virtual bool guess(const QueryRows&, KeyRange /*candidates*/, size_t /*k*/, KeyPicks&) {
    return false;
  }
  /// Keys that are chosen together, from the first candidate on; candidates are a multiple of it.
  virtual int32_t unit() const { return 1; }
  /// Which heads share a list.
  virtual HeadSplit split() const = 0;
  /// Forgets what depends on tokens from length on.
  virtual void truncate(int32_t length) = 0;
  virtual uint64_t bytes() const = 0;
  virtual void save(StateWriter& out) const = 0;
  /// Takes up what save() wrote for the first length tokens; where they cannot be that, in is not
  /// ok afterwards and the index is in no state to be used.
  virtual void load(StateReader& in, int32_t length) = 0;
  /// The codes that it is made of, which devices have in the same form; null: it is of others.
  virtual KeyCodes* key_codes() { return nullptr; }
  /// Named figures, summed over the searches since clear_stats().
  virtual PolicyStats stats() const { return {}; }
  virtual void clear_stats() {}
};

/// Copies what it owns.
class IndexOwner {
 public:
  explicit IndexOwner(std::unique_ptr<KeyIndex> index) : index_(std::move(index)) {}
  IndexOwner(const IndexOwner& other) : index_(other.index_->clone()) {}

  KeyIndex* operator->() { return index_.get(); }
  const KeyIndex* operator->() const { return index_.get(); }

 private:
  std::unique_ptr<KeyIndex> index_;
};

}  // namespace reprise
