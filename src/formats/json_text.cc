#include "formats/json_text.h"

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "formats/printable.h"
#include "formats/safetensors.h"

namespace reprise {
namespace {

using Json = nlohmann::json;

// Walks the events of nlohmann's iterative parser, so nesting costs no stack; stops at the first
// offence and keeps it.
class Checker final : public nlohmann::json_sax<Json> {
 public:
  Checker(std::string_view name, const JsonLimits& limits) : name_(name), limits_(limits) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(Json::number_integer_t) override { return true; }
  bool number_unsigned(Json::number_unsigned_t) override { return true; }
  bool number_float(Json::number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  bool start_object(size_t) override { return enter(); }
  bool start_array(size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }

  bool key(std::string& text) override {
    if (!limits_.unique_keys || keys_.back().insert(text).second) return true;
    error_ = Error{ErrorCode::kDuplicateKey,
                   fmt::format("{}: key {} appears twice in one object", name_, printable(text))};
    return false;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    error_ =
        Error{ErrorCode::kBadJson, fmt::format("{}: not valid JSON at byte {}", name_, position)};
    return false;
  }

  std::optional<Error> take_error() { return std::move(error_); }

 private:
  bool enter() {
    keys_.emplace_back();
    if (keys_.size() <= static_cast<size_t>(limits_.max_depth)) return true;
    error_ = Error{ErrorCode::kTooDeep, fmt::format("{}: JSON is nested deeper than {} levels",
                                                    name_, limits_.max_depth)};
    return false;
  }
  bool leave() {
    keys_.pop_back();
    return true;
  }

  std::string_view name_;
  const JsonLimits& limits_;
  std::vector<std::set<std::string>> keys_;  // of the open objects; its size is the depth
  std::optional<Error> error_;
};

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view name, const JsonLimits& limits) {
  Checker checker(name, limits);
  if (!Json::sax_parse(text, &checker)) {
    if (auto error = checker.take_error()) return tl::unexpected<Error>(std::move(*error));
    return fail(ErrorCode::kBadJson, "{}: not valid JSON", name);
  }
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

Result<Json> parse_json(std::string_view text, std::string_view name, int max_depth) {
  return parse_json(text, name, JsonLimits{.max_depth = max_depth});
}

}  // namespace reprise
