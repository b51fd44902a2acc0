// Session files: raw bytes, and forged ones whose checksums all match.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "../kv/session_testing.h"
#include "require.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using namespace reprise;

constexpr KvIdentity kIdentity = {1, 2, 3};

PagePool tiny_pool() {
  return std::move(*PagePool::create({kernels::KvType::kBF16, 1, 2}, 2, 1 << 16));
}

// Files in memory, as paths.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("session", MFD_CLOEXEC)) {}
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }
  void fill(const uint8_t* data, size_t size) const {
    require(::ftruncate(fd_, 0) == 0);
    require(::pwrite(fd_, data, size, 0) == static_cast<ssize_t>(size));
  }

 private:
  int fd_;
};

std::string saved_file() {
  static const TemporaryFolder folder;
  return folder.file("session");
}

std::string valid_file(unsigned seed) {
  PagePool pool = tiny_pool();
  SequenceKv sequence(pool);
  const size_t length = seed % 70;
  require(sequence.reserve(length).has_value());
  sequence.commit(length);
  sequence.evict(seed % 2, 0, static_cast<int32_t>(seed / 70 % 70));
  const SavedSession saved = {std::vector<int32_t>(length, 7), std::string(seed % 5, 's')};
  require(save_session(saved_file(), kIdentity, saved, sequence).has_value());
  return read_all(saved_file());
}

bool same_pages(const SequenceKv& a, const SequenceKv& b) {
  const size_t page_bytes = a.pool().page_bytes();
  for (uint32_t layer = 0; layer < a.pool().layers(); ++layer) {
    const auto pages = a.pages(layer), others = b.pages(layer);
    if (pages.size() != others.size()) return false;
    for (size_t block = 0; block < pages.size(); ++block) {
      if ((pages[block] == kNoPage) != (others[block] == kNoPage)) return false;
      if (pages[block] == kNoPage) continue;
      if (std::memcmp(a.page(layer, block), b.page(layer, block), page_bytes) != 0) return false;
    }
  }
  return true;
}

}  // namespace

// Half of the mutants get matching checksums, so that they come past those.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  std::string bytes;
  if (size < sizeof(SessionHeader) || seed % 64 == 0) {
    bytes = valid_file(seed / 64);
  } else {
    bytes.assign(reinterpret_cast<const char*>(data), LLVMFuzzerMutate(data, size, max_size));
    if (seed % 2 == 0) repair_checksums(bytes);
  }
  if (bytes.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::copy(bytes.begin(), bytes.end(), data);
  return bytes.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const MemoryFile file;
  file.fill(data, size);
  PagePool pool = tiny_pool();
  {
    SequenceKv sequence(pool);
    const auto saved = load_session(file.path(), kIdentity, sequence);
    if (!saved) {
      require(sequence.length() == 0 && pool.used_bytes() == 0);
      return 0;
    }
    require(saved->tokens.size() == static_cast<size_t>(sequence.length()));
    // What loads can be saved, and loads again as the same.
    require(save_session(saved_file(), kIdentity, *saved, sequence).has_value());
    PagePool other = tiny_pool();
    SequenceKv again(other);
    const auto loaded = load_session(saved_file(), kIdentity, again);
    require(loaded && loaded->tokens == saved->tokens && loaded->state == saved->state);
    require(same_pages(sequence, again));
  }
  require(pool.used_bytes() == 0);
  return 0;
}
