#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/checked.h"
#include "base/try.h"
#include "kv/session_format.h"

namespace reprise {
namespace {

// Why a file is refused when its sizes contradict each other although its checksums match.
tl::unexpected<Error> contradiction(const InputFile& file, std::string_view what) {
  return fail(ErrorCode::kCorrupt, "'{}' is damaged: {}; delete it", file.path(), what);
}

// Reads sections and compares the checksum that follows each.
class SectionReader {
 public:
  SectionReader(InputFile& file, const SessionHeader& header, const ProgressFn& progress)
      : file_(file),
        checksums_(header.checksum),
        progress_(progress),
        total_(header.file_bytes - sizeof(SessionFooter)) {}

  Status read(std::string_view what, std::vector<iovec> section) {
    const uint64_t begin = file_.offset();
    uint64_t stored = 0;
    section.push_back(bytes_of(stored));
    REPRISE_CHECK(file_.read(section));
    section.pop_back();
    if (checksums_.next(section) != stored) {
      return contradiction(file_, fmt::format("the checksum of its {} (bytes {} to {}) differs",
                                              what, begin, file_.offset()));
    }
    if (progress_ && !progress_({"restore", file_.offset(), total_, "bytes"})) {
      return fail(ErrorCode::kCancelled, "restoring stopped at byte {} of {}", file_.offset(),
                  total_);
    }
    return {};
  }

  Status read_footer() {
    SessionFooter footer;
    const iovec part = bytes_of(footer);
    REPRISE_CHECK(file_.read({&part, 1}));
    if (footer.end != kSessionEnd || footer.checksum != checksums_.footer()) {
      return contradiction(file_, "its end marker differs");
    }
    return {};
  }

