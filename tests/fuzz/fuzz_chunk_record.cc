// Records of stored chunks: raw bytes, and forged ones whose checksums all match.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/float16.h"
#include "kernels/ops.h"
#include "require.h"
#include "store/chunk_format.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using namespace reprise;
using Bytes = std::vector<std::byte>;

class MemoryReader : public RecordReader {
 public:
  explicit MemoryReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  Status read(uint64_t offset, std::span<std::byte> out) const override {
    require(offset <= bytes_.size() && out.size() <= bytes_.size() - offset);  // room was told
    std::ranges::copy(bytes_.subspan(offset, out.size()), out.begin());
    return {};
  }

 private:
  std::span<const std::byte> bytes_;
};

Bytes valid_record(unsigned seed) {
  const uint32_t head_dim = seed % 5 == 0 ? 0 : 4;  // blocks of nothing, too
  const ChunkIdentity identity = {
      {1, 2, 3}, kernels::KvType::kBF16, 1 + seed % 3, 1 + seed / 3 % 2, head_dim};
  const std::vector<int32_t> context(seed % 2, 9), tokens(1 + seed / 2 % 20, 7);
  Bytes blocks(identity.n_layer * 2 * tokens.size() * identity.row_bytes());
  for (size_t i = 1; i < blocks.size(); i += 2) blocks[i] = std::byte(0x3f + i % 3);
  const BlockCodec codec = {(seed & 64) != 0, (seed & 128) != 0};
  const auto record =
      encode_record(identity, {context, tokens}, {"name", 1, "text"}, blocks, codec);
  require(record.has_value());
  Bytes all;
  for (const auto part : record->parts()) all.insert(all.end(), part.begin(), part.end());
  all.resize(record->header.record_bytes);
  return all;
}

// What is left to refuse it is the comparison of its numbers.
void repair_checksums(std::span<std::byte> bytes) {
  ChunkHeader header;
  if (bytes.size() < sizeof header) return;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.checksum = XXH3_64bits(&header, offsetof(ChunkHeader, checksum));
  std::memcpy(bytes.data(), &header, sizeof header);
  const auto layout = record_layout(header);
  const auto codec = codec_from_bits(header.codec);
  if (!layout || !codec || layout->about_bytes > bytes.size() - sizeof header) return;
  const auto about = bytes.subspan(sizeof header, layout->about_bytes);
  const auto type = static_cast<kernels::KvType>(header.kv_type);
  const size_t layers = header.n_layer, word = sizeof(uint64_t);
  std::byte* const sizes = about.data() + about.size() - word - (codec->zstd ? layers * word : 0);
  uint64_t at = layout->blocks_offset;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    uint64_t size = most_encoded_bytes(*codec, type, layout->block_bytes);
    if (codec->zstd) std::memcpy(&size, sizes + layer * word, word);
    if (at > bytes.size() || size > bytes.size() - at) break;
    const uint64_t sum = block_checksum(header, layer, bytes.subspan(at, size));
    std::memcpy(sizes - (layers - layer) * word, &sum, word);
    at += size;
  }
  const uint64_t sum = XXH3_64bits_withSeed(about.data(), about.size() - word, header.checksum);
  std::memcpy(about.data() + about.size() - word, &sum, word);
}

// What a device makes of codes is what this machine makes of the block.
void check_block(const ChunkRecord& record, std::span<const std::byte> stored) {
  constexpr uint64_t kSane = 1 << 20;
  const auto type = record.identity().type;
  const uint64_t raw = record.layout.block_bytes;
  if (raw > kSane) return;
  Bytes values(raw), codes(form_bytes(record.codec, BlockForm::kCodes, type, raw));
  const Status whole = decode_block(record.codec, BlockForm::kValues, type, stored, values);
  const Status coded = decode_block(record.codec, BlockForm::kCodes, type, stored, codes);
  require(whole.has_value() == coded.has_value());
  if (!whole) return;
  if (!record.codec.q8_0) return require(codes == values);
  if (type != kernels::KvType::kBF16) return;
  const size_t count = raw / sizeof(Bf16);
  std::vector<Bf16> widened(count);
  kernels::widen_codes(codes.data(), codes.data() + count, count, widened.data());
  require(std::ranges::equal(std::as_bytes(std::span(widened)), values));
}

}  // namespace

// Half of the mutants get matching checksums, so that they come past those.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  if (size < sizeof(ChunkHeader) || seed % 64 == 0) {
    const Bytes record = valid_record(seed / 64);
    if (record.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
    std::memcpy(data, record.data(), record.size());
    return record.size();
  }
  size = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 2 == 0) repair_checksums({reinterpret_cast<std::byte*>(data), size});
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto record = decode_record(MemoryReader(bytes), size);
  if (!record) return 0;
  require(record->header.record_bytes <= size);
  for (uint32_t layer = 0; layer < record->header.n_layer; ++layer) {
    const StoredBlock& block = record->blocks[layer];
    require(block.offset + block.bytes <= size);
    const auto stored = bytes.subspan(block.offset, block.bytes);
    if (block_checksum(record->header, layer, stored) == block.checksum) {
      check_block(*record, stored);
    }
  }
  return 0;
}
