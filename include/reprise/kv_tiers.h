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

struct KvTiers {
  KvTier memory;            ///< where it is computed: the GPU's memory, or this machine's
  KvTier host;              ///< --kv-host
  KvTier disk;              ///< --kv-disk
  uint64_t lost_pages = 0;  ///< could not be read back from disk, and were computed again
  std::string disk_error;   ///< why the disk is not written any more; empty: it is
};

}  // namespace reprise
