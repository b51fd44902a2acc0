// What computes rows of fused prompts: one implementation for each kind of device.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "fusion/fused_prompt.h"
#include "fusion/load_pace.h"
#include "kv/sequence_kv.h"
#include "model/config.h"
#include "reprise/progress.h"

namespace reprise {

/// The stage of progress in which rows are chosen: the pass that computes them starts again.
inline constexpr std::string_view kChoosing = "choose";

/// What loaded rows are scored by.
enum class RowScore : uint8_t {
  kHeads,   // how much the question attends to them, see head_attention(), in some layers
  kJoint,   // the same by joint_attention(), in one layer
  kValues,  // how far their values in a layer are from those that were loaded; they are among the
            // rows of the pass then
};

/// What a pass is asked about loaded rows.
struct RowCheck {
  std::span<const int32_t> candidates;  // ascending positions of the rows to score
  RowScore score = RowScore::kHeads;
  uint32_t layer = 0;    // where rows are chosen; 0: a quarter of the layers
  int32_t question = 0;  // where it begins
  uint32_t window = 0;   // its last rows that score
};

/// The layers where rows are scored, ascending; they are chosen in the last one. Not layer 0, whose
/// keys follow from the tokens alone. Attention is read where a prompt of so many tokens is seen
/// whole: up to the next such layer, or the last one that there is, and by kHeads in those of its
/// second half. kUnsupported where every layer's own sliding window hides some of them.
Result<std::vector<uint32_t>> check_layers(const RowCheck& check, const ModelConfig& config,
                                           int32_t prompt_end);

/// Whether KV of so many tokens ever has room in memory at once, as fusion needs it, which fills a
/// layer after the other. kOutOfMemory.
Status check_memory(const PagePool& pool, size_t tokens);
/// SequenceKv::reserve after that. kOutOfMemory says what to do.
Status reserve_in_memory(SequenceKv& kv, size_t rows);

/// From the scores of the candidates: which rows of the pass go on, at ascending positions.
using ChooseFn = std::function<std::vector<int32_t>(std::span<const float> scores)>;

/// What some rows of chunks read instead of every key before them: their own chunk, what stands
/// right before it, and of the rest some keys.
struct FewReads {
  std::vector<int32_t> rows;  // that do so
  std::vector<int32_t> keys;  // ascending positions, all over the prompt
  uint32_t near = 0;          // keys right before the chunk
};

/// One prompt. Rows are named by ascending positions; each reads every key before it, computed or
/// loaded, and its own key and value replace what was loaded.
class FusedPass {
 public:
  virtual ~FusedPass() = default;
  /// Computes rows in every layer, and has everything loaded; few: null, or which of them need
  /// not read everything, and do where there is no memory for what they read; null where keys are
  /// position-free. Errors: kCancelled, also where slow() says why; those of
  /// StoredChunk::read_layer, of a chunk that failed() names then.
  virtual Status compute(std::span<const int32_t> positions, const FewReads* few) = 0;
  /// Computes rows up to the layer where rows are chosen, and those that go on in every layer. The
  /// same errors.
  virtual Status check(std::span<const int32_t> positions, const RowCheck& check,
                       const ChooseFn& choose) = 0;
  /// Of the prompt's last row, which the pass computed.
  virtual std::span<const float> logits() const = 0;
  virtual const StoredChunk* failed() const = 0;
  /// Not null where loading was given up for computing, see LoadPace.
  virtual const SlowLoad* slow() const = 0;
  virtual void add_cost(FusionCost& cost) const = 0;
};

/// A prompt, and where its KV goes; everything outlives the pass.
struct FusedJob {
  const FusedPrompt& prompt;
  SequenceKv& kv;  // with room for the whole prompt when rows are computed
  bool position_free = false;
  const ProgressFn& progress;
};

class FusionDevice {
 public:
  virtual ~FusionDevice() = default;
  /// KV of a chunk that is read after its context and nothing else: [n_layer][K, V], keys before
  /// rotation, as StoredChunk::read_layer gives them. kv has that of the first tokens of the
  /// context, or of none, and then of context and chunk. kOutOfMemory, kInvalidArgument.
  virtual Result<std::vector<std::byte>> read_chunk(const ChunkIdentity& identity,
                                                    const ChunkTokens& tokens, SequenceKv& kv) = 0;
  /// Starts to read what is loaded. One pass at a time. kUnsupported.
  virtual Result<std::unique_ptr<FusedPass>> begin(const FusedJob& job,
                                                   std::vector<ChunkLoad> loads) = 0;
};

}  // namespace reprise
