// Every feature of the language alone, against jinja2.
#include "template_fixtures.h"

namespace reprise::test {
namespace {

TEST(JinjaSnippets, EqualJinja2) {
  const auto fixture = template_fixture("snippets.json");
  ASSERT_GE(fixture["cases"].size(), 600u);
  for (const auto& golden : fixture["cases"]) {
    const auto source = golden[0].get<std::string>();
    SCOPED_TRACE(source);
    const Rendering made = render_template(source, fixture["context"]);
    if (golden[1].is_null()) {
      EXPECT_EQ(made.error, golden[2].get<std::string>()) << made.output << made.message;
    } else {
      EXPECT_EQ(made.error, "") << made.message;
      EXPECT_EQ(made.output, golden[1].get<std::string>());
    }
  }
}

using Expressions = std::initializer_list<std::pair<const char*, const char*>>;

// Against what jinja2 3.1 gives.
void expect_all(Expressions expressions) {
  for (const auto& [expression, expected] : expressions) {
    const std::string source = std::string("{{ ") + expression + " }}";
    const Rendering made = render_template(source, nlohmann::ordered_json::object());
    EXPECT_EQ(made.output, expected) << source << made.message;
  }
}

TEST(JinjaTexts, EndsAreCharactersNotBytes) {
  expect_all({
      {"'  日本\u3000 '|trim", "日本"},
      {"'naïveé'.rstrip('é')", "naïve"},
      {"'日本語'.strip('日語')", "本"},
      {"'x🎉'|last", "🎉"},
      {"'日\u3000本\u3000語'.rsplit(none, 1)|join('|')", "日\u3000本|語"},
      {"'日本\u00a0'.rstrip('\u00a0')", "日本"},
  });
}

TEST(JinjaTexts, AreEncodedForUrls) {
  expect_all({
      {"'a b/c?é~'|urlencode", "a%20b/c%3F%C3%A9~"},
      {"{'a b': 'c/d', 'é': 1}|urlencode", "a+b=c%2Fd&%C3%A9=1"},
      {"[('x', none), 'yz']|urlencode", "x=None&y=z"},
      {"1.5|urlencode ~ missing|urlencode", "1.5"},
  });
}

TEST(JinjaTexts, HaveTabsExpandedAndKnowAscii) {
  expect_all({
      {"'a\tbc\n\té\t|'.expandtabs(4)", "a   bc\n    é   |"},
      {"'\tx'.expandtabs() ~ 'a\tb'.expandtabs(0)", "        xab"},
      {"''.isascii(), 'a~'.isascii(), 'é'.isascii()", "(True, True, False)"},
  });
}

}  // namespace
}  // namespace reprise::test
