"""Fails when an object that was compiled for an instruction set defines a weak function.

Of all copies of a weak function the linker keeps one, perhaps the one that a lesser machine cannot
run.  usage: isa_symbols.py NM LIBRARY
"""

import re
import subprocess
import sys


def main():
    nm, library = sys.argv[1:]
    listing = subprocess.run([nm, "-C", "--defined-only", library], check=True,
                             capture_output=True, text=True).stdout
    members, leaks, member = 0, [], None
    for line in listing.splitlines():
        if header := re.fullmatch(r"(\S+\.o):", line):
            is_isa = re.search(r"_(avx2|avx512|amx)\.cc\.o$", header[1])
            member = header[1] if is_isa else None
            members += member is not None
        elif member and (symbol := re.fullmatch(r"[0-9a-f]+ W (.*)", line)):
            leaks.append(f"{member}: {symbol[1]}")
    print(f"{members} objects for an instruction set, {len(leaks)} weak functions")
    print(*leaks, sep="\n")
    return 1 if leaks or members == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
