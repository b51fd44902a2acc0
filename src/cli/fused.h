// Answers over stored documents, as run and ask give them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "cli/conversation.h"
#include "reprise/library.h"

namespace reprise::cli {

struct FusedOptions {
  LibraryOptions library;
  std::string fusion = "a3";
};

template <class Visitor>
void visit_options(FusedOptions& o, Visitor&& visit) {
  visit_options(o.library, visit);
  visit(OptionSpec{"fusion",
                   "which rows of stored documents are computed again: none, full-reuse, pie, "
                   "legolink, cacheblend, a3 or a3-paper",
                   "spec"},
        o.fusion);
}

/// Says what take_warning() of a Library or a ChunkStore has to say.
template <class Store>
void warn_of(Store& store, Console& console) {
  const std::string warning = store.take_warning();
  if (!warning.empty()) console.warn(warning);
}

nlohmann::ordered_json fusion_json(const FusionReport& report);

/// Loads what is stored, answers, streaming unless the output is JSON, and reports. extra: members
/// of the JSON object besides the answer's and "fusion".
Status answer_fused(Conversation& conversation, Library& library, const PartedPrompt& prompt,
                    const std::string& fusion, const RequestOptions& options,
                    const nlohmann::ordered_json& extra, Console& console);

}  // namespace reprise::cli
