// Quality of fusion on questions over several passages, beside full prefill. For its speed there is
// reprise bench --measure fusion.
//
//     cmake --build build --target fusion_bench
//     build/fusion_bench FILE ITEMS PASSAGES METHOD...
//
// FILE: JSON, one list or one object a line, with question or query, answers or answer, and ctxs
// (list of {title, text}) or positive and negative (lists of texts). Where an item has fewer than
// PASSAGES passages, those of the next items stand around its own. METHOD: a fusion, or
// FUSION@POLICY, and then the answer is read under that policy. Every method answers the same
// prompts. The table says by how much it differs from full prefill, and by how much more or less
// than the first METHOD, with 95 % intervals over items; the mean place is that of rows computed
// again, as part of the prompt. In the environment, START=n and STEP=m take items n, n + m, ...
// below ITEMS, CODEC=name is the form in which chunks are stored (then another column is the KL to
// the same method over exact chunks), LEAD=none has chunks read after a token alone, DEVICE=cuda
// computes there, SAMPLES=file gets a line "item method KL F1 right" of each, full prefill ("none")
// included.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <optional>

#include "base/percentile.h"
#include "eval/metrics/qa_f1.h"
#include "eval/stats.h"
#include "question_items.h"
#include "reprise/library.h"

using namespace reprise;

namespace {

constexpr uint32_t kAnswerTokens = 32;

template <class T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "fusion_bench: {}\n", result.error().message);
  std::exit(1);
}

uint32_t count_from(const char* variable, uint32_t usual) {
  const char* text = std::getenv(variable);
  return text == nullptr ? usual : static_cast<uint32_t>(std::strtoul(text, nullptr, 10));
}

struct Reply {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> log_probs;  // of the forced tokens
  FusionReport report;
};

std::vector<float> log_softmax(std::span<const float> logits) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  std::vector<float> out(logits.begin(), logits.end());
  for (float& value : out) value -= largest + static_cast<float>(std::log(sum));
  return out;
}

double segment_bytes(const std::filesystem::path& folder) {
  double bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".kv") bytes += static_cast<double>(entry.file_size());
  }
  return bytes;
}

/// As the environment asks, in a folder that is empty then.
LibraryOptions stored_as(const std::filesystem::path& folder) {
  std::filesystem::remove_all(folder);
  LibraryOptions stored = {.store = folder.string()};
  if (const char* codec = std::getenv("CODEC"); codec != nullptr) stored.store_codec = codec;
  if (const char* lead = std::getenv("LEAD"); lead != nullptr) stored.store_lead = lead;
  return stored;
}

PartedPrompt prompt_of(Library& library, const std::vector<std::string>& passages,
                       const std::string& question) {
  std::vector<std::vector<int32_t>> chunks;
  for (const auto& text : passages) {
    for (auto& chunk : library.cut(text)) chunks.push_back(std::move(chunk));
  }
  const Message message = {"user",
                           fmt::format("Answer the question with a few words from the passages "
                                       "above.\n\nQuestion: {}\nAnswer:",
                                       question)};
  return must(library.chat_prompt({&message, 1}, std::move(chunks)));
}

Reply answer(Engine& engine, Library& library, const PartedPrompt& prompt,
             const std::string& method, const std::vector<int32_t>* forced) {
  Reply reply;
  Request request;
  request.prompt = prompt.tokens();
  request.max_tokens = kAnswerTokens;
  const size_t at = std::min(method.find('@'), method.size());
  const std::string policy = at < method.size() ? method.substr(at + 1) : "full";
  const auto read = [&] {
    auto session = must(engine.open(policy));
    if (method != "none") reply.report = must(library.fuse(*session, prompt, method.substr(0, at)));
    return session;
  };
  auto session = read();
  const Answer free = must(session->generate(request));
  reply.text = free.text;
  reply.tokens = free.tokens;
  request.forced = forced == nullptr ? free.tokens : *forced;
  request.max_tokens = static_cast<uint32_t>(request.forced.size());
  request.ignore_end = true;
  request.on_logits = [&](std::span<const float> logits) {
    reply.log_probs.push_back(log_softmax(logits));
  };
  if (policy != "full") session = read();  // it may have dropped KV after the first answer
  static_cast<void>(must(session->generate(request)));
  return reply;
}

