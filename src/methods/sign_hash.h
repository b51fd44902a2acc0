// SimHash tables over the keys of a prompt (Charikar 2002): keys share a bucket with a query with a
// probability that depends on their angle alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/policy.h"

namespace reprise {

/// Random hyperplanes, shared by all layers, heads and forks.
class SignPlanes {
 public:
  /// tables x bits planes through the origin with normal entries; the same seed makes the same
  /// planes on every machine. bits <= 14.
  SignPlanes(uint32_t tables, uint32_t bits, uint32_t head_dim, uint32_t seed);

  size_t tables() const { return tables_; }
  size_t bits() const { return bits_; }
  size_t buckets() const { return size_t{1} << bits_; }
  const float* rows() const { return rows_.data(); }  // [tables * bits, head_dim]
  uint64_t bytes() const { return (rows_.size() + columns_.size()) * sizeof(float); }

  /// dots: [tables * bits] products of x [head_dim] with the planes.
  void project(const float* x, std::vector<float>& dots) const;
  /// Bucket of every table: bit i is set when dots[table * bits + i] > 0.
  void buckets_of(std::span<const float> dots, std::vector<uint16_t>& buckets) const;

 private:
  size_t tables_, bits_, head_dim_;
  std::vector<float> rows_;     // [tables * bits, head_dim]
  std::vector<float> columns_;  // [head_dim, tables * bits]
};

/// The keys [begin, end) of one layer and KV head in buckets, after their mean is taken off.
class SignTables {
 public:
  /// Finds the mean of keys [begin, end) and makes room for them. Then hash_piece() for every piece
  /// in [0, pieces()), then sort_table() for every table; calls of one stage may run at once.
  void prepare(const QueryRows& rows, size_t kv_head, int32_t begin, int32_t end,
               const SignPlanes& planes);
  size_t pieces() const;
  void hash_piece(const QueryRows& rows, size_t kv_head, size_t piece, const SignPlanes& planes);
  void sort_table(size_t table, const SignPlanes& planes);
  void finish() { std::vector<uint16_t>().swap(codes_); }

  int32_t begin() const { return begin_; }
  std::span<const float> centre() const { return centre_; }  // [head_dim]
  float norm(int32_t key) const {                            // of key - centre
    return norms_[static_cast<size_t>(key - begin_)];
  }
  /// Keys below end that share a bucket with a query in at least `least` tables, ascending.
  /// Returns the bytes of tables that were read. counts is scratch.
  uint64_t collide(std::span<const uint16_t> buckets, size_t least, int32_t end,
                   const SignPlanes& planes, std::vector<uint16_t>& counts,
                   std::vector<int32_t>& keys) const;
  uint64_t bytes() const;

 private:
  static constexpr size_t kSegment = 1 << 15;  // keys, so that 16 bits name one of them
  size_t count() const { return norms_.size(); }
  size_t segments() const { return (count() + kSegment - 1) / kSegment; }

  int32_t begin_ = 0;
  std::vector<float> centre_;        // [head_dim]
  std::vector<float> plane_offset_;  // [tables * bits] products of the centre with the planes
  std::vector<float> norms_;         // [keys]
  std::vector<uint16_t> codes_;      // [tables, keys], while the tables are made
  std::vector<uint16_t> ids_;        // [tables, keys]: per segment, keys by bucket
  std::vector<uint16_t> starts_;     // [tables][segments][buckets + 1]
};

}  // namespace reprise
