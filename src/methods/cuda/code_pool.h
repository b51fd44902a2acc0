// Device memory of CSAttention's indexes: blocks of codes, and codebooks.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/key_codes.h"
#include "methods/csattention/csattention.h"
#include "methods/cuda/indexed_layers.h"

namespace reprise {

class DeviceCodeIndex;

/// Blocks of codes that indexes share, and count their owners of.
class CodePool {
 public:
  /// For the codes of so many tokens, and a last block for each of so many sequences. Keeps what it
  /// has.
  Status reserve(const kernels::cuda::CodeShape& shape, uint64_t tokens, uint32_t sequences);
  const kernels::cuda::CodeShape& shape() const { return shape_; }
  /// What indexes keep of a layer's last search: elements of queries, perhaps none, and pages; no
  /// pages: searches serve one row.
  void keep_searches(size_t queries, size_t pages) {
    search_queries_ = queries;
    search_pages_ = pages;
  }
  size_t search_queries() const { return search_queries_; }
  size_t search_pages() const { return search_pages_; }
  uint8_t* codes() const { return codes_.data(); }

  /// All that indexes enqueue goes to its stream.
  void begin_pass(cudaStream_t stream) {
    ++pass_;
    stream_ = stream;
  }
  cudaStream_t stream() const { return stream_; }
  uint64_t pass() const { return pass_; }
  void add(DeviceCodeIndex* index) { indexes_.push_back(index); }
  void remove(DeviceCodeIndex* index) { std::erase(indexes_, index); }

  /// A block with one owner; where none is free, of the indexes that this pass does not use those
  /// unused for longest are given up. Nothing: all blocks are in use.
  std::optional<uint32_t> take();
  void share(uint32_t block) { ++owners_[block]; }
  void release(uint32_t block);
  bool is_shared(uint32_t block) const { return owners_[block] > 1; }
  Status copy(uint32_t from, uint32_t to, cudaStream_t stream) const;
  /// Unlike any before.
  uint64_t stamp() { return ++stamps_; }

 private:
  kernels::cuda::CodeShape shape_;
  kernels::cuda::DeviceBuffer<uint8_t> codes_;  // [blocks, block_bytes]
  size_t search_queries_ = 0, search_pages_ = 0;
  std::vector<uint32_t> owners_, free_;
  std::vector<DeviceCodeIndex*> indexes_;
  uint64_t stamps_ = 0, pass_ = 0;
  cudaStream_t stream_ = nullptr;
};

/// The index of a sequence: what is known of the codes and codebooks of its layers.
class DeviceCodeIndex : public CsAttentionOnDevice {
 public:
  struct Layer {
    int32_t built = 0;     // as KeyIndex::built_end()
    int32_t coded = 0;     // tokens with codes, whole pages
    int32_t seen = 0;      // end of the rows whose queries shape the next codebook; 0 = none
    int32_t searched = 0;  // CodedRow::searched, as if no query ever turned
  };

  /// index: [n_layer] of the layers' places in it, IndexedLayers::kNone where they have none.
  DeviceCodeIndex(std::shared_ptr<CodePool> pool, std::vector<uint32_t> index);
  ~DeviceCodeIndex() override;
  DeviceCodeIndex(const DeviceCodeIndex&) = delete;
  DeviceCodeIndex& operator=(const DeviceCodeIndex&) = delete;

  int32_t built_end(uint32_t layer) const override {
    return index_[layer] == IndexedLayers::kNone ? 0 : layers_[index_[layer]].built;
  }
  uint64_t bytes() const override;
  Status fetch(KeyCodes& codes) const override;

  /// Makes it usable; from: what it is a copy of, or null.
  Status create(const DeviceCodeIndex* from, cudaStream_t stream);
  Status truncate(int32_t length, cudaStream_t stream);
  void use() { used_ = pool_->pass(); }
  uint64_t used() const { return used_; }
  /// Gives up blocks and codebooks.
  void clear();
  /// Blocks for tokens [first, end), which nobody else has. False: there are none, and the index
  /// is gone.
  Result<bool> own_blocks(int32_t first, int32_t end, cudaStream_t stream);
  /// Takes up the host's form, while it is empty. False: there are no blocks for it.
  Result<bool> adopt(const KeyCodes& codes, cudaStream_t stream);
  /// A codebook that nobody else has.
  Status own_book(cudaStream_t stream);
  /// A layer gets a new codebook from what was learnt; it has no codes then.
  Status begin_layer(uint32_t at, int32_t built, cudaStream_t stream);
  Status clear_moments(uint32_t at, cudaStream_t stream) const;
  /// Room for last searches, which are forgotten when it has another size.
  Status own_searches();
  /// Tells the device how many pages of every layer have codes.
  Status send_coded(cudaStream_t stream);

  std::vector<Layer>& layers() { return layers_; }
  const std::vector<Layer>& layers() const { return layers_; }
  int32_t least_coded() const;
  std::span<const uint32_t> blocks() const { return blocks_; }
  float* book() const { return book_ != nullptr ? book_->data() : nullptr; }
  float* moments() const { return moments_.data(); }
  int32_t* coded() const { return coded_.data(); }
  int32_t* searched() const { return searched_.data(); }
  __nv_bfloat16* queries() const { return queries_.data(); }
  uint32_t* picks() const { return picks_.data(); }
  /// Changes with the blocks, the codebook and the room for searches.
  uint64_t stamp() const { return stamp_; }

 private:
  using Book = kernels::cuda::DeviceBuffer<float>;

  void fetch_layer(uint32_t layer, std::span<const float> book, KeyCodes& codes) const;
  void drop_blocks(size_t from);
  Status copy_searches(const DeviceCodeIndex& from, cudaStream_t stream);

  std::shared_ptr<CodePool> pool_;
  std::vector<uint32_t> index_;
  std::vector<Layer> layers_;
  std::vector<uint32_t> blocks_;
  std::shared_ptr<Book> book_;
  kernels::cuda::DeviceBuffer<float> moments_;
  kernels::cuda::DeviceBuffer<int32_t> coded_;  // [layers] pages
  // See CodedRow; empty where searches serve one row.
  kernels::cuda::DeviceBuffer<int32_t> searched_;
  kernels::cuda::DeviceBuffer<__nv_bfloat16> queries_;
  kernels::cuda::DeviceBuffer<uint32_t> picks_;
  uint64_t stamp_ = 0, used_ = 0;
};

}  // namespace reprise
