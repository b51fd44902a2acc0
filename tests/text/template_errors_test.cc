// Malformed templates: the code, the place and one line of text.
#include "template_fixtures.h"

namespace reprise::test {
namespace {

struct Malformed {
  const char* source;
  const char* error;
  const char* place;
};

TEST(TemplateErrors, NameCodeLineAndColumn) {
  const Malformed cases[] = {
      {"{{ 1 +", "template_syntax", "line 1, column 7"},
      {"{{ (1 }}", "template_syntax", "line 1, column 7"},
      {"a\nb {% if %}", "template_syntax", "line 2, column 9"},
      {"日本 {{ $ }}", "template_syntax", "line 1, column 7"},
      {"\r\n\r\n{{ ] }}", "template_syntax", "line 3, column 4"},
      {"x\n{% unknown %}", "template_syntax", "line 2, column 4"},
      {"{% if a %}\nb", "template_syntax", "line 2, column 2"},
      {"{% if a %}{% endfor %}", "template_syntax", "line 1, column 14"},
      {"{# x", "template_syntax", "line 1, column 3"},
      {"a\n  {% raw %}", "template_syntax", "line 2, column 3"},
      {"{{ 'abc }}", "template_syntax", "line 1, column 4"},
      {"{{ 'a\\xzz' }}", "template_syntax", "line 1, column 6"},
      {"{{ x | nofilter }}", "template_syntax", "line 1, column 8"},
      {"{{ x is notest }}", "template_syntax", "line 1, column 9"},
      {"{{ 99999999999999999999 }}", "template_syntax", "line 1, column 4"},
      {"{% for i in x recursive %}{% endfor %}", "template_syntax", "line 1, column 15"},
      {"{% include 'x' %}", "template_syntax", "line 1, column 4"},
      {"{% extends 'x' %}", "template_syntax", "line 1, column 4"},
      {"{% import 'x' as y %}", "template_syntax", "line 1, column 4"},
      {"{% set none = 1 %}", "template_syntax", "line 1, column 8"},
      {"{{ f(x=1, x=2) }}", "template_syntax", "line 1, column 11"},
      {"{{ missing.attribute }}", "template_runtime", "line 1, column 11"},
      {"a\n\n  {{ 1 + 'x' }}", "template_runtime", "line 3, column 8"},
      {"{% set x.y = 1 %}", "template_runtime", "line 1, column 4"},
      {"{% for i in [1] %}\n{{ 1 / 0 }}\n{% endfor %}", "template_runtime", "line 2, column 6"},
      {"{{ raise_exception('no') }}", "template_runtime", "line 1, column 19"},
      {"{{ 9223372036854775807 + 1 }}", "template_runtime", "line 1, column 24"},
      {"{{ -9223372036854775807 - 2 }}", "template_runtime", "line 1, column 25"},
      {"{{ 'a' * 1000000000 }}", "template_limit", "line 1, column 8"},
  };
  for (const Malformed& malformed : cases) {
    SCOPED_TRACE(malformed.source);
    const Rendering made = render_template(malformed.source, nlohmann::ordered_json::object());
    EXPECT_EQ(made.error, malformed.error);
    EXPECT_NE(made.message.find(std::string(malformed.place) + ":"), std::string::npos)
        << made.message;
    EXPECT_EQ(made.message.find('\n'), std::string::npos);
  }
}

TEST(TemplateErrors, RaisedMessageIsKept) {
  const auto made = render_template("{{ raise_exception('roles must alternate') }}",
                                    nlohmann::ordered_json::object());
  EXPECT_EQ(made.message, "chat template, line 1, column 19: roles must alternate");
}

TEST(TemplateErrors, ContextMustBeAnObject) {
  EXPECT_EQ(render_template("x", nlohmann::ordered_json::array()).error, "invalid_argument");
  EXPECT_EQ(render_template("{{ x }}", {{"x", UINT64_MAX}}).error, "template_runtime");
}

// Cutting a template anywhere gives an error or an output, never anything else.
TEST(TemplateErrors, EveryPrefixIsHandled) {
  const auto context = template_fixture("conversations.json")["system_turns"];
  for (const char* family : {"llama2", "gemma", "mistral"}) {
    const std::string_view source = builtin_template(family);
    for (size_t size = 0; size < source.size(); ++size) {
      const Rendering made = render_template(source.substr(0, size), context);
      EXPECT_TRUE(made.error.empty() || made.error == "template_syntax" ||
                  made.error == "template_runtime")
          << made.error;
    }
  }
}

// A template may be rendered again and again, and moved in between.
TEST(TemplateErrors, RenderingLeavesNoTrace) {
  auto parsed = ChatTemplate::parse("{% set n = namespace(c=0) %}{% set n.c = n.c + 1 %}{{ n.c }}");
  ASSERT_TRUE(parsed);
  const auto context = nlohmann::ordered_json::object();
  EXPECT_EQ(*parsed->render(context), "1");
  ChatTemplate moved = std::move(*parsed);
  EXPECT_EQ(*moved.render(context), "1");
}

}  // namespace
}  // namespace reprise::test
