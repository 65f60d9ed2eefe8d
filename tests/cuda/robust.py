# SPDX-License-Identifier: Apache-2.0
"""`make robust`: tests the GPU promises of kf beyond right numbers, and logs what ran.

Usage: python3 tests/cuda/robust.py --log bench/results/h200/robust.txt
"""

import argparse
import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "gen")]

import folders  # noqa: E402

folders.add()

import counting  # noqa: E402
import kflib  # noqa: E402
import numeric  # noqa: E402
import sanitized  # noqa: E402
import selection  # noqa: E402

BUILD = ROOT / "build/tests"
FILES = ("test_sanitizers.py", "test_large.py", "test_robust.py", "test_devices.py")


def output_of(*command):
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, cwd=ROOT
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def machine():
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    found = {
        "GPU": output_of(
            "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"
        ).replace("\n", "; "),
        "nvcc": "".join(re.findall(r"release .*?V([\d.]+)", output_of("nvcc", "--version"))),
        "compute-sanitizer": "".join(
            re.findall(r"Version ([\d.]+)", output_of(sanitizer, "--version"))
        ),
        "commit": output_of("git", "describe", "--always", "--dirty", "--abbrev=12"),
        "KF_LEVEL": os.environ.get("KF_LEVEL", "1"),
    }
    return [f"{what:18} {value or 'unknown'}" for what, value in found.items()]


def build(jobs, chosen):
    """Builds both libraries on all cores before the tests need them. chosen: a pytest expression
    whose tests may need a smaller library of their own."""
    began = time.monotonic()
    if not chosen:
        kflib.build(
            "cuda",
            numeric.CUDA["default"],
            BUILD / "cuda",
            numeric.BUILDS["cuda"]["default"],
            jobs,
            extra=counting.source(),
            link=counting.LINK,
        )
    middle = time.monotonic()
    kflib.build(
        "cuda", kflib.on("cuda", selection.kernels()), BUILD / "sanitized", sanitized.FLAGS, jobs
    )
    return f"built in {middle - began:.0f} + {time.monotonic() - middle:.0f} s with {jobs} jobs"


def table(report):
    """Lines of the log: per test function the numbers passed, failed and skipped; then failures and
    reasons for skipping."""
    counts, times, notes = (
        collections.defaultdict(collections.Counter),
        collections.Counter(),
        collections.Counter(),
    )
    for case in xml.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname').rsplit('.', 1)[-1]}::{case.get('name').split('[')[0]}"
        outcome = next(
            (kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None),
            "passed",
        )
        counts[name]["failed" if outcome in ("failure", "error") else outcome] += 1
        times[name] += float(case.get("time"))
        if outcome != "passed":
            text = (case.find(outcome).get("message") or "").replace("\n", " ")[:400]
            notes[
                f"{name}: skipped: {text}"
                if outcome == "skipped"
                else f"{case.get('name')}: {text}"
            ] += 1
    lines = [f"{'':52}{'passed':>8}{'failed':>8}{'skipped':>8}{'seconds':>9}"]
    lines += [
        f"{name:52}{c['passed']:8}{c['failed']:8}{c['skipped']:8}{times[name]:9.0f}"
        for name, c in sorted(counts.items())
    ]
    return lines + [""] + [f"{note} ({n}x)" for note, n in sorted(notes.items())]


def sanitizer_logs():
    lines = []
    for log in sorted((BUILD / "sanitizers").glob("*.log")):
        summary = [line.strip("= ") for line in log.read_text().splitlines() if "SUMMARY" in line]
        planted = " (as planted)" if log.stem.startswith("planted") else ""
        lines.append(f"{log.stem:20} {'; '.join(summary) or 'no summary'}{planted}")
    return lines


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--log", type=pathlib.Path, default=ROOT / "build/robust.txt")
    p.add_argument(
        "-n", type=int, default=max(2, min(14, (os.cpu_count() or 2) - 2)), help="processes"
    )
    p.add_argument("-k", default="", help="as pytest's")
    options = p.parse_args()
    if not kflib.has_gpu():
        print("kf: no CUDA device answers: nothing to test here")
        return 0
    if not shutil.which("nvcc"):
        os.environ["PATH"] += os.pathsep + "/usr/local/cuda/bin"
    began = time.monotonic()
    shutil.rmtree(BUILD / "sanitizers", ignore_errors=True)
    built = build(os.cpu_count() or 2, options.k)
    print(built, flush=True)
    report = BUILD / "robust.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        str(options.n),
        "--dist",
        "worksteal",
        f"--junitxml={report}",
        *(["-k", options.k] if options.k else []),
        *(str(ROOT / "tests/cuda" / name) for name in FILES),
    ]
    report.unlink(missing_ok=True)
    status = subprocess.run(command, cwd=ROOT).returncode
    lines = [
        "Robustness on a GPU: what `make robust` ran",
        "",
        *machine(),
        built,
        f"{time.monotonic() - began:.0f} s in all, {options.n} processes",
        "",
    ]
    lines += table(report) if report.exists() else ["pytest wrote no report"]
    lines += [
        "",
        "compute-sanitizer:",
        *sanitizer_logs(),
        "",
        "passed" if status == 0 else f"FAILED (pytest: {status})",
    ]
    options.log.parent.mkdir(parents=True, exist_ok=True)
    options.log.write_text("\n".join(line.rstrip() for line in lines) + "\n")
    print(f"the log is {options.log}")
    return status


if __name__ == "__main__":
    sys.exit(main())
