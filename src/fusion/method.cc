#include "fusion/method.h"

#include <fmt/format.h>

#include "attention/registry.h"
#include "base/nearest.h"
#include "base/try.h"
#include "reprise/library.h"

namespace reprise {
namespace {

template <class Options, class Method = Options>
Result<FusionMethod> with_options(const MethodSpec& spec) {
  Options options;
  REPRISE_CHECK(assign_options(fmt::format("fusion {}", spec.name), spec.options, options));
  return static_cast<Method>(options);
}

struct Entry {
  std::string_view name;
  Result<FusionMethod> (*create)(const MethodSpec&);
};
constexpr Entry kEntries[] = {{"none", with_options<NoFusion>},
                              {"full-reuse", with_options<FullReuse>},
                              {"pie", with_options<Pie>},
                              {"legolink", with_options<LegoLinkOptions>},
                              {"cacheblend", with_options<CacheBlendOptions>},
                              {"a3", with_options<A3Options>},
                              {"a3-paper", with_options<PublishedA3, A3Options>}};

}  // namespace

std::vector<std::string> list_fusions() {
  std::vector<std::string> names;
  for (const Entry& entry : kEntries) names.emplace_back(entry.name);
  return names;
}

Result<FusionMethod> parse_fusion(std::string_view text) {
  REPRISE_TRY(const MethodSpec spec, parse_spec("fusion", text));
  std::vector<std::string_view> names;
  for (const Entry& entry : kEntries) {
    if (entry.name == spec.name) return entry.create(spec);
    names.push_back(entry.name);
  }
  return fail(ErrorCode::kInvalidArgument, "no fusion is called \"{}\"{}; there are {}", spec.name,
              suggestion(spec.name, names), fmt::join(names, ", "));
}

}  // namespace reprise
