#include "attention/registry.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

#include "base/nearest.h"
#include "base/try.h"

namespace reprise {
namespace {

constexpr std::ptrdiff_t kMostDecorators = 32;  // every one is a call inside the one on its left

Result<const PolicyEntry*> find_entry(std::span<const PolicyEntry> entries, std::string_view name) {
  std::vector<std::string_view> names;
  for (const PolicyEntry& entry : entries) {
    if (entry.name == name) return &entry;
    names.push_back(entry.name);
  }
  return fail(ErrorCode::kUnknownPolicy,
              "no policy is called \"{}\"{}; `reprise policies` lists them", name,
              suggestion(name, names));
}

}  // namespace

Result<MethodSpec> parse_spec(std::string_view what, std::string_view text) {
  MethodSpec spec;
  const size_t colon = text.find(':');
  spec.name = std::string(text.substr(0, colon));
  if (colon == std::string_view::npos) return spec;
  std::string_view rest = text.substr(colon + 1);
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return fail(ErrorCode::kInvalidArgument,
                  "{} \"{}\": \"{}\" is not option=value; write name:option=value,option=value",
                  what, text, item);
    }
    spec.options.emplace_back(item.substr(0, equals), item.substr(equals + 1));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return spec;
}

Result<std::unique_ptr<Policy>> create_policy(std::span<const PolicyEntry> entries,
                                              std::string_view spec, const ModelConfig& config) {
  if (std::ranges::count(spec, '+') > kMostDecorators) {
    return fail(ErrorCode::kInvalidArgument,
                "policy \"{}...\": more than {} decorators stand left of each other",
                spec.substr(0, std::min<size_t>(spec.find('+'), 32)), kMostDecorators);
  }
  const size_t plus = spec.find('+');
  REPRISE_TRY(const MethodSpec parsed, parse_spec("policy", spec.substr(0, plus)));
  REPRISE_TRY(const PolicyEntry* entry, find_entry(entries, parsed.name));
  std::unique_ptr<Policy> inner;
  if (plus != std::string_view::npos) {
    if (!entry->decorator) {
      return fail(ErrorCode::kInvalidArgument,
                  "policy \"{}\": {} cannot stand left of \"+\", it decorates no other policy",
                  spec, entry->name);
    }
    REPRISE_TRY(inner, create_policy(entries, spec.substr(plus + 1), config));
  } else if (entry->decorator && !entry->default_inner.empty()) {
    REPRISE_TRY(inner, create_policy(entries, entry->default_inner, config));
  }
  REPRISE_TRY(auto policy, entry->create(parsed.options, config, std::move(inner)));
  policy->set_spec(spec);
  return policy;
}

Status unknown_option(std::string_view whose, std::string_view name,
                      std::span<const OptionInfo> known) {
  if (known.empty()) {
    return fail(ErrorCode::kUnknownOption, "{} has no options, \"{}\" was given", whose, name);
  }
  std::vector<std::string_view> names;
  for (const OptionInfo& option : known) names.push_back(option.name);
  return fail(ErrorCode::kUnknownOption, "{} has no option \"{}\"{}; it has {}", whose, name,
              suggestion(name, names), fmt::join(names, ", "));
}

OptionInfo describe_option(const OptionSpec& spec, std::string_view type, std::string value) {
  return {
      std::string(spec.name), std::string(type),         std::move(value), std::string(spec.help),
      std::string(spec.unit), std::string(spec.choices), spec.min,         spec.max};
}

}  // namespace reprise
