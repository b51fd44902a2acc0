// `reprise fit`: which context, batch and KV type this machine's memory has room for.
#include <algorithm>
#include <optional>

#include "base/system.h"
#include "base/thread_pool.h"
#include "base/try.h"
#include "bench/roof.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/model_file.h"
#include "cli/text.h"
#include "engine/cuda/cuda_backend.h"
#include "kernels/cuda/kv_types.h"
#include "kv/page_file.h"
#include "methods/policy_memory.h"
#include "model/shard.h"

namespace reprise::cli {
namespace {

using nlohmann::ordered_json;

constexpr uint64_t kWorkspace = uint64_t{200} << 20;  // activations, tokenizer, buffers

struct Room {  // of each device
  uint64_t available, weights, workspace;
  bool cuda;
  uint64_t for_kv() const {
    const uint64_t taken = weights + workspace, left = available > taken ? available - taken : 0;
    return cuda ? default_device_kv_bytes(left) : left;
  }
};

/// What a policy keeps of a sequence beside its KV; nothing where none was named.
struct PlannedPolicy {
  std::string spec = "full";
  std::optional<PolicyMemory> memory;
  uint64_t bytes(uint64_t tokens) const { return memory ? memory->bytes(tokens) : 0; }
};

struct KvChoice {
  std::string_view name;
  uint64_t bytes_per_token;  // over all layers, of each device
};

/// First what an engine takes by itself; f32 alone where everything is float.
std::vector<KvChoice> kv_choices(const ModelConfig& config, const EngineOptions& options) {
  const bool cuda = options.device == "cuda";
  if (options.precision == "f32")
    return {{"f32", kv_bytes_per_token(config, kernels::KvType::kF32)}};
  std::vector<KvChoice> choices;
  if (!cuda) {
    const kernels::KvType own = kernels::fastest_kv_type(config.head_dim, !options.kv_disk.empty());
    const auto add = [&](kernels::KvType type) {
      choices.push_back({kv_type_name(type), kv_bytes_per_token(config, type)});
    };
    add(own);
    for (const kernels::KvType type : kernels::kKvTypes) {
      if (type != own && kernels::suits(type, config.head_dim)) add(type);
    }
    return choices;
  }
  const uint64_t tiles = uint64_t{2} * config.n_kv_head * config.n_layer;
  for (const auto& [name, type] : kernels::cuda::kNamedKvTypes) {
    const uint64_t tile = kernels::cuda::tile_bytes(type, config.head_dim);
    choices.push_back({name, tiles * tile / kernels::cuda::kPageTokens});
  }
  return choices;
}

std::vector<uint32_t> contexts_to_show(uint32_t trained) {
  std::vector<uint32_t> contexts;
  for (uint32_t context = 2048; context < trained && contexts.size() < 10; context *= 2)
    contexts.push_back(context);
  contexts.push_back(trained);
  return contexts;
}

/// The longest context, of so many tokens at most, that there is room for.
uint64_t fitting_context(uint64_t most, uint64_t room, const KvChoice& choice,
                         const PlannedPolicy& policy) {
  const auto fits = [&](uint64_t context) {
    return context * choice.bytes_per_token + policy.bytes(context) <= room;
  };
  if (fits(most)) return most;
  uint64_t least = 0;  // fits, or nothing does
  while (most - least > 1) {
    const uint64_t middle = least + (most - least) / 2;
    (fits(middle) ? least : most) = middle;
  }
  return least;
}

// The best element type with which the whole trained context fits, else the one with the longest.
ordered_json advice(const ModelConfig& config, const Room& room,
                    const std::vector<KvChoice>& choices, const PlannedPolicy& policy,
                    uint32_t tp) {
  KvChoice best = choices.front();
  uint64_t best_context = 0;
  for (const KvChoice& choice : choices) {
    const uint64_t context = fitting_context(config.context, room.for_kv(), choice, policy);
    if (context > best_context) {
      best = choice;
      best_context = context;
    }
  }
  const uint64_t kv = best_context * best.bytes_per_token, one = kv + policy.bytes(best_context);
  const bool all = best_context == config.context;
  const bool named = policy.memory.has_value();
  return {{"ctx", best_context},
          {"kv_type", best.name},
          {"batch", kv == 0 ? 0 : room.for_kv() / one},
          {"kv_memory", kv * tp},
          {"policy", named || all || room.cuda ? policy.spec : "streaming"}};
}

ordered_json context_rows(const ModelConfig& config, const Room& room,
                          const std::vector<KvChoice>& choices, const PlannedPolicy& policy) {
  auto rows = ordered_json::array();
  for (const uint32_t context : contexts_to_show(config.context)) {
    for (const KvChoice& choice : choices) {
      const uint64_t kv = context * choice.bytes_per_token, own = policy.bytes(context);
      rows.push_back({{"context", context},
                      {"kv_type", choice.name},
                      {"kv_bytes", kv},
                      {"policy_bytes", own},
                      {"total_bytes", room.weights + room.workspace + kv + own},
                      {"batch", room.for_kv() / std::max<uint64_t>(kv + own, 1)}});
    }
  }
  return rows;
}

// A disk that `run` would refuse. page_bytes: of one layer.
Status check_disk(const EngineOptions& options, uint64_t page_bytes) {
  if (options.kv_disk.empty()) return {};
  REPRISE_TRY(const auto file,
              PageFile::create(options.kv_disk, options.kv_disk_size, page_bytes, false));
  return {};
}

// Tokens that each tier of KV holds; of the host's memory beside a GPU, what it could hold.
ordered_json tier_rows(const EngineOptions& options, const Room& room,
                       const std::vector<KvChoice>& choices) {
  uint64_t host = options.kv_host;
  if (host == 0 && room.cuda) host = available_memory_bytes() / 2;
  const bool no_disk = options.kv_disk.empty();
  const uint64_t disk =
      no_disk ? options.kv_disk_size : PageFile::room(options.kv_disk, options.kv_disk_size);
  auto rows = ordered_json::array();
  for (const auto& [tier, flag, bytes] :
       {std::tuple{"memory", "--kv-memory", room.for_kv()}, std::tuple{"host", "--kv-host", host},
        std::tuple{"disk", "--kv-disk", disk}}) {
    if (bytes == 0) continue;
    ordered_json row = {{"tier", tier}, {"flag", flag}, {"bytes", bytes}};
    for (const KvChoice& choice : choices)
      row["tokens"][choice.name] = bytes / choice.bytes_per_token;
    rows.push_back(row);
  }
  return rows;
}

// Milliseconds of one decode step when memory is read as fast as it can be: weights and KV once.
ordered_json roof_rows(const ModelConfig& config, const Room& room, const KvChoice& choice,
                       double read_gb_s) {
  auto rows = ordered_json::array();
  for (const uint32_t context : contexts_to_show(config.context)) {
    const uint64_t kv = context * choice.bytes_per_token;
    const double ms = static_cast<double>(room.weights + kv) / (read_gb_s * 1e6);
    rows.push_back({{"context", context}, {"step_ms", ms}, {"tok_s", 1e3 / ms}});
  }
  return rows;
}

std::string tiers_text(const ordered_json& tiers, const std::vector<KvChoice>& choices) {
  if (tiers.size() < 2) return {};
  std::vector<std::string> head{"tokens held in", "", "room"};
  for (const KvChoice& choice : choices) head.emplace_back(choice.name);
  Table table(head);
  for (const auto& line : tiers) {
    std::vector<std::string> row{line["tier"], line["flag"], bytes_text(line["bytes"])};
    for (const KvChoice& choice : choices) {
      row.push_back(grouped(line["tokens"][std::string(choice.name)]));
    }
    table.add(row);
  }
  return "KV that no request needs now waits in slower tiers, where there are any:\n" +
         table.text();
}

std::string as_text(const ordered_json& json, const std::vector<KvChoice>& choices) {
  const ordered_json& memory = json["memory"];
  const std::string device = json["device"];
  const uint32_t tp = json["tp"];
  const bool named = device != "cpu" && device != "cuda", beside = json["policy"] != "full";
  std::string text = fmt::format(
      "memory{}{}: {} available; weights {}, workspace {}, room for KV {}\n"
      "sequences that fit at once, {}the KV of one{}:\n",
      named ? " of " + device : "", tp > 1 ? ", each" : "", bytes_text(memory["available"]),
      bytes_text(memory["weights"]), bytes_text(memory["workspace"]), bytes_text(memory["for_kv"]),
      beside ? "" : "and ",
      beside ? fmt::format(", and what {} keeps beside it", json["policy"].get<std::string>())
             : "");
  std::vector<std::string> head{"context"};
  for (const KvChoice& choice : choices) head.emplace_back(choice.name);
  if (beside) head.emplace_back("beside");
  Table table(head);
  std::vector<std::string> row;
  for (const auto& cell : json["contexts"]) {
    if (row.empty()) row.push_back(grouped(cell["context"]));
    const uint64_t batch = cell["batch"];
    row.push_back(
        fmt::format("{} ({})", batch == 0 ? "-" : grouped(batch), bytes_text(cell["kv_bytes"])));
    if (row.size() <= choices.size()) continue;
    if (beside) row.push_back(bytes_text(cell["policy_bytes"]));
    table.add(std::exchange(row, {}));
  }
  text += table.text();
  text += tiers_text(json["tiers"], choices);
  if (json.contains("decode_roof")) {
    text += fmt::format("memory is read at {:.1f} GB/s; decoding one sequence ({}) is at best:\n",
                        json["read_gb_s"].get<double>(), choices.front().name);
    Table roof({"context", "ms per token", "tokens per s"});
    for (const auto& line : json["decode_roof"])
      roof.add({grouped(line["context"]), fmt::format("{:.2f}", line["step_ms"].get<double>()),
                fmt::format("{:.0f}", line["tok_s"].get<double>())});
    text += roof.text();
  }
  const ordered_json& advice = json["advice"];
  if (advice["ctx"] == 0) return text + "the model does not fit this memory\n";
  const std::string type = advice["kv_type"];  // f32 comes with its flag
  return text +
         fmt::format("advice: --ctx {} {} {} --policy {}{}{}\n", advice["ctx"].get<uint64_t>(),
                     json["precision"] == "f32" ? "--precision" : "--kv-type", type,
                     advice["policy"].get<std::string>(), device == "cpu" ? "" : " --device cuda",
                     tp > 1 ? fmt::format(" --tp {}", tp) : "");
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
  reprise fit --policy csattention       with what a policy keeps beside KV
  reprise fit --speed                    measures memory too, for the fastest possible decode
  reprise fit --device cuda              for the GPU's memory, which is measured too
  reprise fit --device cuda --tp 2       for each of two GPUs that share the model
  reprise fit --device cuda --kv-host 64G --kv-disk /data
                                         and what slower tiers hold
  reprise fit -m model.gguf --json)";
  }
  void declare(FlagSet& flags) override {
    visit_options(engine_, [&](const OptionSpec& spec, auto& field) {
      const std::string_view shown[] = {"model",   "device",  "tp",          "precision",
                                        "kv-host", "kv-disk", "kv-disk-size"};
      if (std::ranges::find(shown, spec.name) != std::end(shown)) flags.add(spec, field);
    });
    flags.add(
        {"policy", "plan for what it keeps beside KV, too, which is measured on noise", "spec"},
        policy_.spec);
    flags.add({"memory", "memory to plan for; 0 = what is free now", "bytes", 0, 0x1p50}, memory_);
    flags.add({"speed", "measure how fast memory is and what that means for decoding"}, speed_);
  }
  Status run(Console& console) override {
    REPRISE_CHECK(validate(engine_));
    REPRISE_TRY(const ModelFile file, ModelFile::open(engine_.model));
    REPRISE_TRY(const ModelConfig whole, file.config());
    REPRISE_CHECK(check_shards(whole, nullptr, engine_.tp));
    const ModelConfig config = shard_config(whole, engine_.tp);  // what each device computes
    const bool cuda = engine_.device == "cuda", floats = engine_.precision == "f32";
    ThreadPool pool;
    std::unique_ptr<Roof> roof;  // memory that is named may be another machine's
    if (memory_ == 0 || speed_) {
      REPRISE_TRY(roof, make_roof(engine_, pool));
    }
    const Room room{memory_ > 0 ? memory_ : roof->free_bytes(),
                    file.tensor_bytes(whole, engine_.tp, floats), kWorkspace, cuda};
    const std::vector<KvChoice> choices = kv_choices(config, engine_);
    const uint64_t block_bytes = choices.front().bytes_per_token * kPageTokens;
    REPRISE_CHECK(check_disk(engine_, block_bytes / config.n_layer));
    if (policy_.spec != "full") {
      REPRISE_CHECK(go_on());
      REPRISE_TRY(policy_.memory,
                  PolicyMemory::measure(policy_.spec, config, pool, console.progress()));
      console.end_progress();
    }
    ordered_json json = {{"model", file.path()},
                         {"device", engine_.device},
                         {"tp", engine_.tp},
                         {"precision", engine_.precision},
                         {"policy", policy_.spec},
                         {"trained_context", config.context},
                         {"memory",
                          {{"available", room.available},
                           {"weights", room.weights},
                           {"workspace", room.workspace},
                           {"for_kv", room.for_kv()}}},
                         {"contexts", context_rows(config, room, choices, policy_)},
                         {"tiers", tier_rows(engine_, room, choices)},
                         {"advice", advice(config, room, choices, policy_, engine_.tp)}};
    if (speed_ || (cuda && roof != nullptr)) {
      REPRISE_CHECK(go_on());
      const MachineRoof machine = roof->machine();
      if (cuda) json["device"] = machine.device;
      json["read_gb_s"] = machine.read_gb_s;
      json["decode_roof"] =
          roof_rows(config, room, choices.front(), machine.read_gb_s / engine_.tp);
    }
    REPRISE_CHECK(go_on());
    return console.json() ? console.print_json(json) : console.print(as_text(json, choices));
  }

 private:
  // Measurements take seconds and are not stopped themselves.
  static Status go_on() {
    return interrupted() ? fail(ErrorCode::kCancelled, "measuring was stopped") : Status();
  }

  EngineOptions engine_;
  PlannedPolicy policy_;
  bool speed_ = false;
  uint64_t memory_ = 0;
};

}  // namespace

std::unique_ptr<Command> make_fit_command() { return std::make_unique<FitCommand>(); }

}  // namespace reprise::cli