double divergence(const Reply& full, const Reply& other) {
  double sum = 0;
  for (size_t i = 0; i < full.log_probs.size(); ++i) {
    for (size_t token = 0; token < full.log_probs[i].size(); ++token) {
      const double p = full.log_probs[i][token];
      sum += std::exp(p) * (p - other.log_probs[i][token]);
    }
  }
  return sum / static_cast<double>(full.log_probs.size());
}

struct Score {
  double f1 = 0;
  double right = 0;  // 1: the words of an answer stand in the text
};

Score score(const Item& item, const std::string& text) {
  Score best;
  const auto words = eval::qa_tokens(text);
  for (const auto& answer : item.answers) {
    const auto wanted = eval::qa_tokens(answer);
    best.f1 = std::max(best.f1, eval::qa_f1(text, answer));
    const auto at = std::search(words.begin(), words.end(), wanted.begin(), wanted.end());
    if (!wanted.empty() && at != words.end()) best.right = 1;
  }
  return best;
}

struct Column {
  std::string method;
  std::vector<double> f1, right, kl, rows, place, form_kl;
};

std::string interval(const std::vector<double>& values, double unit, int digits) {
  const auto mean = eval::bootstrap_mean(values);
  return fmt::format("{:+.{}f} [{:+.{}f}, {:+.{}f}]", unit * mean.mean, digits, unit * mean.low,
                     digits, unit * mean.high, digits);
}

