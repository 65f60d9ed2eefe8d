# SPDX-License-Identifier: Apache-2.0
"""Puts report.py's tables into README.md, between <!-- bench:NAME --> and <!-- /bench:NAME -->.

    python3 bench/readme.py h200 bench/results/h200/roofline.json bench/results/h200/compile.json
"""

import argparse
import pathlib
import re

import report

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"


def filled(text, name, body):
    text, found = re.subn(rf"(<!-- bench:{name} -->\n).*?(<!-- /bench:{name} -->)", lambda m: f"{m[1]}\n{body.strip()}\n\n{m[2]}", text, flags=re.S)
    if found != 1:
        raise SystemExit(f"README.md has no section between <!-- bench:{name} --> and <!-- /bench:{name} -->")
    return text


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("name", help="h200 or cpu")
    p.add_argument("results", type=pathlib.Path, nargs="+")
    args = p.parse_args()
    body = "\n\n".join(report.markdown(path, every=False) for path in args.results)
    README.write_text(filled(README.read_text(), args.name, re.sub(r"^## ", "### ", body, flags=re.M)))


if __name__ == "__main__":
    main()
