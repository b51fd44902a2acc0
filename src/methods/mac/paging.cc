// Where KV lies on disk: what MAC-Attention reads of it.
#include <algorithm>
#include <utility>

#include "methods/mac/mac.h"
#include "methods/mac/parts.h"

namespace reprise {

// A prompt's last rows are computed once more to fill the ring. Mean keys are those of keys that
// decode rows read anyway.
int32_t MacPolicy::reads_from(const QueryRows& rows) const {
  const int32_t inner_from = inner().reads_from(rows);
  const bool fills =
      rows.phase == kernels::Phase::kPrefill && seeds(rows.end() - 1, rows.prompt_end);
  return fills ? std::min(settings_.cut.sink, inner_from) : inner_from;
}

bool MacPolicy::predict(const QueryRows& rows, Selection& selection) {
  if (!settings_.reuses || !settings_.stores(rows.first()) || rests(rows)) {
    return inner().predict(rows, selection);
  }
  // A row to come reuses what the last one does.
  std::vector<int32_t> reused = layers_[rows.layer].reused_from;
  reused.resize(config_->n_head);
  Selection given;
  const bool asks_inner = std::find(reused.begin(), reused.end(), 0) != reused.end();
  if (asks_inner && !inner().predict(rows, given)) return false;
  const MacRead read = {settings_.cut.sink, settings_.cut.at(rows.first()), rows.end(), group_,
                        reused};
  if (!divide_keys(read, given, selection)) selection = std::move(given);
  return true;
}

}  // namespace reprise
