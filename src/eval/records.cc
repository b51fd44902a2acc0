#include "eval/records.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/mapped_file.h"
#include "base/try.h"

namespace reprise::eval {
namespace {

using nlohmann::ordered_json;

constexpr uint32_t kSchema = 1;

// Whole numbers are written without ".0"; the others with as many digits as give them back.
ordered_json number(double value) {
  constexpr double kExactIntegers = 0x1p53;
  if (!std::isfinite(value)) return nullptr;
  const bool whole = std::trunc(value) == value && std::abs(value) < kExactIntegers;
  if (whole && !(value == 0 && std::signbit(value))) return static_cast<int64_t>(value);
  return value;
}

ordered_json object(const NamedNumbers& numbers) {
  ordered_json json = ordered_json::object();
  for (const auto& [name, value] : numbers) json[name] = number(value);
  return json;
}

std::string line(const ordered_json& json) {
  // Predictions may end inside a character; such bytes become U+FFFD.
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// The fields of one line; the first that is missing or of another kind than asked for is kept as
// the line's error.
class Fields {
 public:
  explicit Fields(const ordered_json& json) : json_(json) {}

  const Status& status() const { return status_; }

  void required(const char* name, std::string& value) {
    if (json_.contains(name)) return read(name, value);
    reject(name, "is missing");
  }
  void read(const char* name, std::string& value) {
    const ordered_json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_string()) return reject(name, "is not a text");
    value = field->get_ref<const std::string&>();
  }
  void read(const char* name, uint64_t& value) {
    const ordered_json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_number_unsigned()) return reject(name, "is not a whole number from 0");
    value = field->get<uint64_t>();
  }
  void read(const char* name, double& value) {
    if (const ordered_json* field = find(name); field != nullptr) to_number(name, *field, value);
  }
  void read(const char* name, bool& value) {
    const ordered_json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_boolean()) return reject(name, "is neither true nor false");
    value = field->get<bool>();
  }
  void read(const char* name, NamedNumbers& values) {
    const ordered_json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_object()) return reject(name, "is not an object of numbers");
    for (const auto& [key, item] : field->items())
      to_number(name, item, values.emplace_back(key, 0.0).second);
  }
  void read(const char* name, std::vector<std::string>& values) {
    const ordered_json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_array()) return reject(name, "is not an array of texts");
    for (const ordered_json& item : *field) {
      if (!item.is_string()) return reject(name, "is not an array of texts");
      values.push_back(item.get<std::string>());
    }
  }
  void read(const char* name, std::vector<std::pair<std::string, std::string>>& values) {
    const ordered_json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_object()) return reject(name, "is not an object of texts");
    for (const auto& [key, item] : field->items()) {
      if (!item.is_string()) return reject(name, "is not an object of texts");
      values.emplace_back(key, item.get<std::string>());
    }
  }

 private:
  const ordered_json* find(const char* name) const {
    const auto at = json_.find(name);
    return at == json_.end() ? nullptr : &*at;
  }
  void to_number(const char* name, const ordered_json& item, double& value) {
    if (item.is_null())
      value = std::numeric_limits<double>::quiet_NaN();
    else if (item.is_number())
      value = item.get<double>();
    else
      reject(name, "is not a number");
  }
  void reject(const char* name, const char* what) {
    if (status_) status_ = fail(ErrorCode::kBadJson, "field \"{}\" {}", name, what);
  }

  const ordered_json& json_;
  Status status_;
};

Status read_run(Fields& fields, RunFile& into) {
  RunRecord run;
  uint64_t schema = kSchema;
  fields.read("schema", schema);
  if (schema > kSchema)
    return fail(ErrorCode::kUnsupportedVersion,
                "the run has schema {}, this version reads up to {}; update reprise", schema,
                kSchema);
  fields.required("id", run.id);
  fields.read("time", run.time);
  fields.read("version", run.version);
  fields.read("model", run.model);
  fields.read("model_sha256", run.model_sha256);
  fields.read("quantization", run.quantization);
  fields.read("kv_type", run.kv_type);
  fields.read("weight_bytes", run.weight_bytes);
  fields.read("machine", run.machine);
  fields.required("policy", run.policy);
  fields.read("scope", run.scope);
  fields.read("context", run.context);
  fields.read("seed", run.seed);
  fields.read("data", run.data);
  into.runs.push_back(std::move(run));
  return fields.status();
}

