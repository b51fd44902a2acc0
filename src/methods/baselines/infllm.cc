#include "methods/baselines/infllm.h"

#include "methods/key_list.h"
#include "methods/top_k.h"

namespace reprise {

InfLlmPolicy::InfLlmPolicy(const InfLlmOptions& options, const ModelConfig& config)
    : init_(static_cast<int32_t>(options.init)),
      local_(static_cast<int32_t>(options.local)),
      chunk_(static_cast<int32_t>(options.chunk)),
      blocks_(options.blocks),
      memory_({init_, static_cast<int32_t>(options.block), local_,
               static_cast<int32_t>(options.representatives)},
              config) {}

void InfLlmPolicy::select(const QueryRows& rows, Selection& selection) {
  memory_.update(rows);
  if (rows.first() + 1 <= init_ + local_) return;
  selection.index_bytes_read = memory_.score(rows, scores_);
  top_k(scores_, blocks_, picks_);
  selection.all = false;
  SelectionPart& far = selection.parts.emplace_back();
  far.rotate_keys = false;
  far.max_query_position = local_;
  append_range({0, init_}, 0, far.ranges);
  for (const int32_t block : picks_) append_range(memory_.keys(block), 0, far.ranges);
  far.offsets.push_back(static_cast<uint32_t>(far.ranges.size()));

  SelectionPart& near = selection.parts.emplace_back();
  const KeyRange recent = {memory_.keys(memory_.blocks_at(rows.first())).begin, rows.end()};
  near.add_list({&recent, 1});
}

}  // namespace reprise
