#include "reprise/options.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <vector>

#include "base/nearest.h"
#include "base/try.h"
#include "reprise/library.h"

namespace reprise {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string with_unit(const OptionSpec& spec) {
  return spec.unit.empty() ? std::string() : fmt::format(" {}", spec.unit);
}

template <class... Args>
tl::unexpected<Error> refuse(const OptionSpec& spec, std::string_view text,
                             fmt::format_string<Args...> allowed, Args&&... args) {
  return fail(ErrorCode::kInvalidArgument, "{}: \"{}\" is not {}", spec.name, text,
              fmt::format(allowed, std::forward<Args>(args)...));
}

// 2^10, 2^20, ... for the last letter of "32K", "1.5G"; "KiB" and "KB" mean the same. Consumes it.
double take_multiplier(std::string_view& text) {
  const std::string_view letters = "KMGT";
  std::string_view rest = text;
  for (const std::string_view ending : {"iB", "B"}) {
    if (rest.size() > ending.size() && rest.ends_with(ending)) {
      rest.remove_suffix(ending.size());
      break;
    }
  }
  if (rest.empty()) return 1;
  const char last = rest.back() >= 'a' ? static_cast<char>(rest.back() - 'a' + 'A') : rest.back();
  const size_t power = letters.find(last);
  if (power == std::string_view::npos) return 1;
  rest.remove_suffix(1);
  text = rest;
  return std::ldexp(1.0, 10 * static_cast<int>(power + 1));
}

// Whole numbers; "32K", "1.5G" where the unit makes that meaningful.
template <class T>
Status parse_whole(const OptionSpec& spec, std::string_view text, T& field) {
  const auto refused = [&] {
    return refuse(spec, text, "a whole number from {:.0f} to {:.0f}{}", spec.min, spec.max,
                  with_unit(spec));
  };
  std::string_view digits = text;
  const double multiplier =
      spec.unit == "bytes" || spec.unit == "tokens" ? take_multiplier(digits) : 1;
  if (multiplier == 1) {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return refused();
    const auto number = static_cast<double>(value);
    if (number < spec.min || number > spec.max || value > std::numeric_limits<T>::max())
      return refused();
    field = static_cast<T>(value);
    return {};
  }
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return refused();
  value = std::floor(value * multiplier);
  const double type_limit = std::ldexp(1.0, std::numeric_limits<T>::digits);
  if (!(value >= spec.min && value <= spec.max && value >= 0 && value < type_limit))
    return refused();
  field = static_cast<T>(value);
  return {};
}

template <class Options>
Status validate_all(const Options& options) {
  Options copy = options;
  Status status;
  visit_options(copy, [&](const OptionSpec& spec, auto& field) {
    if (status) status = parse_option(spec, format_option(field), field);
  });
  return status;
}

}  // namespace

Status parse_option(const OptionSpec& spec, std::string_view text, bool& field) {
  for (const std::string_view yes : {"true", "1", "on", "yes"})
    if (text == yes) return field = true, Status();
  for (const std::string_view no : {"false", "0", "off", "no"})
    if (text == no) return field = false, Status();
  return refuse(spec, text, "true or false");
}

Status parse_option(const OptionSpec& spec, std::string_view text, uint32_t& field) {
  return parse_whole(spec, text, field);
}

Status parse_option(const OptionSpec& spec, std::string_view text, uint64_t& field) {
  return parse_whole(spec, text, field);
}

Status parse_option(const OptionSpec& spec, std::string_view text, float& field) {
  float value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) ||
      value < static_cast<float>(spec.min) || value > static_cast<float>(spec.max))
    return refuse(spec, text, "a number from {} to {}{}", spec.min, spec.max, with_unit(spec));
  field = value;
  return {};
}

Status parse_option(const OptionSpec& spec, std::string_view text, std::string& field) {
  if (!spec.choices.empty()) {
    const std::vector<std::string_view> words = split(spec.choices, '|');
    bool known = false;
    for (const std::string_view word : words) known = known || word == text;
    if (!known)
      return refuse(spec, text, "one of {}{}", fmt::join(words, ", "), suggestion(text, words));
  }
  field = text;
  return {};
}

std::string format_option(bool value) { return value ? "true" : "false"; }
std::string format_option(uint32_t value) { return fmt::format("{}", value); }
std::string format_option(uint64_t value) { return fmt::format("{}", value); }
std::string format_option(float value) { return fmt::format("{}", value); }
std::string format_option(const std::string& value) { return value; }

Status validate(const EngineOptions& options) {
  REPRISE_CHECK(validate_all(options));
  if (options.device == "cuda") return {};
  if (options.kv_host > 0 || options.kv_hot > 0) {
    return fail(ErrorCode::kUnsupported,
                "--kv-host and --kv-hot are there with --device cuda only; raise --kv-memory, or "
                "give --kv-disk");
  }
  if (options.tp == 1) return {};
  return fail(ErrorCode::kInvalidArgument,
              "--tp {} shares a model among GPUs; add --device cuda, or leave --tp out",
              options.tp);
}
Status validate(const SamplingOptions& options) { return validate_all(options); }
Status validate(const LibraryOptions& options) { return validate_all(options); }

}  // namespace reprise
