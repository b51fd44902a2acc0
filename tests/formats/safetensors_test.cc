#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "formats/safetensors_builder.h"

namespace reprise::test {
namespace {

using namespace std::string_literals;

const TensorView* find(const std::vector<TensorView>& tensors, std::string_view name) {
  for (const TensorView& view : tensors) {
    if (view.name == name) return &view;
  }
  return nullptr;
}

TEST(Safetensors, ReadsTensors) {
  const std::string bytes = small_safetensors();
  const auto tensors = parse_safetensors(as_bytes(bytes), "small");
  ASSERT_TRUE(tensors) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 2u);
  const TensorView* w = find(*tensors, "w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->type, TensorType::kF32);
  EXPECT_EQ(w->shape, (std::vector<uint64_t>{2, 3}));
  float last = 0;
  std::memcpy(&last, w->bytes.data() + 20, 4);
  EXPECT_EQ(last, 5.0f);
  EXPECT_EQ(find(*tensors, "v")->type, TensorType::kBF16);
  EXPECT_EQ(find(*tensors, "v")->bytes.size(), 8u);
}

TEST(Safetensors, ReadsScalarsAndFilesWithoutTensors) {
  const auto good =
      safetensors("{"s + safetensors_entry("s", "F32", "[]", 0, 4) + "}", std::string(4, '\0'));
  const auto tensors = parse_safetensors(as_bytes(good), "s");
  ASSERT_TRUE(tensors) << tensors.error().message;
  EXPECT_TRUE(tensors->front().shape.empty());
  const auto none = safetensors("{}", "");
  EXPECT_TRUE(parse_safetensors(as_bytes(none), "none")->empty());
}

TEST(SafetensorsFolder, ReadsOneFile) {
  TempFolder folder;
  folder.add("config.json", R"({"hidden_size":3})").add("model.safetensors", small_safetensors());
  const auto model = SafetensorsFolder::open(folder.path());
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->config()["hidden_size"], 3);
  EXPECT_EQ(model->path(), folder.path());
  EXPECT_EQ(model->files().size(), 1u);
  ASSERT_NE(model->tensor("w"), nullptr);
  EXPECT_EQ(model->tensor("none"), nullptr);
}

TEST(SafetensorsFolder, ReadsShards) {
  const auto shard = [](std::string_view name) {
    return safetensors("{"s + safetensors_entry(name, "F32", "[2]", 0, 8) + "}",
                       ByteWriter().f32(1).f32(name == "a" ? 2 : 3).bytes());
  };
  TempFolder folder;
  folder.add("config.json", "{}").add("x-1.safetensors", shard("a"));
  folder.add("x-2.safetensors", shard("b"));
  folder.add("model.safetensors.index.json",
             R"({"weight_map":{"a":"x-1.safetensors","b":"x-2.safetensors"}})");
  auto opened = SafetensorsFolder::open(folder.path());
  ASSERT_TRUE(opened) << opened.error().message;
  const SafetensorsFolder model = std::move(*opened);  // views must stay valid
  EXPECT_EQ(model.files().size(), 2u);
  float last = 0;
  std::memcpy(&last, model.tensor("b")->bytes.data() + 4, 4);
  EXPECT_EQ(last, 3.0f);
}

TEST(Json, ParsesAndLimits) {
  EXPECT_EQ((*parse_json(R"({"a":[1,2,{"b":"é"}]})", "x"))["a"][2]["b"], "é");
  EXPECT_TRUE(parse_json("[[[]]]", "x", 3));
  EXPECT_EQ(parse_json("[[[[]]]]", "x", 3).error().code, ErrorCode::kTooDeep);
  const auto broken = parse_json("{\"a\":\n?}", "x");
  EXPECT_EQ(broken.error().message, "x: not valid JSON at byte 7");
  EXPECT_TRUE(parse_json(R"({"a":1,"a":2})", "x"));  // only weights forbid repeated keys
}

TEST(ReadTextFile, ChecksItsLimit) {
  TempFolder folder;
  folder.add("t", "12345");
  EXPECT_EQ(read_text_file(folder.path() + "/t", 5).value(), "12345");
  EXPECT_EQ(read_text_file(folder.path() + "/t", 4).error().code, ErrorCode::kBadCount);
  EXPECT_EQ(read_text_file(folder.path() + "/u").error().code, ErrorCode::kFileNotFound);
  EXPECT_EQ(read_text_file(folder.path()).error().code, ErrorCode::kFileUnreadable);
}

}  // namespace
}  // namespace reprise::test
