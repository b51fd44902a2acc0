#include "eval/made_up_runs.h"

#include <fmt/format.h>

#include <cmath>
#include <random>

namespace reprise::eval::test {
namespace {

constexpr double kBytesPerKey = 23040;  // of all layers and KV heads
constexpr const char* kSubtasks[] = {"hotpotqa", "samsum", "trec"};

// Uniform in [0, 1), the same in every run for the same sample.
double draw(uint64_t seed, const std::string& what) {
  uint64_t hash = seed + 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : what) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return static_cast<double>(std::mt19937_64(hash)() >> 11) * 0x1p-53;
}

class Maker {
 public:
  Maker(const MadeUpPolicy& policy, const MadeUp& options) : policy_(policy), options_(options) {}

  RunFile file() {
    RunRecord run;
    run.id = fmt::format("run-{}-{}", policy_.spec, options_.seed);
    run.time = "2030-01-02T03:04:05Z";
    run.version = "0.1.0";
    run.model = "SmolLM2-135M-Instruct";
    run.model_sha256 = options_.model_sha256;
    run.quantization = "Q4_1";
    run.kv_type = "bf16";
    run.weight_bytes = 98'362'432;
    run.machine = "some processor, 2 threads";
    run.policy = policy_.spec;
    run.scope = options_.scope;
    run.seed = 1234;
    run.data = {{"ppl", options_.data_hash}, {"needle", "d2"}, {"longbench", "d3"}};
    file_.runs.push_back(run);
    make_ppl();
    make_needle();
    make_longbench();
    return std::move(file_);
  }

 private:
  SampleRecord sample(const std::string& task, const std::string& id, uint64_t prompt,
                      uint64_t generated) const {
    SampleRecord sample;
    sample.run = file_.runs[0].id;
    sample.task = task;
    sample.id = id;
    sample.prompt_tokens = prompt;
    sample.generated_tokens = generated;
    sample.finish = "end";
    const auto keys = prompt + generated / 2;
    const double full = kBytesPerKey * static_cast<double>(keys);
    sample.counters = {{"kv_bytes_per_token", std::round(full * policy_.share)},
                       {"full_kv_bytes_per_token", full},
                       {"index_bytes_read_per_token", 0},
                       {"index_bytes", policy_.share < 1 ? 65536 : 0}};
    const double ms = 4 + full * policy_.share / 12e6;
    sample.timing = {{"prefill", static_cast<double>(prompt) / 3}, {"tpot_p50", ms}};
    return sample;
  }

  void make_ppl() {
    for (size_t document = 0; document < options_.documents; ++document) {
      const std::string id = fmt::format("book-{}", document);
      const double level = 2.6 + 0.6 * draw(options_.seed, id);
      double sum = 0;
      for (size_t i = 0; i < options_.positions; ++i) {
        const double x = draw(options_.seed, fmt::format("{}/{}", id, i));
        double nll = level + 1.5 / (1 + static_cast<double>(i) / 150) - std::log(1 - 0.95 * x) - 1;
        double kl = 0;
        if (i >= 1024) {
          nll += policy_.nll_loss * (0.5 + x);
          kl = policy_.nll_loss * 0.4 * (0.2 + x);
        }
        sum += nll;
        file_.steps.push_back({file_.runs[0].id, "ppl", id, i, {{"nll", nll}, {"kl", kl}}});
      }
      SampleRecord record = sample("ppl", id, options_.positions / 2, options_.positions / 2);
      record.scores = {{"nll", sum / static_cast<double>(options_.positions)}};
      file_.samples.push_back(record);
    }
  }

  void make_needle() {
    for (const double length : {1024.0, 2048.0, 4096.0, 8192.0}) {
      for (int depth = 0; depth <= 10; ++depth) {
        for (size_t trial = 0; trial < options_.trials; ++trial) {
          const std::string id =
              fmt::format("length-{}-depth-{}-trial-{}", length, 10 * depth, trial);
          SampleRecord record = sample("needle", id, static_cast<uint64_t>(length), 12);
          const bool full_hits = draw(options_.seed, id) < 1.1 - length / 16384;
          const bool hits = full_hits && draw(options_.seed, id + policy_.spec) <=
                                             policy_.needle_hit - (length > 2048 ? 0.0 : -0.2);
          record.scores = {{"hit", hits ? 1.0 : 0.0},
                           {"nll", 0.3 + draw(options_.seed, id + "nll") + length / 8192 +
                                       policy_.nll_loss * 2}};
          record.axes = {{"length", length}, {"depth", depth / 10.0}};
          record.references = {"1234567"};
          record.prediction = hits ? " 1234567." : " 7654321.";
          file_.samples.push_back(record);
        }
      }
    }
  }

  void make_longbench() {
    for (const char* subtask : kSubtasks) {
      const size_t n = options_.subtask_samples * (subtask == kSubtasks[2] ? 2 : 1);
      for (size_t i = 0; i < n; ++i) {
        const std::string id = fmt::format("{}/{}", subtask, i);
        SampleRecord record = sample("longbench", id, 3000 + 10 * i, 20);
        record.truncated = i % 3 == 0;
        record.scores = {{"score", 0.8 * draw(options_.seed, id)}};
        record.references = {"an answer"};
        record.prediction = "some answer";
        file_.samples.push_back(record);
      }
    }
  }

  const MadeUpPolicy& policy_;
  const MadeUp& options_;
  RunFile file_;
};

}  // namespace

RunFile made_up_run(const MadeUpPolicy& policy, const MadeUp& options) {
  return Maker(policy, options).file();
}

std::vector<MadeUpPolicy> made_up_policies() {
  return {{"full", 1, 0, 1},
          {"streaming:window=512", 0.16, 0.35, 0.3},
          {"streaming:window=1024", 0.31, 0.22, 0.45},
          {"random:budget=512", 0.16, 0.5, 0.15},
          {"random:budget=1024", 0.31, 0.38, 0.3},
          {"quest:block=16,budget=512", 0.17, 0.05, 0.9},
          {"quest:block=16,budget=1024", 0.33, 0.01, 0.97}};
}

RunFile made_up_file(const std::vector<MadeUpPolicy>& policies, const MadeUp& options) {
  RunFile all;
  all.path = "run.jsonl";
  for (const MadeUpPolicy& policy : policies) {
    RunFile one = made_up_run(policy, options);
    all.runs.insert(all.runs.end(), one.runs.begin(), one.runs.end());
    all.samples.insert(all.samples.end(), one.samples.begin(), one.samples.end());
    all.steps.insert(all.steps.end(), one.steps.begin(), one.steps.end());
  }
  return all;
}

std::string lines_of(const RunFile& file) {
  std::string text;
  for (const RunRecord& run : file.runs) text += to_line(run) + "\n";
  for (const SampleRecord& sample : file.samples) text += to_line(sample) + "\n";
  for (const StepRecord& step : file.steps) text += to_line(step) + "\n";
  for (const SummaryRecord& summary : file.summaries) text += to_line(summary) + "\n";
  return text;
}

}  // namespace reprise::eval::test