std::vector<double> differences(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> out;
  for (size_t i = 0; i < a.size(); ++i) out.push_back(a[i] - b[i]);
  return out;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::string part_of(double value, double whole) {
  return whole > 0 ? fmt::format("{:.3f}", value / whole) : "";
}

double median(const std::vector<double>& values) { return percentile(values, 0.5); }

/// Of the last item that the columns have.
void print_samples(std::FILE* file, size_t item, const Column& full,
                   const std::vector<Column>& columns) {
  const auto print = [&](const Column& column, double kl) {
    fmt::print(file, "{} {} {:.6f} {:.4f} {:.0f}\n", item, column.method, kl, column.f1.back(),
               column.right.back());
  };
  print(full, 0.0);
  for (const Column& column : columns) print(column, column.kl.back());
  std::fflush(file);
}

/// bytes: stored, of a token.
void print_head(const std::vector<double>& tokens, size_t passages, const Column& all_computed,
                const std::string& codec, double bytes) {
  fmt::print(
      "\n{} items, {} passages, median {:.0f} tokens; full prefill: F1 {}, right {}; stored as {}: "
      "{:.0f} bytes a token\n\n",
      tokens.size(), passages, median(tokens), interval(all_computed.f1, 100, 1),
      interval(all_computed.right, 100, 1), codec, bytes);
}

void print_titles(const std::string& first, bool by_form) {
  fmt::print(
      "| method | rows % | mean place | F1 | of full | F1 - full | right % | of full | right - "
      "full | KL to "
      "full "
      "| KL - {}'s |{}\n|---|---|---|---|---|---|---|---|---|---|---|{}\n",
      first, by_form ? " KL by form |" : "", by_form ? "---|" : "");
}

void print_quality(const Column& column, const Column& full, const Column& first) {
  const auto kl = eval::bootstrap_mean(column.kl);
  fmt::print(
      "| {} | {:.1f} | {:.2f} | {:.1f} | {} | {} | {:.1f} | {} | {} | {:.4f} [{:.4f}, {:.4f}]"
      " | {} |",
      column.method, 100 * median(column.rows), mean(column.place), 100 * mean(column.f1),
      part_of(mean(column.f1), mean(full.f1)), interval(differences(column.f1, full.f1), 100, 1),
      100 * mean(column.right), part_of(mean(column.right), mean(full.right)),
      interval(differences(column.right, full.right), 100, 1), kl.mean, kl.low, kl.high,
      interval(differences(column.kl, first.kl), 1, 4));
  if (!column.form_kl.empty()) fmt::print(" {} |", interval(column.form_kl, 1, 5));
  fmt::print("\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    fmt::print(stderr, "usage: fusion_bench FILE ITEMS PASSAGES METHOD...\n");
    return 2;
  }
  const auto items = read_items(argv[1]);
  const size_t count = std::min<size_t>(items.size(), std::strtoul(argv[2], nullptr, 10));
  const size_t passages = std::strtoul(argv[3], nullptr, 10);
  EngineOptions options;
  options.prefix_cache = false;
  options.threads = count_from("THREADS", 0);
  if (const char* device = std::getenv("DEVICE"); device != nullptr) options.device = device;
  const auto engine = must(Engine::load(options));
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("reprise_fusion_bench_{}", ::getpid());
  const LibraryOptions stored = stored_as(folder);
  Library library = must(Library::open(*engine, stored, true));
  std::optional<Library> exact;
  if (stored.store_codec != "none") {
    LibraryOptions kept = stored;
    kept.store = folder.string() + "_exact";
    kept.store_codec = "none";
    exact.emplace(must(Library::open(*engine, kept, true)));
  }
  std::vector<Column> columns;
  for (int i = 4; i < argc; ++i) columns.emplace_back().method = argv[i];
  Column all_computed;
  all_computed.method = "none";
  std::vector<double> tokens;
  uint64_t stored_tokens = 0;
  const uint32_t step = std::max(1u, count_from("STEP", 1));
  const char* const samples_path = std::getenv("SAMPLES");
  std::FILE* const samples = samples_path == nullptr ? nullptr : std::fopen(samples_path, "w");
  for (size_t index = count_from("START", 0); index < count; index += step) {
    const PartedPrompt prompt =
        prompt_of(library, passages_of(items, index, passages), items[index].question);
    if (prompt.tokens().size() + kAnswerTokens > engine->info().context) continue;
    for (const auto& chunk : prompt.chunks) {
      if (must(library.add("passage", 0, chunk))) stored_tokens += chunk.size();
      if (exact) static_cast<void>(must(exact->add("passage", 0, chunk)));
    }
    tokens.push_back(static_cast<double>(prompt.tokens().size()));
    const Reply full = answer(*engine, library, prompt, "none", nullptr);
    const Score full_score = score(items[index], full.text);
    all_computed.f1.push_back(full_score.f1);
    all_computed.right.push_back(full_score.right);
    for (Column& column : columns) {
      const Reply reply = answer(*engine, library, prompt, column.method, &full.tokens);
      const Score scored = score(items[index], reply.text);
      column.f1.push_back(scored.f1);
      column.right.push_back(scored.right);
      column.kl.push_back(divergence(full, reply));
      if (exact) {
        const Reply same = answer(*engine, *exact, prompt, column.method, &full.tokens);
        column.form_kl.push_back(divergence(same, reply));
      }
      column.rows.push_back(static_cast<double>(reply.report.recomputed_rows) /
                            static_cast<double>(std::max<uint64_t>(1, reply.report.loaded_rows)));
      column.place.push_back(reply.report.mean_position);
    }
    if (samples != nullptr) print_samples(samples, index, all_computed, columns);
    fmt::print(stderr, "\r{}/{}", index + 1, count);
  }
  if (samples != nullptr) std::fclose(samples);
  if (tokens.empty()) {
    std::filesystem::remove_all(folder);
    fmt::print(stderr, "\rfusion_bench: no item fits the context of {} tokens\n",
               engine->info().context);
    return 1;
  }
  const double stored_bytes = segment_bytes(folder);
  std::filesystem::remove_all(folder);
  std::filesystem::remove_all(folder.string() + "_exact");
  fmt::print(stderr, "\r");
  print_head(tokens, passages, all_computed, stored.store_codec,
             stored_bytes / static_cast<double>(stored_tokens));
  print_titles(columns.front().method, exact.has_value());
  for (const Column& column : columns) print_quality(column, all_computed, columns.front());
}
