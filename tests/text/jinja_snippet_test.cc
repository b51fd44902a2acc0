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

}  // namespace
}  // namespace reprise::test
