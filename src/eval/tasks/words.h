// Plain English words for keys and things, so that generated tasks need no files.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "eval/tasks/rng.h"

namespace reprise::eval {

inline constexpr std::array<std::string_view, 48> kAdjectives = {
    "amber",  "ancient", "brave",  "brisk",  "calm",   "clever", "copper", "crisp",
    "curly",  "dusty",   "eager",  "early",  "faint",  "fierce", "gentle", "golden",
    "grand",  "hollow",  "humble", "icy",    "jolly",  "keen",   "late",   "lively",
    "lonely", "lucky",   "mellow", "mild",   "modest", "narrow", "noble",  "odd",
    "pale",   "polite",  "proud",  "quick",  "quiet",  "rapid",  "rusty",  "scarlet",
    "sharp",  "shy",     "silver", "sleepy", "stormy", "sturdy", "tidy",   "wooden"};

inline constexpr std::array<std::string_view, 48> kNouns = {
    "anchor", "badger",  "basket",  "beacon", "bridge",  "bucket", "candle", "canyon",
    "castle", "compass", "cradle",  "dagger", "dolphin", "engine", "falcon", "feather",
    "forest", "garden",  "goblet",  "hammer", "harbor",  "helmet", "island", "jacket",
    "kettle", "ladder",  "lantern", "lemon",  "magnet",  "marble", "meadow", "mirror",
    "needle", "orchard", "otter",   "paddle", "pepper",  "piano",  "pillow", "pocket",
    "ribbon", "saddle",  "shovel",  "spider", "temple",  "tiger",  "violin", "window"};

inline std::string adjective_noun(Rng& rng) {
  const std::string adjective(rng.pick(kAdjectives));
  return adjective + "-" + std::string(rng.pick(kNouns));
}

}  // namespace reprise::eval
