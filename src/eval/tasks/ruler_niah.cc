// RULER's eight needle tasks; arguments as in its synthetic.yaml.
#include <algorithm>
#include <cmath>
#include <set>

#include "eval/tasks/ruler.h"

namespace reprise::eval {
namespace {

enum class Hay { kNoise, kEssay, kNeedle };

struct Arguments {
  std::string_view name;
  Hay hay;
  bool uuid_keys, uuid_values;
  size_t keys, values, queries;  // values of each key
};

constexpr Arguments kArguments[] = {
    {"niah_single_1", Hay::kNoise, false, false, 1, 1, 1},
    {"niah_single_2", Hay::kEssay, false, false, 1, 1, 1},
    {"niah_single_3", Hay::kEssay, false, true, 1, 1, 1},
    {"niah_multikey_1", Hay::kEssay, false, false, 4, 1, 1},
    {"niah_multikey_2", Hay::kNeedle, false, false, 1, 1, 1},
    {"niah_multikey_3", Hay::kNeedle, true, true, 1, 1, 1},
    {"niah_multivalue", Hay::kEssay, false, false, 1, 4, 1},
    {"niah_multiquery", Hay::kEssay, false, false, 1, 1, 4},
};
constexpr size_t kDepths = 40;  // evenly spaced, both ends included

struct Needle {
  std::string text;
  bool asked = false;
};

class NiahWriter {
 public:
  NiahWriter(const RulerMaterial& material, const Arguments& arguments, Rng rng)
      : material_(material), arguments_(arguments), rng_(rng) {}

  RulerDraft draft(size_t units) {
    const std::vector<Needle> needles = own_needles();
    std::string context;
    size_t at = 0;
    switch (arguments_.hay) {
      case Hay::kNoise: {
        const std::vector<std::string> lines(units, material_.noise);
        insert(lines, needles, anywhere(needles.size(), units), "\n", context, at);
        break;
      }
      case Hay::kNeedle: {
        std::vector<std::string> lines;
        for (size_t i = 0; i < units; ++i) {
          const std::string other_key = key();  // before the value: draws have an order
          lines.push_back(sentence(other_key, value()));
        }
        insert(lines, needles, anywhere(needles.size(), units), "\n", context, at);
        break;
      }
      case Hay::kEssay: {
        std::vector<std::string> lines;
        const size_t start = rng_.below(material_.essays->size());
        for (size_t i = 0; i < units; ++i) {
          lines.emplace_back(material_.essays->sentence(start + i));
        }
        insert(lines, needles, at_depths(needles.size(), units), " ", context, at);
        break;
      }
    }
    return finish(context, at);
  }

 private:
  std::string_view kind() const { return arguments_.uuid_values ? "uuids" : "numbers"; }
  std::string value() { return arguments_.uuid_values ? rng_.uuid() : rng_.digits(7); }

  // A key that no other needle of this sample has.
  std::string key() {
    while (true) {
      std::string candidate = arguments_.uuid_keys ? rng_.uuid() : word_key();
      if (keys_.insert(candidate).second) return candidate;
    }
  }
  std::string word_key() {
    const std::string adjective = rng_.pick(material_.adjectives);
    return adjective + "-" + rng_.pick(material_.nouns);
  }

  std::string sentence(std::string_view key, std::string_view value) const {
    return fill(material_.needle, {{"type_needle_v", kind()}, {"key", key}, {"value", value}});
  }

  // The needles that may be asked for; notes the queries and their values.
  std::vector<Needle> own_needles() {
    const size_t count = std::max(arguments_.keys, arguments_.queries);
    const size_t first_asked = rng_.below(count - arguments_.queries + 1);
    std::vector<Needle> needles;
    for (size_t i = 0; i < count; ++i) {
      const std::string own_key = key();
      const bool asked = i >= first_asked && i < first_asked + arguments_.queries;
      if (asked) queries_.push_back(own_key);
      for (size_t j = 0; j < arguments_.values; ++j) {
        const std::string own_value = value();
        if (asked) references_.push_back(own_value);
        needles.push_back({sentence(own_key, own_value), asked});
      }
    }
    rng_.shuffle(needles);
    return needles;
  }

