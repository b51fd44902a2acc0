// Where keys and values lie, and how much was moved.
#pragma once

#include <cstdint>
#include <string>

namespace reprise {

struct KvTier {
  uint64_t limit_bytes = 0;
  uint64_t bytes = 0;           ///< pages that lie there now
  uint64_t moved_in_bytes = 0;  ///< since the model was loaded
  uint64_t moved_out_bytes = 0;
};

/// Pages that running requests read while their KV lay on disk in part, or in the memory of a GPU's
/// host. A page is needed once per layer and pass; on a GPU each KV head needs its part of a page.
struct KvPaging {
  uint64_t hits = 0;        ///< needed and in memory
  uint64_t late = 0;        ///< needed while it was being read ahead
  uint64_t fetched = 0;     ///< needed and read then; on a GPU over the bus, in place
  uint64_t prefetched = 0;  ///< read ahead
  uint64_t unused = 0;      ///< of these, given up before they were needed
  uint64_t read_bytes = 0;  ///< from disk, or over the bus
  double wait_ms = 0;       ///< that requests waited for pages

  /// Share of the needed pages that were in memory; 1 where none was needed.
  double hit_rate() const {
    const uint64_t needed = hits + late + fetched;
    return needed > 0 ? static_cast<double>(hits) / static_cast<double>(needed) : 1.0;
  }
  KvPaging operator+(const KvPaging& other) const {
    return {hits + other.hits,       late + other.late,
            fetched + other.fetched, prefetched + other.prefetched,
            unused + other.unused,   read_bytes + other.read_bytes,
            wait_ms + other.wait_ms};
  }
  /// What came since.
  KvPaging operator-(const KvPaging& before) const {
    return {hits - before.hits,       late - before.late,
            fetched - before.fetched, prefetched - before.prefetched,
            unused - before.unused,   read_bytes - before.read_bytes,
            wait_ms - before.wait_ms};
  }
};

struct KvTiers {
  KvTier memory;            ///< where it is computed: the GPU's memory, or this machine's
  KvTier host;              ///< --kv-host
  KvTier disk;              ///< --kv-disk
  KvPaging paging;          ///< since the model was loaded
  uint64_t lost_pages = 0;  ///< could not be read back from disk, and were computed again
  std::string disk_error;   ///< why the disk is not written any more; empty: it is
};

}  // namespace reprise
