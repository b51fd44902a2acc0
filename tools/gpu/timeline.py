#!/usr/bin/env python3
"""Draws a decode step of each trace as an SVG: what the pass computes and what is copied meanwhile.

  timeline.py --layers 32 "token=token.csv" "layer-once=once.csv" > timeline.svg

Traces are those of trace.cc, of a program that decodes one sequence with --kv-hot. The step drawn
is the one of median length among the last half; it ends with the attention of its last layer. Also
prints, on stderr, how long each kind of kernel ran in it, in ms."""

import argparse
import csv
import sys

# What a kernel does, by a part of its mangled name: first match, in this order.
KINDS = [
    ("admit", "slots for them", "#fdb863", ["admit_kernel", "forget_layer_kernel"]),
    ("copy", "copies of pages", "#d95f02", ["HotFetch"]),
    ("attention", "attention", "#1b6ca8", ["attend_kernel", "merge_kernel"]),
    ("forecast", "forecast and look-up", "#7b3294",
     ["look_up_kernel", "average_kernel", "read_kernel", "top_kernel"]),
    ("other", "products and the rest", "#b8c4ce", [""]),
]
WIDTH, LEFT, LANE, GAP, HEAD = 1100, 110, 34, 14, 46


def kind_of(name):
    return next(kind for kind, _, _, parts in KINDS if any(part in name for part in parts))


def lane_of(kind):
    return "copies" if kind in ("copy", "admit") else "pass"


def read(path):
    """[(start, end, kind, name)] in ns, by start."""
    with open(path, newline="") as file:
        rows = [(int(r["start_ns"]), int(r["end_ns"]), kind_of(r["kernel"]), r["kernel"])
                for r in csv.DictReader(file, restval="")]
    return sorted(rows)


def median_step(kernels, layers):
    """The kernels of a step, and when it began and ended."""
    attended = [k for k in kernels if "attend_kernel" in k[3]]
    ends = [attended[i][1] for i in range(layers - 1, len(attended), layers)]
    steps = sorted(zip(ends[len(ends) // 2:], ends[len(ends) // 2 + 1:]), key=lambda s: s[1] - s[0])
    if not steps:
        sys.exit("the trace has fewer than four decode steps")
    begin, end = steps[len(steps) // 2]
    return one_after_another(kernels, begin, end), begin, end


def one_after_another(kernels, begin, end):
    """Those in [begin, end): a kernel that started early and waited for the one before it in its
    lane begins where that one ended."""
    step, ended = [], {}
    for start, stop, kind, name in kernels:
        lane = lane_of(kind)
        start, stop = max(start, begin, ended.get(lane, begin)), min(stop, end)
        if start < stop:
            step.append((start, stop, kind, name))
            ended[lane] = stop
    return step


def draw(name, kernels, begin, end, scale, top):
    """Lanes of one trace: the pass above, copies below."""
    out = [f'<text x="8" y="{top + 14}" font-weight="bold">'
           f'{name}: {(end - begin) / 1e6:.2f} ms</text>']
    lanes = {"pass": top + 22, "copies": top + 22 + LANE + 4}
    for lane, y in lanes.items():
        out.append(f'<text x="8" y="{y + LANE / 2 + 4}">{lane}</text>')
    colours = {kind: colour for kind, _, colour, _ in KINDS}
    for start, stop, kind, _ in kernels:
        x, width = LEFT + (start - begin) * scale, max((stop - start) * scale, 0.15)
        out.append(f'<rect x="{x:.2f}" y="{lanes[lane_of(kind)]}" width="{width:.2f}" '
                   f'height="{LANE}" fill="{colours[kind]}"/>')
    return out


def axis(longest, scale, top):
    out = []
    for ms in range(int(longest / 1e6) + 1):
        x = LEFT + ms * 1e6 * scale
        out.append(f'<line x1="{x:.1f}" y1="{HEAD - 8}" x2="{x:.1f}" y2="{top}" stroke="#ddd"/>'
                   f'<text x="{x:.1f}" y="{top + 14}" text-anchor="middle">{ms} ms</text>')
    return out


def legend():
    out, x = [], 8
    for _, label, colour, _ in KINDS:
        out.append(f'<rect x="{x}" y="10" width="14" height="14" fill="{colour}"/>'
                   f'<text x="{x + 19}" y="22">{label}</text>')
        x += 40 + 7 * len(label)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, required=True, help="attention layers of the model")
    parser.add_argument("traces", nargs="+", metavar="NAME=FILE")
    arguments = parser.parse_args()
    steps = []
    for trace in arguments.traces:
        name, path = trace.split("=", 1)
        kernels, begin, end = median_step(read(path), arguments.layers)
        steps.append((name, kernels, begin, end))
        spent = {kind: sum(k[1] - k[0] for k in kernels if k[2] == kind) for kind, *_ in KINDS}
        print(f"{name}: {(end - begin) / 1e6:.3f} ms;",
              ", ".join(f"{kind} {ns / 1e6:.3f}" for kind, ns in spent.items()), file=sys.stderr)
    longest = max(end - begin for *_, begin, end in steps)
    scale = (WIDTH - LEFT - 10) / longest
    top = HEAD + len(steps) * (2 * LANE + 26 + GAP)
    body = legend() + axis(longest, scale, top)
    for i, step in enumerate(steps):
        body += draw(*step, scale, HEAD + i * (2 * LANE + 26 + GAP))
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top + 24}" '
          'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>')
    print("\n".join(body) + "\n</svg>")


if __name__ == "__main__":
    main()
