// What a hostile template may not do: exhaust the stack, memory or time.
#include <pthread.h>

#include "base/sanitizers.h"
#include "template_fixtures.h"

namespace reprise::test {
namespace {

std::string repeat(std::string_view piece, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += piece;
  return text;
}

std::string error_of(std::string_view source, const TemplateLimits& limits = {}) {
  return render_template(source, nlohmann::ordered_json::object(), limits).error;
}

TEST(TemplateLimits, SourceNestingIsBounded) {
  constexpr size_t kDeep = 1'000'000 / 16;
  const std::string kinds[][3] = {{"(", "1", ")"},     {"[", "", "]"},    {"{1:", "1", "}"},
                                  {"-", "1", ""},      {"not ", "1", ""}, {"1 if 1 else ", "1", ""},
                                  {"f(", "1", ")"},    {"x[", "1", "]"},  {"x is in(", "1", ")"},
                                  {"x|d(", "1", ")"},  {"", "1", "+1"},   {"", "1", "**1"},
                                  {"", "1", " and 1"}, {"", "x", ".x"},   {"", "x", "[0]"},
                                  {"", "x", "()"},     {"", "x", "|d"},   {"", "x", " if 1"}};
  for (const auto& [open, core, close] : kinds) {
    const std::string source = "{{ " + repeat(open, kDeep) + core + repeat(close, kDeep) + " }}";
    EXPECT_EQ(error_of(source), "template_limit") << open << core << close;
  }
  EXPECT_EQ(error_of(repeat("{% if 1 %}", kDeep)), "template_limit");
  EXPECT_EQ(error_of(repeat("{% for i in x %}", kDeep)), "template_limit");
  EXPECT_EQ(error_of("{% set " + repeat("(", kDeep) + "x" + repeat(")", kDeep) + " = 1 %}"),
            "template_limit");
}

TEST(TemplateLimits, NestingUpToTheLimitWorks) {
  TemplateLimits limits;
  const size_t depth = static_cast<size_t>(limits.max_depth) / 2 - 4;
  EXPECT_EQ(error_of("{{ " + repeat("(", depth) + "1" + repeat(")", depth) + " }}"), "");
  EXPECT_EQ(error_of(repeat("{% if 1 %}", depth) + "x" + repeat("{% endif %}", depth)), "");
  EXPECT_EQ(error_of("{{ 1" + repeat("+1", 200) + " }}"), "");
  EXPECT_EQ(error_of("{{ 'a'" + repeat("~'a'", 5000) + " }}"), "");
  EXPECT_EQ(error_of("{% if 0 %}" + repeat("{% elif 0 %}", 5000) + "{% endif %}"), "");
}

TEST(TemplateLimits, RecursionIsBounded) {
  EXPECT_EQ(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), "template_limit");
  EXPECT_EQ(error_of("{% macro f(n) %}{% for i in [1] %}{% if 1 %}{{ (((f(n + 1)))) }}{% endif %}"
                     "{% endfor %}{% endmacro %}{{ f(0) }}"),
            "template_limit");
  EXPECT_EQ(error_of("{% macro f(x=f()) %}{% endmacro %}{{ f() }}"), "template_limit");
  EXPECT_EQ(error_of("{% macro f() %}{% call f() %}{% endcall %}{% endmacro %}{{ f() }}"),
            "template_runtime");  // f takes no caller
  EXPECT_EQ(error_of("{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{{ caller }}"
                     "{% endmacro %}{{ f() }}"),
            "template_limit");
}

TEST(TemplateLimits, NestedValuesAreBounded) {
  const std::string grow = "{% set n = namespace(v=[]) %}{% for i in range(1000) %}";
  EXPECT_EQ(error_of(grow + "{% set n.v = [n.v] %}{% endfor %}"), "template_limit");
  EXPECT_EQ(error_of(grow + "{% set n.v = {1: n.v} %}{% endfor %}"), "template_limit");
  EXPECT_EQ(error_of("{% set n = namespace() %}{% set n.n = n %}{{ n }}"), "template_limit");
  EXPECT_EQ(error_of("{% set n = namespace() %}{% set n.n = [n] %}{{ n.n == n.n }}"), "");
  EXPECT_EQ(error_of("{% set n = namespace() %}{% set n.f = joiner(n) %}{{ n.f() }}"), "");
}

TEST(TemplateLimits, BuiltTextIsBounded) {
  for (const char* source : {
           "{{ 'a' * 1000000000 }}",
           "{{ 'a' * 9223372036854775807 }}",
           "{{ [1] * 1000000000 }}",
           "{{ ([1] * 100000) * 100000 }}",
           "{% set n = namespace(s='ab') %}{% for i in range(100) %}{% set n.s = n.s + n.s %}"
           "{% endfor %}",
           "{% set n = namespace(s='ab') %}{% for i in range(100) %}{% set n.s = n.s ~ n.s %}"
           "{% endfor %}",
           "{% set n = namespace(s='ab') %}{% for i in range(100) %}"
           "{% set n.s = n.s.replace('', n.s) %}{% endfor %}",
           "{% set n = namespace(s=[1]) %}{% for i in range(100) %}{% set n.s = n.s + n.s %}"
           "{% endfor %}",
           "{% set n = namespace(s='ab') %}{% for i in range(100) %}"
           "{% set n.s = [n.s, n.s] | join(n.s) %}{% endfor %}",
           "{{ 'a'.center(1000000000000) }}",
           "{{ 'a'.zfill(1000000000000) }}",
           "{{ '%1000000000d' % 1 }}",
           "{{ '{:1000000000}'.format(1) }}",
           "{{ '%.1000000000f' % 1.0 }}",
           "{{ 'a\nb' | indent(1000000000) }}",
           "{{ [[1]] | tojson(indent=1000000000) }}",
           "{{ [[1]] | tojson(indent=' ' * 100000000) }}",
           "{{ [1] | batch(10000000000, 0) | list }}",
           "{{ [1] | slice(10000000000) | list }}",
           "{{ strftime_now('%B' * 1000) }}",
           "{{ 'a' | center(10000000000) }}",
       }) {
    EXPECT_EQ(error_of(source), "template_limit") << source;
  }
  EXPECT_EQ(error_of("{{ range(100001) }}"), "template_runtime");
  EXPECT_EQ(error_of("{{ range(-9223372036854775807, 9223372036854775807) }}"), "template_runtime");
  EXPECT_EQ(error_of("{{ 10 ** 100 }}"), "template_runtime");
  EXPECT_EQ(error_of("{{ '%d' % 1e22 }}"), "template_runtime");
  EXPECT_EQ(error_of("{{ '%d' % -9.2e18 }}"), "");
}

TEST(TemplateLimits, OutputStepsAndSourceAreBounded) {
  const TemplateLimits small = {.max_source = 1000, .max_output = 100, .max_steps = 1000};
  EXPECT_EQ(error_of(std::string(1000, 'x'), small), "template_limit");
  EXPECT_EQ(error_of(std::string(100, 'x'), small), "");
  EXPECT_EQ(error_of(std::string(101, 'x'), small), "template_limit");
  EXPECT_EQ(error_of(std::string(1001, ' '), small), "template_limit");
  const TemplateLimits short_run = {.max_steps = 1000};
  EXPECT_EQ(error_of("{% for i in range(900) %}{% endfor %}", short_run), "");
  EXPECT_EQ(
      error_of("{% for i in range(900) %}{% set x = 1 %}{% set y = 1 %}{% endfor %}", short_run),
      "template_limit");
  EXPECT_EQ(error_of("{% for i in range(99999) %}{% for j in range(99999) %}{% set x = j %}"
                     "{% endfor %}{% endfor %}"),
            "template_limit");
}

// Each of these expressions takes many times longer than a node where it is not paid for.
TEST(TemplateLimits, LooksAtLongTextsArePaidFor) {
  const TemplateLimits limits = {.max_steps = 100'000};
  const std::string setup = "{% set a = 'a' * 1000000 %}{% set b = a ~ 'b' %}";
  for (const char* expression : {
           "a.isalpha()",
           "a.islower()",
           "a is lower",
           "a|wordcount",
           "a|trim",
           "a.strip('b')",
           "a.upper()",
           "a|title",
           "a.find('b')",
           "a.count('b')",
           "'b' in a",
           "a.split('b')",
           "a.split()",
           "a.partition('b')",
           "a.splitlines()",
           "a.startswith(b)",
           "a|int",
           "a|float",
           "a|tojson",
           "a|e",
           "'%.0s' % a",
           "'{:.0}'.format(a)",
           "a.replace('b', a)",
           "[a]|sort",
           "a.removesuffix(b)",
       }) {
    const std::string source =
        setup + "{% for i in range(20) %}{% set x = " + expression + " %}{% endfor %}";
    EXPECT_EQ(error_of(source, limits), "template_limit") << expression;
  }
  // Where every character is compared with a long text, each text may be short enough.
  for (const char* expression : {"a.strip(b)", "a.rfind('b' ~ a)", "a.split(b)", "b in a"}) {
    EXPECT_EQ(error_of(setup + "{{ " + expression + " }}"), "template_limit") << expression;
  }
  const std::string call = "{% set n = namespace() %}{% set n.n = n %}{{ ('{0' ~ '.n' * 1000000 ~ ";
  EXPECT_EQ(error_of(call + "'}').format(n) }}", limits), "template_limit");
}

// Whatever the depth limit lets through must fit in a quarter of an ordinary thread's stack, and
// in a whole one where a sanitizer widens every frame.
TEST(TemplateLimits, DeepestTemplateFitsInTheStack) {
  constexpr size_t kStack = size_t{kSanitized ? 8 : 2} << 20;
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, kStack), 0);
  const auto body = [](void*) -> void* {
    const std::string macro =
        "{% macro f() %}{% if 1 %}{{ [f()] | map('string') | list | tojson }}{% endif %}"
        "{% endmacro %}{{ f() }}";
    EXPECT_EQ(error_of(macro), "template_limit");
    EXPECT_EQ(error_of("{% set n = namespace(v=[1]) %}{% for i in range(200) %}"
                       "{% set n.v = [n.v] %}{% endfor %}{{ n.v | map(" +
                       repeat("'map',", 199) + "'list') | list }}"),
              "");
    for (size_t depth = 100; depth < 260; depth += 5) {
      const std::string lists = repeat("[", depth) + repeat("]", depth);
      error_of("{{ (" + lists + " == " + lists + ") ~ " + lists + " ~ (" + lists + "|tojson) }}");
      error_of("{{ " + repeat("f(x[1:", depth) + "1" + repeat("])", depth) + " }}");
      error_of(repeat("{% for i in [1] %}{% if 1 %}", depth / 2) +
               repeat("{% endif %}{% endfor %}", depth / 2));
    }
    return nullptr;
  };
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, &attributes, body, nullptr), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

}  // namespace
}  // namespace reprise::test