Status read_sample(Fields& fields, RunFile& into) {
  SampleRecord sample;
  fields.required("run", sample.run);
  fields.required("task", sample.task);
  fields.required("id", sample.id);
  fields.read("prompt_tokens", sample.prompt_tokens);
  fields.read("generated_tokens", sample.generated_tokens);
  fields.read("truncated", sample.truncated);
  fields.read("finish", sample.finish);
  fields.read("error", sample.error);
  fields.read("prediction", sample.prediction);
  fields.read("references", sample.references);
  fields.read("scores", sample.scores);
  fields.read("axes", sample.axes);
  fields.read("counters", sample.counters);
  fields.read("timing", sample.timing);
  into.samples.push_back(std::move(sample));
  return fields.status();
}

Status read_step(Fields& fields, RunFile& into) {
  StepRecord step;
  fields.required("run", step.run);
  fields.required("task", step.task);
  fields.required("id", step.id);
  fields.read("position", step.position);
  fields.read("values", step.values);
  into.steps.push_back(std::move(step));
  return fields.status();
}

Status read_summary(Fields& fields, RunFile& into) {
  SummaryRecord summary;
  fields.required("run", summary.run);
  fields.required("task", summary.task);
  fields.read("metric", summary.metric);
  fields.read("n", summary.n);
  fields.read("failed", summary.failed);
  fields.read("score", summary.score);
  fields.read("low", summary.low);
  fields.read("high", summary.high);
  fields.read("counters", summary.counters);
  into.summaries.push_back(std::move(summary));
  return fields.status();
}

bool declared(const RunFile& file, std::string_view run) {
  // Lines of one run follow each other, so the last runs are the likely ones.
  for (size_t i = file.runs.size(); i-- > 0;)
    if (file.runs[i].id == run) return true;
  return false;
}

Status read_line(const ordered_json& json, RunFile& into) {
  std::string type;
  Fields fields(json);
  fields.required("type", type);
  if (!fields.status()) return fields.status();
  if (type == "run") return read_run(fields, into);
  std::string run;
  fields.required("run", run);
  if (fields.status() && !declared(into, run))
    return fail(ErrorCode::kBadJson, "no line before this one declares run \"{}\"", run);
  if (type == "sample") return read_sample(fields, into);
  if (type == "step") return read_step(fields, into);
  if (type == "summary") return read_summary(fields, into);
  return fail(ErrorCode::kBadJson, "\"{}\" is not a type of record", type);
}

}  // namespace

std::string to_line(const RunRecord& run) {
  ordered_json data = ordered_json::object();
  for (const auto& [task, hash] : run.data) data[task] = hash;
  return line({{"type", "run"},
               {"schema", run.schema},
               {"id", run.id},
               {"time", run.time},
               {"version", run.version},
               {"model", run.model},
               {"model_sha256", run.model_sha256},
               {"quantization", run.quantization},
               {"kv_type", run.kv_type},
               {"weight_bytes", run.weight_bytes},
               {"machine", run.machine},
               {"policy", run.policy},
               {"scope", run.scope},
               {"context", run.context},
               {"seed", run.seed},
               {"data", data}});
}

std::string to_line(const SampleRecord& sample) {
  ordered_json json = {{"type", "sample"},
                       {"run", sample.run},
                       {"task", sample.task},
                       {"id", sample.id},
                       {"prompt_tokens", sample.prompt_tokens},
                       {"generated_tokens", sample.generated_tokens},
                       {"truncated", sample.truncated},
                       {"finish", sample.finish}};
  if (!sample.error.empty()) json["error"] = sample.error;
  json["prediction"] = sample.prediction;
  json["references"] = sample.references;
  json["scores"] = object(sample.scores);
  json["axes"] = object(sample.axes);
  json["counters"] = object(sample.counters);
  json["timing"] = object(sample.timing);
  return line(json);
}

std::string to_line(const StepRecord& step) {
  return line({{"type", "step"},
               {"run", step.run},
               {"task", step.task},
               {"id", step.id},
               {"position", step.position},
               {"values", object(step.values)}});
}

std::string to_line(const SummaryRecord& summary) {
  return line({{"type", "summary"},
               {"run", summary.run},
               {"task", summary.task},
               {"metric", summary.metric},
               {"n", summary.n},
               {"failed", summary.failed},
               {"score", number(summary.score)},
               {"low", number(summary.low)},
               {"high", number(summary.high)},
               {"counters", object(summary.counters)}});
}

Status read_run_file(const std::string& path, RunFile& into) {
  REPRISE_TRY(const MappedFile file, MappedFile::open(path));
  into.path = path;
  std::string_view rest(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  for (size_t number = 1; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    const std::string_view text = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const ordered_json json = ordered_json::parse(text, nullptr, false);
    if (json.is_discarded() && end == std::string_view::npos) return {};
    Status status = json.is_object() ? read_line(json, into)
                                     : fail(ErrorCode::kBadJson, "this line is not a JSON object");
    if (!status)
      return fail(status.error().code, "{}:{}: {}", path, number, status.error().message);
  }
  return {};
}

}  // namespace reprise::eval