  std::vector<size_t> anywhere(size_t count, size_t units) {
    std::vector<size_t> places(count);
    for (size_t& place : places) place = rng_.below(units + 1);
    std::sort(places.begin(), places.end());
    return places;
  }
  std::vector<size_t> at_depths(size_t count, size_t units) {
    std::vector<size_t> places = rng_.distinct(count, kDepths);
    for (size_t& place : places) {
      const double percent = std::round(100.0 * static_cast<double>(place) / (kDepths - 1));
      place = static_cast<size_t>(static_cast<double>(units) * percent / 100.0);
    }
    std::sort(places.begin(), places.end());
    return places;
  }

  // Needle i goes before line places[i]; at is where the first one that is asked for begins.
  static void insert(const std::vector<std::string>& lines, const std::vector<Needle>& needles,
                     const std::vector<size_t>& places, std::string_view between,
                     std::string& context, size_t& at) {
    at = std::string::npos;
    const auto add = [&](std::string_view text) {
      if (!context.empty()) context += between;
      context += text;
    };
    size_t next = 0;
    for (size_t i = 0; i <= lines.size(); ++i) {
      for (; next < needles.size() && places[next] == i; ++next) {
        add(needles[next].text);
        if (needles[next].asked && at == std::string::npos) {
          at = context.size() - needles[next].text.size();
        }
      }
      if (i < lines.size()) add(lines[i]);
    }
  }

  RulerDraft finish(const std::string& context, size_t at) const {
    std::string query = queries_.front();
    for (size_t i = 1; i < queries_.size(); ++i) {
      query += (i + 1 < queries_.size() ? ", " : ", and ") + queries_[i];
    }
    std::string prompt = material_.niah.prompt, prefix = material_.niah.answer_prefix;
    std::string_view type = kind();
    if (arguments_.queries * arguments_.values == 1) {
      type.remove_suffix(1);
      singular(prompt);
      singular(prefix);
    }
    RulerDraft draft;
    draft.prompt = fill(prompt, {{"type_needle_v", type}, {"context", context}, {"query", query}});
    draft.answer_prefix = fill(prefix, {{"type_needle_v", type}, {"query", query}});
    draft.gold_at = draft.prompt.find(context) + at;
    draft.references = references_;
    draft.gold = " " + join(references_, ", ");
    return draft;
  }

  // The wording for one value, by the substitutions of the public generator.
  static void singular(std::string& form) {
    const std::pair<std::string_view, std::string_view> kChanges[] = {
        {"Some", "A"}, {"are all", "is"}, {"are", "is"}};
    for (const auto& [from, to] : kChanges) {
      for (size_t i = 0; (i = form.find(from, i)) != std::string::npos; i += to.size()) {
        form.replace(i, from.size(), to);
      }
    }
  }

  const RulerMaterial& material_;
  const Arguments& arguments_;
  Rng rng_;
  std::set<std::string> keys_;
  std::vector<std::string> queries_, references_;
};

}  // namespace

std::vector<RulerTask> niah_tasks(const RulerMaterial& material) {
  std::vector<RulerTask> tasks;
  for (const Arguments& arguments : kArguments) {
    RulerTask task{arguments.name, material.niah.max_tokens, false, 1, 0, {}};
    task.most_units = size_t{1} << 24;
    if (arguments.hay == Hay::kNeedle && !arguments.uuid_keys) {
      // Half of all keys: drawing a new one then takes two tries on average.
      task.most_units = material.adjectives.size() * material.nouns.size() / 2;
    }
    task.draft = [&material, &arguments](Rng rng, uint32_t, size_t units) {
      return NiahWriter(material, arguments, rng).draft(units);
    };
    tasks.push_back(std::move(task));
  }
  return tasks;
}

}  // namespace reprise::eval
