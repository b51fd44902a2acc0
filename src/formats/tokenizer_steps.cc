#include <array>
#include <limits>

#include "base/try.h"
#include "formats/printable.h"
#include "formats/tokenizer_json.h"

namespace reprise::tokenizer_json {
namespace {

constexpr int kMaxDepth = 8;         // of Sequences inside Sequences
constexpr size_t kMaxSteps = 64;     // of one pipeline
constexpr size_t kMaxTemplate = 64;  // items of one template

template <class Value>
Status read_typed(const Context& context, Object object, std::string_view key,
                  std::string_view wanted, Value& value) {
  Element element;
  if (object.at_key(key).get(element) != simdjson::SUCCESS || element.is_null()) return {};
  if (element.get(value) != simdjson::SUCCESS) return wrong_json(context, key, wanted);
  return {};
}

// {"String": s}, {"Regex": s} or s.
Status read_pattern(const Context& context, Object object, TokenizerStep& step) {
  Element pattern;
  if (object.at_key("pattern").get(pattern) != simdjson::SUCCESS || pattern.is_null()) return {};
  Object choice;
  if (pattern.get(choice) != simdjson::SUCCESS) {
    return read_field(context, object, "pattern", step.pattern);
  }
  step.pattern_is_regex = choice.at_key("Regex").error() == simdjson::SUCCESS;
  if (!step.pattern_is_regex && choice.at_key("String").error() != simdjson::SUCCESS) {
    return wrong_json(context, "pattern", "a String or a Regex");
  }
  return read_field(context, choice, step.pattern_is_regex ? "Regex" : "String", step.pattern);
}

// Strip as a normalizer has two switches, as a decoder two counts.
Status read_strip(const Context& context, Object object, TokenizerStep& step) {
  bool left = false, right = false;
  REPRISE_CHECK(read_field(context, object, "strip_left", left));
  REPRISE_CHECK(read_field(context, object, "strip_right", right));
  step.start = left ? 1 : 0;
  step.stop = right ? 1 : 0;
  REPRISE_CHECK(read_field(context, object, "start", step.start));
  return read_field(context, object, "stop", step.stop);
}

Status read_metaspace(const Context& context, Object object, TokenizerStep& step) {
  step.add_prefix_space = true;
  REPRISE_CHECK(read_field(context, object, "add_prefix_space", step.add_prefix_space));
  step.prepend_scheme = step.add_prefix_space ? "always" : "never";
  REPRISE_CHECK(read_field(context, object, "prepend_scheme", step.prepend_scheme));
  return read_field(context, object, "split", step.split);
}

Result<TokenizerStep> read_step(const Context& context, Object object, std::string kind) {
  TokenizerStep step;
  step.kind = std::move(kind);
  REPRISE_CHECK(read_pattern(context, object, step));
  // One component has at most one of these; each is its literal argument.
  for (const char* key : {"content", "prepend", "replacement", "delimiter", "prefix", "suffix",
                          "precompiled_charsmap"}) {
    REPRISE_CHECK(read_field(context, object, key, step.content));
  }
  REPRISE_CHECK(read_field(context, object, "behavior", step.behavior));
  REPRISE_CHECK(read_field(context, object, "invert", step.invert));
  REPRISE_CHECK(read_field(context, object, "individual_digits", step.individual_digits));
  REPRISE_CHECK(read_field(context, object, "use_regex", step.use_regex));
  if (step.kind == "Metaspace") {
    REPRISE_CHECK(read_metaspace(context, object, step));
  } else {
    REPRISE_CHECK(read_field(context, object, "add_prefix_space", step.add_prefix_space));
  }
  if (step.kind == "Strip") REPRISE_CHECK(read_strip(context, object, step));
  return step;
}

// The component's kind and, when it is a Sequence, its members.
struct Component {
  Object object;
  std::string kind;
  simdjson::dom::array members;
};

Result<Component> read_component(const Context& context, Element element, int depth) {
  if (depth > kMaxDepth) {
    return fail(ErrorCode::kTooDeep, "{}: {} nests Sequences deeper than {}", context.file,
                context.part, kMaxDepth);
  }
  Component component;
  if (element.get(component.object) != simdjson::SUCCESS) {
    return wrong_json(context, "a component", "an object");
  }
  REPRISE_CHECK(read_field(context, component.object, "type", component.kind));
  if (component.kind.empty()) return wrong_json(context, "type", "a string");
  if (component.kind != "Sequence") return component;
  for (const char* key : {"normalizers", "pretokenizers", "decoders", "processors"}) {
    if (component.object.at_key(key).get(component.members) == simdjson::SUCCESS) return component;
  }
  return wrong_json(context, "a Sequence", "an object with a list");
}

Status append_steps(const Context& context, Element element, int depth,
                    std::vector<TokenizerStep>& steps) {
  REPRISE_TRY(auto component, read_component(context, element, depth));
  if (component.kind == "Sequence") {
    for (const Element member : component.members) {
      REPRISE_CHECK(append_steps(context, member, depth + 1, steps));
    }
    return {};
  }
  if (steps.size() == kMaxSteps) {
    return fail(ErrorCode::kBadCount, "{}: {} has more than {} components", context.file,
                context.part, kMaxSteps);
  }
  REPRISE_TRY(auto step, read_step(context, component.object, std::move(component.kind)));
  steps.push_back(std::move(step));
  return {};
}

// The id of a template's special token, from the table that goes with the template.
Result<int32_t> template_id(const Context& context, Object processor, std::string_view token) {
  Object table, entry;
  simdjson::dom::array ids;
  int64_t id = 0;
  if (processor.at_key("special_tokens").get(table) != simdjson::SUCCESS ||
      table.at_key(token).get(entry) != simdjson::SUCCESS ||
      entry.at_key("ids").get(ids) != simdjson::SUCCESS || ids.size() != 1 ||
      ids.at(0).get(id) != simdjson::SUCCESS || id < 0 ||
      id > std::numeric_limits<int32_t>::max()) {
    return fail(ErrorCode::kBadJson, "{}: {} has no single id for {}", context.file, context.part,
                printable(token));
  }
  return static_cast<int32_t>(id);
}

Status read_template(const Context& context, Object processor, TokenizerData& data) {
  simdjson::dom::array single;
  if (processor.at_key("single").get(single) != simdjson::SUCCESS) {
    return wrong_json(context, "single", "a list");
  }
  if (single.size() > kMaxTemplate) {
    return fail(ErrorCode::kBadCount, "{}: the template has {} items; at most {} are read",
                context.file, single.size(), kMaxTemplate);
  }
  bool before = true;
  for (const Element item : single) {
    Object object, special;
    if (item.get(object) != simdjson::SUCCESS) return wrong_json(context, "single", "objects");
    if (object.at_key("SpecialToken").get(special) != simdjson::SUCCESS) {
      before = false;
      continue;
    }
    std::string token;
    REPRISE_CHECK(read_field(context, special, "id", token));
    REPRISE_TRY(const int32_t id, template_id(context, processor, token));
    (before ? data.bos : data.eos) = id;
    (before ? data.add_bos : data.add_eos) = true;
  }
  return {};
}

// Bert and Roberta: "cls" goes before the text and "sep" after it, each as [text, id].
Status read_cls_sep(const Context& context, Object processor, TokenizerData& data) {
  for (const bool cls : {true, false}) {
    simdjson::dom::array pair;
    int64_t id = 0;
    const char* key = cls ? "cls" : "sep";
    if (processor.at_key(key).get(pair) != simdjson::SUCCESS || pair.size() != 2 ||
        pair.at(1).get(id) != simdjson::SUCCESS || id < 0 ||
        id > std::numeric_limits<int32_t>::max()) {
      return wrong_json(context, key, "a token and its id");
    }
    (cls ? data.bos : data.eos) = static_cast<int32_t>(id);
    (cls ? data.add_bos : data.add_eos) = true;
  }
  return {};
}

Status apply_processor(const Context& context, Element element, int depth, TokenizerData& data) {
  REPRISE_TRY(auto component, read_component(context, element, depth));
  if (component.kind == "Sequence") {
    for (const Element member : component.members) {
      REPRISE_CHECK(apply_processor(context, member, depth + 1, data));
    }
    return {};
  }
  if (component.kind == "ByteLevel") return {};  // only trims offsets
  if (component.kind == "TemplateProcessing") return read_template(context, component.object, data);
  if (component.kind == "BertProcessing" || component.kind == "RobertaProcessing") {
    return read_cls_sep(context, component.object, data);
  }
  return fail(ErrorCode::kUnsupportedTokenizer, "{}: post-processor {} is not known", context.file,
              printable(component.kind));
}

}  // namespace

tl::unexpected<Error> wrong_json(const Context& context, std::string_view key,
                                 std::string_view wanted) {
  return fail(ErrorCode::kBadJson, "{}: in {}, {} is not {}", context.file, context.part, key,
              wanted);
}

Status read_field(const Context& context, Object object, std::string_view key, std::string& value) {
  std::string_view text = value;
  REPRISE_CHECK(read_typed(context, object, key, "a string", text));
  value = std::string(text);  // a copy: text may view value itself
  return {};
}

Status read_field(const Context& context, Object object, std::string_view key, bool& value) {
  return read_typed(context, object, key, "true or false", value);
}

Status read_field(const Context& context, Object object, std::string_view key, uint32_t& value) {
  uint64_t number = value;
  REPRISE_CHECK(read_typed(context, object, key, "a number", number));
  if (number > std::numeric_limits<uint32_t>::max()) {
    return wrong_json(context, key, "a 32-bit number");
  }
  value = static_cast<uint32_t>(number);
  return {};
}

Result<std::vector<TokenizerStep>> read_steps(const Context& context, Element root) {
  std::vector<TokenizerStep> steps;
  if (!root.is_null()) REPRISE_CHECK(append_steps(context, root, 0, steps));
  return steps;
}

Status read_post_processor(const Context& context, Element root, TokenizerData& data) {
  return root.is_null() ? Status() : apply_processor(context, root, 0, data);
}

}  // namespace reprise::tokenizer_json
