# SPDX-License-Identifier: Apache-2.0
"""Runs level 2 in many processes, as plan.py divides it for a number of GPUs and cores. Exit status
0 means that no test failed or is missing.

    python tests/support/level2/run.py GPUS CORES [--parts emu:26 headers:16 ...] [--no-gpu]
                                       [--only FILE] [--out DIR] [--tag TAG] [--detach]
    python tests/support/level2/run.py --watch SECONDS [--out DIR]

Each part is a process group: `kill -INT -- -$(cat DIR/NAME.pid)` ends one. All parts share one
session, because Linux compares nice values within a session only (kernel.sched_autogroup_enabled).
With a session each, twenty parts at nice 10 leave the compilers a twentieth of the cores.
"""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

if __name__ == "__main__":
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from level2 import logs, plan, report

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
LINE = 60  # seconds between two status lines


def environment(gpus):
    """Returns the environment of `make test`, with one thread per process: there are as many
    processes as cores."""
    path = [
        str(pathlib.Path(sys.executable).parent),
        os.environ["PATH"],
        *([] if shutil.which("nvcc") else ["/usr/local/cuda/bin"]),
    ]
    return {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "2",
        **os.environ,
        "KF_LEVEL": "2",
        "PATH": os.pathsep.join(path),
        "CUDA_VISIBLE_DEVICES": gpus,
    }


def command(part, out, only=None):
    """Returns the pytest command of a part. loadgroup gives each free worker one test at a time."""
    words = [
        "nice",
        "-n",
        str(part.nice),
        sys.executable,
        str(HERE / "plugin.py"),
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        str(part.workers),
        "--dist",
        "loadgroup",
        "--outcomes",
        str(out / f"{part.name}.jsonl"),
    ]
    words += ["--share", part.share] * bool(part.share) + ["--only", str(only)] * bool(only)
    return [*words, *(f"--ignore={f}" for f in part.ignored), *part.paths]


