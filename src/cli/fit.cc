// `reprise fit`: which context, batch and KV type this machine's memory has room for.
#include <algorithm>

#include "base/system.h"
#include "base/thread_pool.h"
#include "base/try.h"
#include "bench/machine.h"
#include "cli/command.h"
#include "cli/model_file.h"
#include "cli/text.h"

namespace reprise::cli {
namespace {

using nlohmann::ordered_json;

constexpr uint64_t kWorkspace = uint64_t{200} << 20;  // activations, tokenizer, buffers

struct Room {
  uint64_t available, weights;
  uint64_t for_kv() const {
    const uint64_t taken = weights + kWorkspace;
    return available > taken ? available - taken : 0;
  }
};

std::vector<uint32_t> contexts_to_show(uint32_t trained) {
  std::vector<uint32_t> contexts;
  for (uint32_t context = 2048; context < trained && contexts.size() < 10; context *= 2)
    contexts.push_back(context);
  contexts.push_back(trained);
  return contexts;
}

// The best element type with which the whole trained context fits, else the one with the longest.
ordered_json advice(const ModelConfig& config, const Room& room) {
  kernels::KvType best = kernels::KvType::kBF16;
  uint64_t best_context = 0;
  for (const kernels::KvType type : {kernels::KvType::kBF16, kernels::KvType::kQ8_0}) {
    const uint64_t context =
        std::min<uint64_t>(config.context, room.for_kv() / kv_bytes_per_token(config, type));
    if (context > best_context) {
      best = type;
      best_context = context;
    }
  }
  const uint64_t one = best_context * kv_bytes_per_token(config, best);
  const bool all = best_context == config.context;
  return {{"ctx", best_context},
          {"kv_type", kv_type_name(best)},
          {"batch", one == 0 ? 0 : room.for_kv() / one},
          {"kv_memory", one},
          {"policy", all ? "full" : "streaming"}};
}

ordered_json context_rows(const ModelConfig& config, const Room& room) {
  auto rows = ordered_json::array();
  for (const uint32_t context : contexts_to_show(config.context)) {
    for (const kernels::KvType type : kernels::kKvTypes) {
      const uint64_t kv = context * kv_bytes_per_token(config, type);
      rows.push_back({{"context", context},
                      {"kv_type", kv_type_name(type)},
                      {"kv_bytes", kv},
                      {"total_bytes", room.weights + kWorkspace + kv},
                      {"batch", room.for_kv() / std::max<uint64_t>(kv, 1)}});
    }
  }
  return rows;
}

// Milliseconds of one decode step when memory is read as fast as it can be: weights and KV once.
ordered_json roof_rows(const ModelConfig& config, const Room& room, double read_gb_s) {
  auto rows = ordered_json::array();
  for (const uint32_t context : contexts_to_show(config.context)) {
    const uint64_t kv = context * kv_bytes_per_token(config, kernels::KvType::kBF16);
    const double ms = static_cast<double>(room.weights + kv) / (read_gb_s * 1e6);
    rows.push_back({{"context", context}, {"step_ms", ms}, {"tok_s", 1e3 / ms}});
  }
  return rows;
}

std::string as_text(const ordered_json& json) {
  const ordered_json& memory = json["memory"];
  std::string text = fmt::format(
      "memory: {} available; weights {}, workspace {}, room for KV {}\n"
      "sequences that fit at once, and the KV of one:\n",
      bytes_text(memory["available"]), bytes_text(memory["weights"]),
      bytes_text(memory["workspace"]), bytes_text(memory["for_kv"]));
  std::vector<std::string> head{"context"};
  for (const kernels::KvType type : kernels::kKvTypes) head.emplace_back(kv_type_name(type));
  Table table(head);
  std::vector<std::string> row;
  for (const auto& cell : json["contexts"]) {
    if (row.empty()) row.push_back(grouped(cell["context"]));
    const uint64_t batch = cell["batch"];
    row.push_back(
        fmt::format("{} ({})", batch == 0 ? "-" : grouped(batch), bytes_text(cell["kv_bytes"])));
    if (row.size() == head.size()) table.add(std::exchange(row, {}));
  }
  text += table.text();
  if (json.contains("decode_roof")) {
    text += fmt::format("memory is read at {:.1f} GB/s; decoding one sequence (bf16) is at best:\n",
                        json["read_gb_s"].get<double>());
    Table roof({"context", "ms per token", "tokens per s"});
    for (const auto& line : json["decode_roof"])
      roof.add({grouped(line["context"]), fmt::format("{:.2f}", line["step_ms"].get<double>()),
                fmt::format("{:.0f}", line["tok_s"].get<double>())});
    text += roof.text();
  }
  const ordered_json& advice = json["advice"];
  if (advice["ctx"] == 0) return text + "the model does not fit this machine's memory\n";
  return text + fmt::format("advice: --ctx {} --kv-type {} --policy {}\n",
                            advice["ctx"].get<uint64_t>(), advice["kv_type"].get<std::string>(),
                            advice["policy"].get<std::string>());
}

class FitCommand : public Command {
 public:
  std::string_view name() const override { return "fit"; }
  std::string_view summary() const override {
    return "say which context and batch fit this machine";
  }
  std::string_view examples() const override {
    return R"(  reprise fit                            for the default model
  reprise fit -m model.gguf --memory 8G  for a machine with 8 GiB free
  reprise fit --speed                    measures memory too, for the fastest possible decode
  reprise fit -m model.gguf --json)";
  }
  void declare(FlagSet& flags) override {
    visit_options(engine_, [&](const OptionSpec& spec, auto& field) {
      if (spec.name == "model") flags.add(spec, field);
    });
    flags.add({"memory", "memory to plan for; 0 = what is free now", "bytes", 0, 0x1p50}, memory_);
    flags.add({"speed", "measure how fast memory is and what that means for decoding"}, speed_);
  }
  Status run(Console& console) override {
    REPRISE_TRY(const ModelFile file, ModelFile::open(engine_.model));
    REPRISE_TRY(const ModelConfig config, file.config());
    const Room room{memory_ > 0 ? memory_ : available_memory_bytes(), file.tensor_bytes()};
    ordered_json json = {{"model", file.path()},
                         {"trained_context", config.context},
                         {"memory",
                          {{"available", room.available},
                           {"weights", room.weights},
                           {"workspace", kWorkspace},
                           {"for_kv", room.for_kv()}}},
                         {"contexts", context_rows(config, room)},
                         {"advice", advice(config, room)}};
    if (speed_) {
      ThreadPool pool;
      json["read_gb_s"] = measure_machine(pool).read_gb_s;
      json["decode_roof"] = roof_rows(config, room, json["read_gb_s"]);
    }
    return console.json() ? console.print_json(json) : console.print(as_text(json));
  }

 private:
  EngineOptions engine_;
  bool speed_ = false;
  uint64_t memory_ = 0;
};

}  // namespace

std::unique_ptr<Command> make_fit_command() { return std::make_unique<FitCommand>(); }

}  // namespace reprise::cli
