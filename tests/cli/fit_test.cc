// `reprise fit` on models without weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "cli/process.h"

namespace reprise::test {
namespace {

using testing::HasSubstr;

std::set<std::string> kv_types(const nlohmann::json& fit) {
  std::set<std::string> types;
  for (const auto& row : fit["contexts"]) types.insert(row["kv_type"]);
  return types;
}

uint64_t kv_bytes(const nlohmann::json& fit, const std::string& type) {
  for (const auto& row : fit["contexts"])
    if (row["kv_type"] == type)
      return row["kv_bytes"].get<uint64_t>() / row["context"].get<uint64_t>();
  return 0;
}

// random:tiny: 2 layers, 2 KV heads of 64.
TEST(Fit, TypesAreTheDevices) {
  const auto cpu = run({"fit", "-m", "random:tiny", "--memory", "1G", "--json"}).json();
  EXPECT_EQ(kv_types(cpu), (std::set<std::string>{"bf12", "bf16", "f16", "f32", "q8_0"}));
  EXPECT_EQ(cpu["device"], "cpu");
  EXPECT_EQ(cpu["advice"]["ctx"], 2048);
  EXPECT_FALSE(cpu.contains("read_gb_s"));

  // Memory that is named needs no device.
  const std::vector<std::string> plan = {"fit", "-m",       "random:tiny", "--memory",
                                         "4G",  "--device", "cuda"};
  auto with_json = plan;
  with_json.emplace_back("--json");
  const auto cuda = run(with_json).json();
  EXPECT_EQ(kv_types(cuda), (std::set<std::string>{"bf16", "f16", "fp8"}));
  EXPECT_EQ(cuda["device"], "cuda");
  EXPECT_EQ(kv_bytes(cuda, "bf16"), 2u * 2 * 2 * 64 * 2);
  EXPECT_EQ(kv_bytes(cuda, "fp8"), 2u * 2 * 2 * (64 + 4)) << "a scale for every token and head";
  EXPECT_EQ(cuda["advice"]["kv_type"], "bf16");
  EXPECT_THAT(run(plan).out, HasSubstr("--kv-type bf16 --policy full --device cuda"));
}

TEST(Fit, DevicesShareHeadsAndWeights) {
  const auto fit = [](const std::string& tp) {
    return run({"fit", "-m", "random:tiny", "--memory", "4G", "--device", "cuda", "--tp", tp,
                "--json"})
        .json();
  };
  const auto one = fit("1"), two = fit("2");
  EXPECT_EQ(kv_bytes(two, "bf16") * 2, kv_bytes(one, "bf16"));
  // The embedding, [512, 256] in bf16, is on each device.
  const uint64_t whole = one["memory"]["weights"], part = two["memory"]["weights"];
  EXPECT_EQ(part, 512 * 256 * 2 + (whole - 512 * 256 * 2) / 2);
  EXPECT_EQ(two["advice"]["kv_memory"], one["advice"]["kv_memory"]) << "of all devices together";
  EXPECT_THAT(
      run({"fit", "-m", "random:tiny", "--memory", "4G", "--device", "cuda", "--tp", "2"}).out,
      HasSubstr("--device cuda --tp 2"));
  const Outcome three =
      run({"fit", "-m", "random:tiny", "--memory", "4G", "--device", "cuda", "--tp", "3"});
  EXPECT_EQ(three.code, 1);
  EXPECT_THAT(three.err, HasSubstr("4 query heads and 2 KV heads; --tp 2 would do"));
  const Outcome cpu = run({"fit", "-m", "random:tiny", "--tp", "2"});
  EXPECT_EQ(cpu.code, 2);
  EXPECT_THAT(cpu.err, HasSubstr("--device cuda"));
}

// Weights in F32 are four bytes each whatever the file holds; so are keys and values, on any
// device.
TEST(Fit, FloatsTakeFourBytesEach) {
  const auto fit = [](const std::string& device, const std::string& precision) {
    return run({"fit", "-m", "random:tiny", "--memory", "4G", "--device", device, "--precision",
                precision, "--json"})
        .json();
  };
  for (const std::string device : {"cpu", "cuda"}) {
    const auto fast = fit(device, "fast"), floats = fit(device, "f32");
    EXPECT_EQ(kv_types(floats), std::set<std::string>{"f32"});
    EXPECT_EQ(kv_bytes(floats, "f32"), 2 * kv_bytes(fast, "bf16"));
    const uint64_t stored = fast["memory"]["weights"], weights = floats["memory"]["weights"];
    EXPECT_GT(weights, stored * 3 / 2) << device;
    EXPECT_LE(weights, stored * 2) << device << ": matrices are bf16 in the file, norms F32";
  }
  EXPECT_THAT(run({"fit", "-m", "random:tiny", "--memory", "4G", "--precision", "f32"}).out,
              HasSubstr("--precision f32 --policy full"));
}

TEST(Fit, PlansForWhatAPolicyKeeps) {
  const std::vector<std::string> plan = {"fit", "-m", "random:tiny", "--memory", "300M"};
  const auto with = [&](const std::string& policy) {
    auto arguments = plan;
    arguments.insert(arguments.end(), {"--policy", policy, "--json"});
    return run(arguments).json();
  };
  const auto full = run({"fit", "-m", "random:tiny", "--memory", "300M", "--json"}).json(),
             quest = with("quest"), rings = with("mac:guard=false,min_context=64");
  const auto first = [](const nlohmann::json& fit) { return fit["contexts"][0]; };
  EXPECT_EQ(first(full)["policy_bytes"], 0);
  // Bounds: two bf16 keys of 64 for every 16 of two layers and KV heads.
  EXPECT_EQ(first(quest)["policy_bytes"], 2048 / 16 * 2 * 64 * 2 * 2 * 2);
  EXPECT_EQ(first(quest)["kv_bytes"], first(full)["kv_bytes"]);
  const uint64_t own = first(rings)["policy_bytes"], kv = first(rings)["kv_bytes"],
                 room = rings["memory"]["for_kv"];
  EXPECT_GT(own, 0u);
  EXPECT_EQ(first(rings)["batch"], room / (kv + own));
  EXPECT_EQ(rings["advice"]["policy"], "mac:guard=false,min_context=64");
  auto text = plan;
  text.insert(text.end(), {"--policy", "quest"});
  EXPECT_THAT(run(text).out, HasSubstr("what quest keeps beside it"));
  text.back() = "qest";
  const Outcome typo = run(text);
  EXPECT_EQ(typo.code, 2);
  EXPECT_THAT(typo.err, HasSubstr("did you mean quest?"));
}

// Memory that holds the whole context's KV of the smallest type, and nothing beside it.
TEST(Fit, AdvisesTheContextThatStateLeavesRoomFor) {
  const auto whole = run({"fit", "-m", "random:tiny", "--memory", "1G", "--json"}).json();
  const uint64_t weights = whole["memory"]["weights"], workspace = whole["memory"]["workspace"];
  const std::string memory = std::to_string(weights + workspace + 2048 * kv_bytes(whole, "q8_0"));
  const auto advised = [&](const std::string& policy) {
    return run({"fit", "-m", "random:tiny", "--memory", memory, "--policy", policy, "--json"})
        .json()["advice"];
  };
  EXPECT_EQ(advised("full")["ctx"], 2048);
  const auto quest = advised("quest:budget=64");
  EXPECT_LT(quest["ctx"], 2048);
  EXPECT_GT(quest["ctx"], 1500);
}

TEST(Fit, RefusesTiersThatRunRefuses) {
  const TemporaryFolder folder;
  for (const std::vector<std::string>& tier :
       {std::vector<std::string>{"--kv-host", "1G"}, {"--kv-disk", folder.file("absent")}}) {
    std::vector<std::string> arguments = {"fit", "-m", "random:tiny"};
    arguments.insert(arguments.end(), tier.begin(), tier.end());
    const Outcome fit = run(arguments);
    EXPECT_EQ(fit.code, 1) << tier[0];
    EXPECT_EQ(fit.out, "");
    arguments.front() = "run";
    arguments.insert(arguments.end(), {"-p", "x"});
    const Outcome same = run(arguments);
    EXPECT_EQ(same.code, fit.code);
    EXPECT_EQ(same.err, fit.err);
  }
  const auto tiers = run({"fit", "-m", "random:tiny", "--memory", "1G", "--kv-disk",
                          folder.file(""), "--kv-disk-size", "1G", "--json"})
                         .json()["tiers"];
  EXPECT_EQ(tiers.back()["bytes"], 1 << 30);
}

TEST(Fit, DeviceIsMeasuredOrItsAbsenceIsTold) {
  const Outcome outcome = run({"fit", "-m", "random:tiny", "--device", "cuda", "--json"});
  if (outcome.code == 0) {
    EXPECT_GT(outcome.json()["read_gb_s"], 0);
    EXPECT_GT(outcome.json()["memory"]["available"], 0);
    EXPECT_NE(outcome.json()["device"], "cuda") << "named after the hardware";
    return;
  }
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.json()["error"]["code"], "device_unavailable");
  EXPECT_THAT(outcome.json()["error"]["message"], HasSubstr("--device cpu"));
}

TEST(Fit, UnknownRandomModelsAreUsageErrors) {
  const Outcome outcome = run({"fit", "-m", "random:llama-3.1-8c"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("did you mean llama-3.1-8b?"));
  const Outcome inspect = run({"inspect", "-m", "random:tiny:q4_0", "--json"});
  EXPECT_EQ(inspect.code, 0) << inspect.err;
  EXPECT_EQ(inspect.json()["format"], "random");
  EXPECT_EQ(inspect.json()["tokenizer"]["tokens"], 512);
  EXPECT_EQ(inspect.json()["quantization"].size(), 2u) << "F32 and Q4_0";
}

}  // namespace
}  // namespace reprise::test
