#!/usr/bin/env bash
# Runs every fuzz target of a build for some seconds, several at once; fails if any finds a fault.
# usage: tools/fuzz.sh BUILD_DIR SECONDS JOBS
set -euo pipefail
build=$1 seconds=$2 jobs=$3

fuzz_one() {
  local target=$1 seconds=$2 name corpus log
  name=$(basename "$target")
  corpus=$target.corpus log=$target.log
  mkdir -p "$corpus"
  local seeds=tests/fuzz/corpus/${name#fuzz_}
  if "$target" -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=2048 -timeout=20 \
      -print_final_stats=1 -artifact_prefix="$target." "$corpus" \
      $([[ -d $seeds ]] && echo "$seeds") >"$log" 2>&1; then
    echo "fuzz: $name passed, $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs"
  else
    tail -n 40 "$log"
    echo "fuzz: $name FAILED; the input that did it is beside $target"
    return 1
  fi
}
export -f fuzz_one

find "$build" -type f -name 'fuzz_*' -perm -u+x -print0 |
  xargs -0 -P "$jobs" -I{} bash -c 'fuzz_one "$1" "$2"' _ {} "$seconds"
