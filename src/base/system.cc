#include "base/system.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace reprise {

uint64_t peak_rss_bytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

namespace {

// What the container may still take (cgroup v2); no limit when there is none.
uint64_t cgroup_memory_left() {
  constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  uint64_t limit = 0, used = 0;
  std::ifstream max("/sys/fs/cgroup/memory.max"), current("/sys/fs/cgroup/memory.current");
  if (!(max >> limit) || !(current >> used)) return kNone;  // "max" is not a number
  return limit > used ? limit - used : 0;
}

}  // namespace

uint64_t available_memory_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  uint64_t kib = 0;
  while (meminfo >> key >> kib >> unit) {
    if (key == "MemAvailable:") return std::min(kib * 1024, cgroup_memory_left());
  }
  return 0;
}

std::string user_file(const char* variable, std::string_view below_home, std::string_view name) {
  const char* folder = std::getenv(variable);
  if (folder != nullptr && *folder != '\0') return fmt::format("{}/reprise/{}", folder, name);
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return {};
  return fmt::format("{}/{}/reprise/{}", home, below_home, name);
}

bool is_one_file(const std::string& path, const std::string& other) {
  std::error_code unusable;  // is told when the files are opened
  return std::filesystem::weakly_canonical(path, unusable) ==
         std::filesystem::weakly_canonical(other, unusable);
}

}  // namespace reprise
