// Options, each declared once: this declaration feeds the command line, REPRISE_* variables, the
// configuration file, policy specs, JSON and the documentation.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "reprise/error.h"

namespace reprise {

struct OptionSpec {
  std::string_view name;  ///< long name without dashes; REPRISE_NAME with '-' as '_' is its twin
  std::string_view help;  ///< one line
  std::string_view unit = {};  ///< "tokens", "bytes" (then 512M, 2G are read), ...; may be empty
  double min = 0;              ///< smallest allowed number
  double max = std::numeric_limits<uint32_t>::max();  ///< largest allowed number
  std::string_view choices = {};  ///< allowed words, separated by '|'; empty = any
};

/// An option as listed by `policies` and `--help`.
struct OptionInfo {
  std::string name, type, default_value, help, unit, choices;
  double min = 0, max = 0;
};

/// Sets a field from text. kInvalidArgument names the option, the text and what is allowed.
Status parse_option(const OptionSpec& spec, std::string_view text, bool& field);
Status parse_option(const OptionSpec& spec, std::string_view text, uint32_t& field);
Status parse_option(const OptionSpec& spec, std::string_view text, uint64_t& field);
Status parse_option(const OptionSpec& spec, std::string_view text, float& field);
Status parse_option(const OptionSpec& spec, std::string_view text, std::string& field);

/// A field's value as parse_option reads it.
std::string format_option(bool value);
std::string format_option(uint32_t value);
std::string format_option(uint64_t value);
std::string format_option(float value);
std::string format_option(const std::string& value);

/// EngineOptions::kv_type: the type is chosen when the engine is loaded; ModelInfo::kv_type has it.
inline constexpr const char* kAutoKvType = "auto";

/// How and where a model runs.
struct EngineOptions {
  std::string model = "smollm2";
  uint32_t ctx = 0;
  uint32_t threads = 0;
  uint32_t chunk = 512;
  uint32_t batch = 16;
  uint64_t kv_memory = 0;
  uint64_t kv_host = 0;
  uint64_t kv_hot = 0;
  std::string kv_disk;
  uint64_t kv_disk_size = 0;
  std::string kv_prefetch = "token";
  std::string kv_type = kAutoKvType;
  /// A session file whose KV type "auto" takes on a CPU, so that Session::restore can use it; no
  /// flag.
  std::string kv_type_of;
  std::string precision = "fast";
  std::string chat_template;
  bool prefix_cache = true;
  std::string device = "cpu";
  uint32_t tp = 1;
};

/// How tokens are chosen. temperature 0 is greedy and deterministic.
struct SamplingOptions {
  float temp = 0.0f;
  uint32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repeat_penalty = 1.0f;
  uint32_t repeat_window = 64;
  uint64_t seed = 0;
};

template <class Visitor>
void visit_options(EngineOptions& o, Visitor&& visit) {
  visit(OptionSpec{"model",
                   "GGUF file, safetensors folder, smollm2 (the default model), or random:NAME "
                   "(noise, for bench)"},
        o.model);
  visit(OptionSpec{"ctx", "context limit; 0 = the model's trained length", "tokens", 0, 1 << 24},
        o.ctx);
  visit(OptionSpec{"threads", "threads; 0 = every usable core", "", 0, 1024}, o.threads);
  visit(OptionSpec{"prefill-chunk", "prompt tokens computed per step; a cancel waits for one step",
                   "tokens", 16, 8192},
        o.chunk);
  visit(OptionSpec{"batch", "sequences computed together at most", "sequences", 1, 1024}, o.batch);
  visit(OptionSpec{"kv-memory",
                   "limit of KV memory; 0 = half of the free memory, four fifths of a GPU's",
                   "bytes", 0, 0x1p50},
        o.kv_memory);
  visit(OptionSpec{"kv-host", "page-locked memory beside the GPU's, for KV that has no room there",
                   "bytes", 0, 0x1p50},
        o.kv_host);
  visit(OptionSpec{"kv-hot",
                   "GPU memory beside --kv-memory for pages of --kv-host that are read again and "
                   "again, or expected to be read next",
                   "bytes", 0, 0x1p50},
        o.kv_hot);
  visit(OptionSpec{"kv-disk", "folder for KV that no memory has room for; empty = it is dropped",
                   "dir"},
        o.kv_disk);
  visit(OptionSpec{"kv-disk-size", "limit of KV on disk; 0 = half of what is free there", "bytes",
                   0, 0x1p50},
        o.kv_disk_size);
  visit(
      OptionSpec{
          "kv-prefetch",
          "what is read before it is asked for, from disk (cpu) or the host's memory "
          "(cuda, with --kv-hot), where a request's KV does not fit in memory: nothing, the "
          "next layer's pages (layer-once: they are not kept for the next token), or the next "
          "token's",
          "", 0, 0, "none|layer|layer-once|token"},
      o.kv_prefetch);
  visit(OptionSpec{"kv-type",
                   "element type of keys and values; auto: bf12 where that gains (cpu with AVX-512 "
                   "and no AMX, no --kv-disk), else bf16; on a cpu, the type of a file that "
                   "--session names comes first; bf12, f32 and q8_0: cpu, fp8: cuda",
                   "", 0, 0, "auto|bf16|bf12|f16|f32|q8_0|fp8"},
        o.kv_type);
  visit(OptionSpec{"precision",
                   "fast, or f32: weights, KV and every product in float, several times slower and "
                   "larger; then devices write the same",
                   "", 0, 0, "fast|f32"},
        o.precision);
  visit(OptionSpec{"chat-template",
                   "prompt format in place of the model's own: a file with a Jinja template, or "
                   "chatml, gemma, granite, llama2, llama3, mistral, phi3, qwen, vicuna, zephyr"},
        o.chat_template);
  visit(OptionSpec{"prefix-cache", "keep the KV of prompts for later prompts that start alike"},
        o.prefix_cache);
  visit(OptionSpec{"device", "where to compute", "", 0, 0, "cpu|cuda"}, o.device);
  visit(OptionSpec{"tp", "GPUs that share the model and its KV (tensor parallelism)", "", 1, 8},
        o.tp);
}

template <class Visitor>
void visit_options(SamplingOptions& o, Visitor&& visit) {
  visit(OptionSpec{"temp", "temperature; 0 = greedy", "", 0, 100}, o.temp);
  visit(OptionSpec{"top-k", "sample among the k likeliest tokens; 0 = all", "tokens"}, o.top_k);
  visit(OptionSpec{"top-p", "sample among the likeliest tokens whose mass reaches p", "", 0, 1},
        o.top_p);
  visit(OptionSpec{"min-p", "drop tokens less likely than p times the likeliest", "", 0, 1},
        o.min_p);
  visit(OptionSpec{"repeat-penalty", "divide the logits of recent tokens; 1 = off", "", 0.1, 10},
        o.repeat_penalty);
  visit(OptionSpec{"repeat-window", "tokens that the penalty looks back", "tokens", 0, 1 << 20},
        o.repeat_window);
  visit(OptionSpec{"seed", "seed of sampling; equal seeds give equal answers", "", 0, 0x1p63},
        o.seed);
}

/// Checks every field against its declaration, for options that were set by code.
Status validate(const EngineOptions& options);
Status validate(const SamplingOptions& options);

}  // namespace reprise
