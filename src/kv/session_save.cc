#include "base/try.h"
#include "kv/session_format.h"

namespace reprise {
namespace {

// Writes sections, each followed by its checksum.
class SectionWriter {
 public:
  SectionWriter(ReplacementFile& file, const SessionHeader& header, const ProgressFn& progress)
      : file_(file),
        checksums_(header.checksum),
        progress_(progress),
        total_(header.file_bytes - sizeof(SessionFooter)) {}

  Status write(std::vector<iovec> section) {
    uint64_t checksum = checksums_.next(section);
    section.push_back(bytes_of(checksum));
    REPRISE_CHECK(file_.write(section));
    done_ += total_bytes(section);
    if (progress_ && !progress_({"save", done_, total_, "bytes"})) {
      return fail(ErrorCode::kCancelled, "saving stopped; nothing was replaced");
    }
    return {};
  }
  uint64_t footer_checksum() const { return checksums_.footer(); }

 private:
  ReplacementFile& file_;
  SectionChecksums checksums_;
  const ProgressFn& progress_;
  uint64_t done_ = sizeof(SessionHeader), total_;
};

iovec const_bytes(const void* data, size_t size) { return {const_cast<void*>(data), size}; }

}  // namespace

Status save_session(const std::string& path, const KvIdentity& identity, const SavedSession& saved,
                    const SequenceKv& sequence, const ProgressFn& progress) {
  if (saved.tokens.size() != static_cast<size_t>(sequence.length())) {
    return fail(ErrorCode::kInvalidArgument, "{} tokens to save with the KV of {}",
                saved.tokens.size(), sequence.length());
  }
  PageMap map = sequence.page_map();
  SessionHeader header = make_header(identity, saved, sequence, map);
  REPRISE_TRY(auto file, ReplacementFile::create(path));
  const iovec head = bytes_of(header);
  REPRISE_CHECK(file.write({&head, 1}));
  SectionWriter writer(file, header, progress);
  REPRISE_CHECK(writer.write(
      {const_bytes(saved.tokens.data(), saved.tokens.size() * sizeof(saved.tokens[0]))}));
  REPRISE_CHECK(writer.write({const_bytes(saved.state.data(), saved.state.size())}));
  REPRISE_CHECK(writer.write({const_bytes(map.bits().data(), map.bits().size())}));

  BlockPages pages(sequence, saved.tokens.size());
  REPRISE_CHECK(for_each_block(map, header.pages_per_block,
                               [&](uint32_t layer, std::span<const uint32_t> blocks) -> Status {
                                 REPRISE_TRY(auto parts, pages.fetch(layer, blocks));
                                 return writer.write(std::move(parts));
                               }));

  SessionFooter footer;
  footer.checksum = writer.footer_checksum();
  const iovec foot = bytes_of(footer);
  REPRISE_CHECK(file.write({&foot, 1}));
  return file.commit();
}

}  // namespace reprise
