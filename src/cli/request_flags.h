// Options that run and chat share: what to ask and how the answer ends.
#pragma once

#include <string>
#include <vector>

#include "cli/flags.h"
#include "reprise/engine.h"
#include "reprise/options.h"

namespace reprise::cli {

struct RequestOptions {
  std::string policy = "full";
  std::string system;
  std::string session;
  uint32_t max_tokens = 512;
  bool lossy = false;
  std::vector<std::string> files, stop;
  EngineOptions engine;
  SamplingOptions sampling;
};

template <class Visitor>
void visit_options(RequestOptions& o, Visitor&& visit) {
  visit(OptionSpec{"system", "system message of the conversation", "text"}, o.system);
  visit(OptionSpec{"session",
                   "file that keeps the conversation's KV: restored when it exists, "
                   "saved at the end",
                   "file"},
        o.session);
  visit(OptionSpec{"max-tokens", "length limit of an answer", "tokens", 1, 1 << 24}, o.max_tokens);
  visit(OptionSpec{"policy", "which keys attention reads; `reprise policies` lists them", "spec"},
        o.policy);
  visit(OptionSpec{"lossy", "replace bytes of files that are not UTF-8 instead of stopping"},
        o.lossy);
  visit_options(o.sampling, visit);
  visit_options(o.engine, visit);
}

void add_request_flags(FlagSet& flags, RequestOptions& options);
/// The same but for what is read and kept: --file, --lossy and --session.
void add_answer_flags(FlagSet& flags, RequestOptions& options);

/// Contents of the files in order, separated by blank lines; "-" is standard input. kBadString
/// names the file and the byte that is not UTF-8, unless lossy.
Result<std::string> read_documents(const std::vector<std::string>& files, bool lossy);
/// Text given by a flag must be UTF-8.
Status check_text(std::string_view flag, std::string_view text);
/// The same for all texts among the options.
Status check_texts(const RequestOptions& options);
/// The document, if any, followed by the question: content of one user message.
std::string document_message(std::string_view document, std::string_view question);

/// kFileUnwritable when the file that this option names could not be saved later. Leaves no trace.
Status check_writable(std::string_view option, const std::string& path);

}  // namespace reprise::cli
