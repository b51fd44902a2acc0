// Goldens of the chat templates, made by tests/oracle/make_template_goldens.py.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "text/chat_template.h"

namespace reprise::test {

constexpr int64_t kTemplateNow = 1700000000;  // the goldens' time

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline nlohmann::ordered_json template_fixture(const std::string& name) {
  return nlohmann::ordered_json::parse(
      read_text(std::string(REPRISE_FIXTURES) + "/templates/" + name));
}

struct Rendering {
  std::string output;
  std::string error;    // name of the code, empty on success
  std::string message;  // of the error
};

inline Rendering render_template(std::string_view source, const nlohmann::ordered_json& context,
                                 const TemplateLimits& limits = {}) {
  const auto failed = [](const Error& error) {
    return Rendering{{}, std::string(error_name(error.code)), error.message};
  };
  auto parsed = ChatTemplate::parse(source, limits);
  if (!parsed) return failed(parsed.error());
  auto output = parsed->render(context, kTemplateNow);
  if (!output) return failed(output.error());
  return {std::move(*output), {}, {}};
}

inline uint64_t fnv1a(std::string_view bytes) {
  uint64_t value = 0xcbf29ce484222325;
  for (const char byte : bytes) value = (value ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  return value;
}

}  // namespace reprise::test
