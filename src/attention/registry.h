// Attention policies by name: parsing "name:option=value,...+name" and listing what there is.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attention/policy.h"
#include "model/config.h"
#include "reprise/options.h"

namespace reprise {

using OptionValues = std::span<const std::pair<std::string, std::string>>;

/// One registered policy.
struct PolicyEntry {
  std::string_view name;
  std::string_view summary;  ///< one line
  std::string_view source;   ///< the paper
  bool decorator = false;    ///< stands left of "+" and changes what the policy on its right does
  /// What a decorator changes when nothing stands on its right; empty: it gets null then.
  std::string_view default_inner;
  std::vector<OptionInfo> options;
  /// inner is null for those that are no decorators.
  std::function<Result<std::unique_ptr<Policy>>(OptionValues, const ModelConfig&,
                                                std::unique_ptr<Policy> inner)>
      create;
};

/// Parts of "name:option=value,...".
struct MethodSpec {
  std::string name;
  std::vector<std::pair<std::string, std::string>> options;
};
/// what: "policy", for messages. kInvalidArgument.
Result<MethodSpec> parse_spec(std::string_view what, std::string_view text);

/// Sets options from their texts. kUnknownOption names the nearest one. whose: "policy full".
template <class Options>
Status assign_options(std::string_view whose, OptionValues values, Options& options);

/// The entry of a policy class P with options O, constructed as P(const O&, const ModelConfig&), or
/// as P(const O&, const ModelConfig&, std::unique_ptr<Policy> inner) if it is a decorator, or by a
/// static create() of either's parameters that may fail. A decorator with a static Status
/// check_inner(const Policy&) refuses policies with it.
template <class P, class O>
PolicyEntry policy_entry(std::string_view name, std::string_view summary, std::string_view source,
                         std::string_view default_inner = "full");

/// Creates what spec describes from entries: "name:option=value,...", decorators joined by "+" on
/// its left. kUnknownPolicy and kUnknownOption name the nearest; kInvalidArgument for a bad value,
/// a spec that does not parse, or more decorators than anybody needs; kUnsupported when what stands
/// left of "+" is no decorator.
Result<std::unique_ptr<Policy>> create_policy(std::span<const PolicyEntry> entries,
                                              std::string_view spec, const ModelConfig& config);

Status unknown_option(std::string_view whose, std::string_view name,
                      std::span<const OptionInfo> known);
OptionInfo describe_option(const OptionSpec& spec, std::string_view type, std::string value);

template <class Field>
constexpr std::string_view option_type() {
  if constexpr (std::is_same_v<Field, bool>)
    return "bool";
  else if constexpr (std::is_same_v<Field, float>)
    return "float";
  else if constexpr (std::is_same_v<Field, std::string>)
    return "string";
  else
    return "int";
}

template <class Options>
std::vector<OptionInfo> describe_options() {
  std::vector<OptionInfo> described;
  Options defaults;
  visit_options(defaults, [&](const OptionSpec& spec, auto& field) {
    described.push_back(
        describe_option(spec, option_type<std::decay_t<decltype(field)>>(), format_option(field)));
  });
  return described;
}

template <class Options>
Status assign_options(std::string_view whose, OptionValues values, Options& options) {
  for (const auto& [name, text] : values) {
    bool known = false;
    Status status;
    visit_options(options, [&, &option = name, &value = text](const OptionSpec& spec, auto& field) {
      if (spec.name != option) return;
      known = true;
      status = parse_option(spec, value, field);
    });
    if (!known) return unknown_option(whose, name, describe_options<Options>());
    if (!status) return status;
  }
  return {};
}

template <class P, class O>
PolicyEntry policy_entry(std::string_view name, std::string_view summary, std::string_view source,
                         std::string_view default_inner) {
  constexpr bool kCreates = requires(const O& options, const ModelConfig& config) {
    P::create(options, config, std::unique_ptr<Policy>());
  };
  constexpr bool kCreatesAlone = requires(const O& options, const ModelConfig& config) {
    P::create(options, config);
  };
  constexpr bool kDecorator =
      kCreates || std::is_constructible_v<P, const O&, const ModelConfig&, std::unique_ptr<Policy>>;
  auto create = [name](OptionValues values, const ModelConfig& config,
                       std::unique_ptr<Policy> inner) -> Result<std::unique_ptr<Policy>> {
    O options;
    if (auto status = assign_options(fmt::format("policy {}", name), values, options); !status) {
      return tl::unexpected<Error>(status.error());
    }
    if constexpr (requires { P::check_inner(*inner); }) {
      if (auto status = P::check_inner(*inner); !status) {
        return tl::unexpected<Error>(status.error());
      }
    }
    if constexpr (kCreates) {
      return P::create(options, config, std::move(inner));
    } else if constexpr (kCreatesAlone) {
      return P::create(options, config);
    } else if constexpr (kDecorator) {
      return std::make_unique<P>(options, config, std::move(inner));
    } else {
      return std::make_unique<P>(options, config);
    }
  };
  return {
      name,  summary, source, kDecorator, kDecorator ? default_inner : "", describe_options<O>(),
      create};
}

}  // namespace reprise