class Runner:
    """Starts parts as soon as their libraries exist, until all have ended."""

    def __init__(self, out, parts, only=None, tag=""):
        self.out, self.waiting, self.only, self.running = out, list(parts), only, {}
        self.builder, self.ready = f"libraries{tag}", out / f"ready{tag}"

    def start(self, name, words, gpus):
        with open(self.out / f"{name}.out", "w") as log:
            self.running[name] = subprocess.Popen(
                words,
                cwd=ROOT,
                env=environment(gpus),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        (self.out / f"{name}.pid").write_text(str(self.running[name].pid))

    def libraries(self, cores):
        """Starts the compilation of the libraries that the parts need."""
        needs = sorted({need for part in self.waiting for need in part.needs})
        if needs:
            shutil.rmtree(self.ready, ignore_errors=True)
            words = [
                sys.executable,
                str(HERE / "libraries.py"),
                str(cores),
                str(self.ready),
                *needs,
            ]
            self.start(self.builder, words, os.environ.get("CUDA_VISIBLE_DEVICES", "0"))

    def can_start(self, part):
        """True if the part's libraries exist, or if no process is compiling them."""
        return self.builder not in self.running or all(
            (self.ready / need).exists() for need in part.needs
        )

    def step(self):
        """Starts what can start; returns True while any part is left."""
        self.running = {
            name: process for name, process in self.running.items() if process.poll() is None
        }
        for part in [p for p in self.waiting if self.can_start(p)]:
            self.waiting.remove(part)
            self.start(part.name, command(part, self.out, self.only), part.gpus)
        return bool(self.running or self.waiting)

    def stop(self):
        for process in self.running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
        for process in self.running.values():
            process.wait()


def alive(out):
    """Returns the names of the started processes that have not ended."""
    found = []
    for path in sorted(out.glob("*.pid")):
        try:
            stat = pathlib.Path(f"/proc/{int(path.read_text())}/stat").read_text()
        except (OSError, ValueError):
            continue
        if stat.rpartition(")")[2].split()[0] != "Z":
            found.append(path.stem)
    return found


def status_line(out):
    """Returns one line on all parts and the libraries."""
    there = list(out.glob("ready*/*"))
    failed = "".join(f" FAILED {p.name}" for p in there if p.stat().st_size)
    return report.status(logs.parts([out]), alive(out)) + (
        f" | libraries {len(there)}{failed}" if there else ""
    )


def print_report(out):
    parts = logs.parts([out])
    begun = [
        p.stem for p in out.glob("*.pid") if p.stem != "run" and not p.stem.startswith("libraries")
    ]
    print(report.report(parts, begun), end="", flush=True)
    return bool(report.again(parts)) or {p.name for p in parts} < set(begun)


def watch(out, seconds):
    """Waits for a detached run, at most `seconds`, and prints a line a minute."""
    until, line = time.monotonic() + seconds, 0.0
    while alive(out) and time.monotonic() < until:
        if time.monotonic() >= line:
            print(status_line(out), flush=True)
            line = time.monotonic() + LINE
        time.sleep(1)
    return print_report(out)


def run(out, parts, cores, only, tag):
    runner, line = Runner(out, parts, only, tag), time.monotonic() + LINE
    runner.libraries(cores)
    try:
        while runner.step():
            time.sleep(1)
            if time.monotonic() >= line:
                print(status_line(out), flush=True)
                line = time.monotonic() + LINE
    finally:
        runner.stop()
    return print_report(out)


def chosen(given):
    """Returns the parts of this call. A part of an earlier call keeps its log, so a repeated part
    needs a tag."""
    files = plan.cuda_files(ROOT)
    parts = plan.plan(given.gpus, given.cores, files, given.parts, not given.no_gpu)
    if given.only:
        parts = plan.of_list(parts, given.only.read_text().splitlines())
    parts = [p._replace(name=p.name + (f".{given.tag}" if given.tag else "")) for p in parts]
    if there := [p.name for p in parts if (given.out / f"{p.name}.jsonl").exists()]:
        sys.exit(f"{given.out} has logs of {', '.join(there)}: give a --tag, or another --out")
    return parts


def detached(out):
    """Starts this call again in the background, in its own session."""
    words = [
        sys.executable,
        str(HERE / "run.py"),
        *(word for word in sys.argv[1:] if word != "--detach"),
    ]
    with open(out / "run.out", "a") as text:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=text,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    (out / "run.pid").write_text(str(process.pid))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("gpus", type=int, nargs="?", default=0)
    parser.add_argument("cores", type=int, nargs="?", default=os.cpu_count())
    parser.add_argument(
        "--parts",
        nargs="+",
        default=(),
        metavar="PATHS:WORKERS",
        help="of the other folders these alone",
    )
    parser.add_argument("--no-gpu", action="store_true", help="nothing of tests/cuda")
    parser.add_argument(
        "--only",
        type=lambda p: pathlib.Path(p).resolve(),
        metavar="FILE",
        help="tests of a list (report.py --write)",
    )
    parser.add_argument(
        "--out",
        type=lambda p: pathlib.Path(p).resolve(),
        default=ROOT / "build/level2",
        metavar="DIR",
    )
    parser.add_argument("--tag", default="", help="behind the parts' names, for a further call")
    parser.add_argument("--detach", action="store_true", help="return at once")
    parser.add_argument(
        "--watch", type=float, metavar="SECONDS", help="only wait for what runs, and report"
    )
    given = parser.parse_args()
    if given.watch is not None:
        return watch(given.out, given.watch)
    parts = chosen(given)
    given.out.mkdir(parents=True, exist_ok=True)
    if given.detach:
        return detached(given.out)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also ends the parts
    return run(given.out, parts, given.cores, given.only, given.tag)


if __name__ == "__main__":
    sys.exit(main())
