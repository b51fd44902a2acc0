// Quality and speed of fusion on questions over several passages, beside full prefill.
//
//     cmake --build build --target fusion_bench
//     build/fusion_bench FILE ITEMS PASSAGES METHOD...
//
// FILE: JSON, one list or one object a line, with question or query, answers or answer, and ctxs
// (list of {title, text}) or positive and negative (lists of texts). Where an item has fewer than
// PASSAGES passages, those of the next items stand around its own. Every method answers the same
// prompts; rows say by how much it differs from full prefill, with 95 % intervals over items, and
// the medians of the time to the first token, loading included. In the environment, RUNS=n repeats
// each timing, COLD=1 drops the store from the system's cache before each, CODEC=name is the form
// in which chunks are stored (then the last column is the KL to the same method over exact chunks).
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <sstream>

#include "base/percentile.h"
#include "eval/metrics/qa_f1.h"
#include "eval/stats.h"
#include "reprise/library.h"

using namespace reprise;
using nlohmann::json;

namespace {

constexpr uint32_t kAnswerTokens = 16, kForced = 8;

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

struct Item {
  std::string question;
  std::vector<std::string> answers, passages;
};

std::vector<std::string> texts_of(const json& value) {
  if (value.is_string()) return {value};
  std::vector<std::string> texts;
  for (const json& part : value) {
    for (std::string& text : texts_of(part)) texts.push_back(std::move(text));
  }
  return texts;
}

std::vector<Item> read_items(const std::string& path) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  json list = json::array();
  if (text.starts_with('[')) {
    list = json::parse(text);
  } else {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) list.push_back(json::parse(line));
  }
  std::vector<Item> items;
  for (const json& one : list) {
    Item& item = items.emplace_back();
    item.question = one.contains("question") ? one["question"] : one["query"];
    item.answers = texts_of(one.contains("answers") ? one["answers"] : one["answer"]);
    if (one.contains("ctxs")) {
      for (const json& passage : one["ctxs"]) {
        const std::string title = passage.value("title", "");
        item.passages.push_back((title.empty() ? "" : title + "\n") + std::string(passage["text"]));
      }
    } else {
      for (const char* kind : {"positive", "negative"}) {
        for (auto& passage : texts_of(one[kind])) item.passages.push_back(std::move(passage));
      }
    }
  }
  return items;
}

// The item's passages among those of others, its own from another place on for every item.
std::vector<std::string> passages_of(const std::vector<Item>& items, size_t index, size_t count) {
  std::vector<std::string> passages = items[index].passages;
  for (size_t other = index + 1; passages.size() < count; ++other) {
    for (const auto& passage : items[other % items.size()].passages) passages.push_back(passage);
  }
  passages.resize(count);
  std::rotate(passages.begin(), passages.end() - static_cast<std::ptrdiff_t>(index * 3 % count),
              passages.end());
  return passages;
}

