// `reprise inspect`: what is in a model file.
#include <algorithm>
#include <map>

#include "base/try.h"
#include "cli/command.h"
#include "cli/model_file.h"
#include "cli/text.h"
#include "reprise/options.h"

namespace reprise::cli {
namespace {

using nlohmann::ordered_json;

struct TypeTotal {
  uint64_t tensors = 0, elements = 0, bytes = 0;
};

uint64_t elements(const TensorView& tensor) {
  uint64_t count = 1;
  for (const uint64_t size : tensor.shape) count *= size;  // checked when the file was read
  return count;
}

std::string_view type_name(const TensorView& tensor) { return tensor_type_info(tensor.type).name; }

std::string_view tokenizer_name(TokenizerModel model) {
  switch (model) {
    case TokenizerModel::kByteBpe:
      return "byte-level BPE";
    case TokenizerModel::kSentencePieceBpe:
      return "SentencePiece BPE";
    case TokenizerModel::kUnigram:
      return "SentencePiece unigram";
  }
  return "";
}

ordered_json model_json(const ModelConfig& c) {
  ordered_json kv;
  for (const kernels::KvType type : kernels::kKvTypes) {
    if (!kernels::suits(type, c.head_dim)) continue;
    kv[std::string(kv_type_name(type))] = kv_bytes_per_token(c, type);
  }
  const auto windows = static_cast<size_t>(
      std::count_if(c.window.begin(), c.window.end(), [](uint32_t window) { return window > 0; }));
  return {{"architecture", c.architecture},
          {"name", c.name},
          {"layers", c.n_layer},
          {"hidden", c.hidden},
          {"heads", c.n_head},
          {"kv_heads", c.n_kv_head},
          {"head_dim", c.head_dim},
          {"ffn", c.ffn},
          {"vocab", c.vocab},
          {"context", c.context},
          {"rope_theta", c.rope.theta},
          {"rope_dims", c.rope.dims},
          {"sliding_window_layers", windows},
          {"tied_embeddings", c.tied_embeddings},
          {"kv_bytes_per_token", kv}};
}

ordered_json tokenizer_json(const ModelFile& file) {
  const auto data = file.tokenizer();
  if (!data) return {{"error", data.error().message}};
  ordered_json json = {{"model", tokenizer_name(data->model)}, {"tokens", data->tokens.size()}};
  if (!data->gguf_pre.empty()) json["pre_tokenizer"] = data->gguf_pre;
  if (data->bos) json["bos"] = data->tokens.at(static_cast<size_t>(*data->bos));
  if (data->eos) json["eos"] = data->tokens.at(static_cast<size_t>(*data->eos));
  json["add_bos"] = data->add_bos;
  json["chat_template"] = data->chat_template;
  return json;
}

ordered_json quantization_json(const ModelFile& file) {
  std::map<std::string, TypeTotal> totals;
  for (const TensorView& tensor : file.tensors()) {
    TypeTotal& total = totals[std::string(type_name(tensor))];
    ++total.tensors;
    total.elements += elements(tensor);
    total.bytes += tensor.bytes.size();
  }
  auto list = ordered_json::array();
  for (const auto& [name, total] : totals)
    list.push_back({{"type", name},
                    {"tensors", total.tensors},
                    {"parameters", total.elements},
                    {"bytes", total.bytes}});
  return list;
}

ordered_json tensors_json(const ModelFile& file) {
  auto list = ordered_json::array();
  for (const TensorView& tensor : file.tensors())
    list.push_back({{"name", tensor.name},
                    {"type", type_name(tensor)},
                    {"shape", tensor.shape},
                    {"bytes", tensor.bytes.size()}});
  return list;
}

// "key: value" lines; long texts by their length.
std::string facts_text(const ordered_json& object) {
  std::string text;
  for (const auto& [key, value] : object.items()) {
    std::string shown = value.is_string() ? value.get<std::string>() : value.dump();
    if (key == "chat_template")
      shown = shown.empty() ? "none; its family's own is used" : grouped(shown.size()) + " bytes";
    if (value.is_number_unsigned()) shown = grouped(value.get<uint64_t>());
    if (value.is_object()) {
      shown.clear();
      for (const auto& [name, part] : value.items())
        shown +=
            fmt::format("{}{} {}", shown.empty() ? "" : ", ", name, grouped(part.get<uint64_t>()));
    }
    text += fmt::format("  {:<22} {}\n", key, shown);
  }
  return text;
}

std::string as_text(const ordered_json& json) {
  std::string text = fmt::format("{}\n  {:<22} {}, {}\n", json["path"].get<std::string>(), "format",
                                 json["format"].get<std::string>(),
                                 bytes_text(json["tensor_bytes"].get<uint64_t>()));
  if (json.contains("other_tensors"))
    text += fmt::format("  {:<22} {} tensors, not of the text model\n", "not read",
                        grouped(json["other_tensors"].get<uint64_t>()));
  text += "model\n" + facts_text(json["model"]) + "tokenizer\n" + facts_text(json["tokenizer"]);
  Table types({"tensor type", "tensors", "parameters", "bytes"});
  for (const auto& type : json["quantization"])
    types.add({type["type"], grouped(type["tensors"]), grouped(type["parameters"]),
               grouped(type["bytes"])});
  text += types.text();
  if (!json.contains("tensors")) return text;
  Table tensors({"tensor", "type", "shape", "bytes"});
  for (const auto& tensor : json["tensors"])
    tensors.add({tensor["name"], tensor["type"], tensor["shape"].dump(), grouped(tensor["bytes"])});
  return text + tensors.text();
}

class InspectCommand : public Command {
 public:
  std::string_view name() const override { return "inspect"; }
  std::string_view summary() const override { return "show what is in a model file"; }
  std::string_view examples() const override {
    return R"(  reprise inspect                        the default model
  reprise inspect model.gguf --tensors
  reprise inspect folder-with-safetensors --json)";
  }
  void declare(FlagSet& flags) override {
    visit_options(engine_, [&](const OptionSpec& spec, auto& field) {
      if (spec.name == "model") flags.add(spec, field);
    });
    flags.add_positional({"file", "the model, in place of -m", "file"}, path_);
    flags.add({"tensors", "list every tensor"}, tensors_);
  }
  Status run(Console& console) override {
    REPRISE_TRY(const ModelFile file, ModelFile::open(path_.empty() ? engine_.model : path_));
    REPRISE_TRY(const ModelConfig config, file.config());
    ordered_json json = {{"path", file.path()},
                         {"format", file.format()},
                         {"tensor_bytes", file.tensor_bytes()},
                         {"model", model_json(config)},
                         {"tokenizer", tokenizer_json(file)},
                         {"quantization", quantization_json(file)}};
    if (file.other_tensors() != 0) json["other_tensors"] = file.other_tensors();
    if (tensors_) json["tensors"] = tensors_json(file);
    return console.json() ? console.print_json(json) : console.print(as_text(json));
  }

 private:
  EngineOptions engine_;
  std::string path_;
  bool tensors_ = false;
};

}  // namespace

std::unique_ptr<Command> make_inspect_command() { return std::make_unique<InspectCommand>(); }

}  // namespace reprise::cli
