#!/usr/bin/env bash
# Runs every fuzz target of a build for some seconds, several at once; fails if any finds a fault.
# What a target that failed said is in TARGET.failed, with the input that did it.
# usage: tools/fuzz.sh BUILD_DIR SECONDS JOBS
set -euo pipefail
build=$1 seconds=$2 jobs=$3

fuzz_one() {
  local target=$1 seconds=$2 name corpus log
  name=$(basename "$target")
  corpus=$target.corpus log=$target.log
  mkdir -p "$corpus"
  rm -f "$target".failed "$target".{crash,leak,oom,timeout}-*
  local seeds=tests/fuzz/corpus/${name#fuzz_}
  if "$target" -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=2048 -timeout=20 \
      -print_final_stats=1 -artifact_prefix="$target." "$corpus" \
      $([[ -d $seeds ]] && echo "$seeds") >"$log" 2>&1; then
    echo "fuzz: $name passed, $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs"
  else
    {
      echo "fuzz: $name FAILED"
      tail -n 40 "$log"
      for input in "$target".{crash,leak,oom,timeout}-*; do
        [[ -f $input ]] || continue
        echo "fuzz: $input, for base64 -d | gunzip:"
        gzip -9c "$input" | base64
      done
    } | tee "$target.failed"
    return 1
  fi
}
export -f fuzz_one

find "$build" -type f -name 'fuzz_*' -perm -u+x -print0 |
  xargs -0 -P "$jobs" -I{} bash -c 'fuzz_one "$1" "$2"' _ {} "$seconds"