struct Reply {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> log_probs;  // of the forced tokens
  double ttft_ms = 0;
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

// Needs a store on a disk: what lies in memory stays there.
void drop_cached(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

double segment_bytes(const std::filesystem::path& folder) {
  double bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".kv") bytes += static_cast<double>(entry.file_size());
  }
  return bytes;
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
  auto session = must(engine.open());
  const bool fuses = method != "none";
  if (fuses) reply.report = must(library.fuse(*session, prompt, method));
  const Answer free = must(session->generate(request));
  reply.ttft_ms = reply.report.total_ms + free.timings.ttft_ms;
  reply.text = free.text;
  reply.tokens = free.tokens;
  request.forced = forced == nullptr ? free.tokens : *forced;
  request.forced.resize(std::min<size_t>(kForced, request.forced.size()));
  request.max_tokens = static_cast<uint32_t>(request.forced.size());
  request.ignore_end = true;
  request.on_logits = [&](std::span<const float> logits) {
    reply.log_probs.push_back(log_softmax(logits));
  };
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

double score(const Item& item, const std::string& text) {
  double best = 0;
  for (const auto& answer : item.answers) best = std::max(best, eval::qa_f1(text, answer));
  return best;
}

struct Column {
  std::string method;
  std::vector<double> f1, kl, ttft, ttft_full, rows, wait, place, select, form_kl;
};

void print_row(const Column& column, const std::vector<double>& full) {
  std::vector<double> differences;
  for (size_t i = 0; i < full.size(); ++i) differences.push_back(column.f1[i] - full[i]);
  const auto f1 = eval::bootstrap_mean(column.f1), kl = eval::bootstrap_mean(column.kl);
  const auto change = eval::bootstrap_mean(differences);
  const double base =
      std::accumulate(full.begin(), full.end(), 0.0) / static_cast<double>(full.size());
  std::vector<double> ratios;
  for (size_t i = 0; i < column.ttft.size(); ++i)
    ratios.push_back(column.ttft_full[i] / column.ttft[i]);
  const auto median = [](std::vector<double> values) { return percentile(values, 0.5); };
  fmt::print(
      "| {} | {:.1f} | {:.1f} | {:.3f} | {:+.1f} [{:+.1f}, {:+.1f}] | {:.3f} [{:.3f}, {:.3f}] | "
      "{:.0f} | {:.2f} | {:.0f} | {:.0f} | {:.0f} |",
      column.method, 100 * median(column.rows), 100 * f1.mean, f1.mean / base, 100 * change.mean,
      100 * change.low, 100 * change.high, kl.mean, kl.low, kl.high, median(column.ttft),
      median(ratios), median(column.wait), median(column.place), median(column.select));
  if (!column.form_kl.empty()) {
    const auto form = eval::bootstrap_mean(column.form_kl);
    fmt::print(" {:.5f} [{:.5f}, {:.5f}] |", form.mean, form.low, form.high);
  }
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
  const uint32_t runs = count_from("RUNS", 1);
  const bool cold = count_from("COLD", 0) != 0;
  EngineOptions options;
  options.prefix_cache = false;
  options.threads = count_from("THREADS", 0);
  const auto engine = must(Engine::load(options));
  const auto folder = std::filesystem::temp_directory_path() / "reprise_fusion_bench";
  std::filesystem::remove_all(folder);
  LibraryOptions stored = {.store = folder.string()};
  if (const char* codec = std::getenv("CODEC"); codec != nullptr) stored.store_codec = codec;
  Library library = must(Library::open(*engine, stored, true));
  std::optional<Library> exact;
  if (stored.store_codec != "none") {
    exact.emplace(must(Library::open(*engine, {.store = folder.string() + "_exact"}, true)));
  }
  std::vector<Column> columns;
  for (int i = 4; i < argc; ++i) columns.emplace_back().method = argv[i];
  std::vector<double> full_f1, tokens;
  uint64_t stored_tokens = 0;
  for (size_t index = 0; index < count; ++index) {
    const PartedPrompt prompt =
        prompt_of(library, passages_of(items, index, passages), items[index].question);
    if (prompt.tokens().size() + kAnswerTokens > engine->info().context) continue;
    for (const auto& chunk : prompt.chunks) {
      if (must(library.add("passage", 0, chunk))) stored_tokens += chunk.size();
      if (exact) static_cast<void>(must(exact->add("passage", 0, chunk)));
    }
    tokens.push_back(static_cast<double>(prompt.tokens().size()));
    const Reply full = answer(*engine, library, prompt, "none", nullptr);
    full_f1.push_back(score(items[index], full.text));
    for (uint32_t run = 0; run < runs; ++run) {
      for (Column& column : columns) {
        const double base = run == 0
                                ? full.ttft_ms
                                : answer(*engine, library, prompt, "none", &full.tokens).ttft_ms;
        if (cold) drop_cached(folder);
        const Reply reply = answer(*engine, library, prompt, column.method, &full.tokens);
        const FusionReport& report = reply.report;
        column.ttft.push_back(reply.ttft_ms);
        column.ttft_full.push_back(base);
        column.wait.push_back(report.wait_ms);
        column.place.push_back(report.place_ms);
        column.select.push_back(report.select_ms);
        if (run > 0) continue;
        column.f1.push_back(score(items[index], reply.text));
        column.kl.push_back(divergence(full, reply));
        if (exact) {
          const Reply same = answer(*engine, *exact, prompt, column.method, &full.tokens);
          column.form_kl.push_back(divergence(same, reply));
        }
        column.rows.push_back(static_cast<double>(report.recomputed_rows) /
                              static_cast<double>(std::max<uint64_t>(1, report.loaded_rows)));
      }
    }
    fmt::print(stderr, "\r{}/{}", index + 1, count);
  }
  const double stored_bytes = segment_bytes(folder);
  std::filesystem::remove_all(folder);
  std::filesystem::remove_all(folder.string() + "_exact");
  fmt::print(stderr, "\r");
  const auto base = eval::bootstrap_mean(full_f1);
  fmt::print(
      "\n{} items, {} passages, median {:.0f} tokens; full prefill: F1 {:.1f} [{:.1f}, {:.1f}]; "
      "stored as {}: {:.0f} bytes a token\n\n",
      full_f1.size(), passages, percentile(tokens, 0.5), 100 * base.mean, 100 * base.low,
      100 * base.high, stored.store_codec, stored_bytes / static_cast<double>(stored_tokens));
  fmt::print(
      "| method | rows % | F1 | of full | F1 - full | KL to full | TTFT ms | x full | wait ms | "
      "place ms | select ms |{}\n|---|---|---|---|---|---|---|---|---|---|---|{}\n",
      exact ? " KL by form |" : "", exact ? "---|" : "");
  for (const Column& column : columns) print_row(column, full_f1);
}