 private:
  InputFile& file_;
  SectionChecksums checksums_;
  const ProgressFn& progress_;
  uint64_t total_;
};

Result<SessionHeader> read_header(InputFile& file) {
  SessionHeader header;
  // Magic and version first: a file of another format or version may be shorter than this header.
  const auto read_first = [&](void* field, size_t bytes) {
    const iovec part = {field, static_cast<size_t>(std::min<uint64_t>(bytes, file.size()))};
    return file.read({&part, 1});
  };
  header.magic = {};
  REPRISE_CHECK(read_first(&header.magic, sizeof(header.magic)));
  const auto known = std::min<uint64_t>(file.size(), header.magic.size());
  if (!std::equal(header.magic.begin(), header.magic.begin() + known, kSessionMagic.begin())) {
    return fail(ErrorCode::kBadMagic, "'{}' is not a session file", file.path());
  }
  if (file.size() < offsetof(SessionHeader, page_format)) {
    return fail(ErrorCode::kTruncated, "'{}' has {} bytes, less than a header", file.path(),
                file.size());
  }
  const iovec version = bytes_of(header.version);
  REPRISE_CHECK(file.read({&version, 1}));
  if (header.version != kSessionVersion) {
    return fail(ErrorCode::kUnsupportedVersion,
                "'{}' has session format {}; this build reads {}: save it again", file.path(),
                header.version, kSessionVersion);
  }
  const iovec rest = {&header.page_format,
                      sizeof(SessionHeader) - offsetof(SessionHeader, page_format)};
  REPRISE_CHECK(file.read({&rest, 1}));
  if (header.checksum != header_checksum(header)) {
    return contradiction(file, "the checksum of its header differs");
  }
  return header;
}

Status check_identity(const InputFile& file, const SessionHeader& header,
                      const KvIdentity& identity, const PagePool& pool) {
  const kernels::KvLayout& layout = pool.layout();
  std::vector<std::string_view> different;
  if (header.model != identity.model) different.emplace_back("model");
  if (header.tokenizer != identity.tokenizer) different.emplace_back("tokenizer");
  if (header.numerics != identity.numerics) different.emplace_back("numerics (policy, context)");
  const bool same_layout =
      header.page_format == kPageFormat && header.kv_type == static_cast<uint32_t>(layout.type) &&
      header.n_kv_head == layout.n_kv_head && header.head_dim == layout.head_dim &&
      header.page_tokens == kPageTokens && header.n_layer == pool.layers();
  if (!same_layout) different.emplace_back("layout (KV type, heads, layers)");
  if (different.empty()) return {};
  return fail(ErrorCode::kSessionMismatch,
              "'{}' was saved with another {}; load it with the same settings, or delete it",
              file.path(), fmt::join(different, ", another "));
}

// Compares every count with the file's length before anything is allocated.
Status check_sizes(const InputFile& file, const SessionHeader& header, const PagePool& pool) {
  if (file.size() < header.file_bytes) {
    return fail(ErrorCode::kTruncated, "'{}' has {} of its {} bytes", file.path(), file.size(),
                header.file_bytes);
  }
  if (file.size() > header.file_bytes) return contradiction(file, "bytes follow its end");
  const bool sane = header.page_bytes == pool.page_bytes() && header.pages_per_block > 0 &&
                    header.pages_per_block <= kMaxPagesPerBlock &&
                    header.token_count <= std::numeric_limits<int32_t>::max();
  if (!sane) return contradiction(file, "a count in its header is out of range");
  const uint64_t row = PageMap::row_bytes(PageMap::blocks_of(header.token_count));
  const CheckedSize bytes = CheckedSize(header.token_count) * sizeof(int32_t) + header.state_bytes +
                            CheckedSize(header.n_layer) * row +
                            CheckedSize(header.page_count) * header.page_bytes;
  if (!bytes.fits(file.size())) return contradiction(file, "it is shorter than its contents");
  return {};
}

Result<PageMap> read_page_map(const InputFile& file, SectionReader& reader,
                              const SessionHeader& header) {
  PageMap map(static_cast<uint32_t>(header.n_layer), PageMap::blocks_of(header.token_count));
  REPRISE_CHECK(reader.read("page map", {{map.bits().data(), map.bits().size()}}));
  uint64_t pages = 0;
  for (uint32_t layer = 0; layer < map.layers(); ++layer) {
    pages += map.count(layer);
    for (size_t bit = map.blocks(); bit < 8 * PageMap::row_bytes(map.blocks()); ++bit) {
      if (map.has(layer, bit)) return contradiction(file, "its page map is longer than its tokens");
    }
    const bool partial = header.token_count % kPageTokens != 0;
    if (partial && !map.has(layer, map.blocks() - 1)) {
      return contradiction(file, "its last page is missing");
    }
  }
  if (pages != header.page_count || session_file_bytes(header, map) != header.file_bytes) {
    return contradiction(file, "its page map and its length differ");
  }
  return map;
}

// Whether all pages got room in memory; else each is to be taken as it is read, and then rests.
Result<bool> take_room(const SessionHeader& header, const PageMap& map, SequenceKv& sequence) {
  const PagePool& pool = sequence.pool();
  const auto length = static_cast<int32_t>(header.token_count);
  const Status whole = sequence.reserve_pages(length, map);
  if (whole) return true;
  const bool fits = (CheckedSize(header.page_count) * pool.page_bytes()).fits(pool.limit_bytes());
  if (!fits || !pool.can_page()) return tl::unexpected<Error>(whole.error());
  REPRISE_CHECK(sequence.reserve_pages(length, PageMap(map.layers(), map.blocks())));
  sequence.rest();
  return false;
}

}  // namespace

std::optional<kernels::KvType> session_kv_type(const std::string& path, uint64_t model) {
  auto file = InputFile::open(path);
  if (!file) return std::nullopt;
  const auto header = read_header(*file);
  if (!header || header->model != model) return std::nullopt;
  for (const kernels::KvType type : kernels::kKvTypes) {
    if (header->kv_type == static_cast<uint32_t>(type)) return type;
  }
  return std::nullopt;
}

Result<std::string> load_session_state(const std::string& path) {
  REPRISE_TRY(InputFile file, InputFile::open(path));
  REPRISE_TRY(const auto header, read_header(file));
  const CheckedSize bytes = CheckedSize(header.token_count) * sizeof(int32_t) + header.state_bytes;
  if (!bytes.fits(file.size()) || header.file_bytes < sizeof(SessionFooter))
    return contradiction(file, "a count in its header is out of range");
  const ProgressFn silent;
  SectionReader reader(file, header, silent);
  std::vector<int32_t> tokens(header.token_count);
  const Status status = reader.read("tokens", {{tokens.data(), tokens.size() * sizeof(int32_t)}});
  if (!status && status.error().code != ErrorCode::kCorrupt)
    return tl::unexpected<Error>(status.error());
  std::string state(header.state_bytes, '\0');
  REPRISE_CHECK(reader.read("state", {{state.data(), state.size()}}));
  return state;
}

Result<SavedSession> load_session(const std::string& path, const KvIdentity& identity,
                                  SequenceKv& sequence, const ProgressFn& progress) {
  PagePool& pool = sequence.pool();
  REPRISE_TRY(auto file, InputFile::open(path));
  REPRISE_TRY(const auto header, read_header(file));
  REPRISE_CHECK(check_identity(file, header, identity, pool));
  REPRISE_CHECK(check_sizes(file, header, pool));
  SectionReader reader(file, header, progress);
  SavedSession saved;
  saved.tokens.resize(header.token_count);
  REPRISE_CHECK(
      reader.read("tokens", {{saved.tokens.data(), saved.tokens.size() * sizeof(int32_t)}}));
  saved.state.resize(header.state_bytes);
  REPRISE_CHECK(reader.read("state", {{saved.state.data(), saved.state.size()}}));
  REPRISE_TRY(const auto map, read_page_map(file, reader, header));

  SequenceKv restored(pool);
  REPRISE_TRY(const bool whole, take_room(header, map, restored));
  BlockPages pages(restored, header.token_count);
  const auto read_block = [&](uint32_t layer, std::span<const uint32_t> blocks) -> Status {
    if (!whole) REPRISE_CHECK(restored.take_pages(layer, blocks));
    const std::vector<iovec> room = pages.room(layer, blocks);
    Status status = reader.read("keys and values", room);
    if (status) {
      status = pages.store(layer, blocks);
    } else {
      // The pages go back to the pool, whose next user reads their unused slots.
      for (const iovec& part : room) std::memset(part.iov_base, 0, part.iov_len);
    }
    if (!whole) restored.rest_pages(layer, blocks);
    return status;
  };
  REPRISE_CHECK(for_each_block(map, header.pages_per_block, read_block));
  REPRISE_CHECK(reader.read_footer());
  sequence = std::move(restored);
  return saved;
}

}  // namespace reprise
