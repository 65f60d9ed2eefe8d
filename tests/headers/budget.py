# SPDX-License-Identifier: Apache-2.0
"""Measures the compile cost of the headers, relative to a hand-written kernel.

It measures the instructions that nvcc executes, its time, and the kernels in the object. `python
tests/headers/budget.py [--runs N]` prints the table; `--append` adds a row to budget_history.tsv.

Budgets count the instructions of all of nvcc's passes, with valgrind: they repeat to a thousandth
on any machine. Processor time does not: for one version of the headers its ratio was 1.45, 1.59 and
1.74 within a day, because other memory traffic slows the larger text more. The table shows the time
too, as the shortest of interleaved runs; `umbrella_time` and `op_header_time` of the history were
medians up to df50c6d.
"""

import argparse
import pathlib
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import folders  # noqa: E402

folders.add()

import kflib  # noqa: E402
import toolkit  # noqa: E402
from instructions import NVCC, kernels_in  # noqa: E402

FLOOR = """
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
static __global__ void add_relu(const float *a, const float *b, float *out, long long n)
{
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) {
        const float y = a[i] + b[i];
        out[i] = y <= 0.0f ? 0.0f : y;
    }
}
cudaError_t call(const float *a, const float *b, float *out, long long n, cudaStream_t stream)
{
    add_relu<<<(unsigned)((n + 255) / 256), 256, 0, stream>>>(a, b, out, n);
    return cudaGetLastError();
}
"""
CALL = """
kf_result_t call(const float *a, const float *b, float *out, long long n, cudaStream_t stream)
{
    return kf_add_relu_f32(a, b, out, n, stream);
}
"""
C_CALL = """#include <kf/kf.h>
kf_result_t call(const float *a, const float *b, float *out, int64_t n);
kf_result_t call(const float *a, const float *b, float *out, int64_t n)
{
    return kf_cpu_add_relu_f32(a, b, out, n);
}
"""
SOURCES = {
    "floor": FLOOR,
    "umbrella": "#include <kf/kf.cuh>\n" + CALL,
    "op header": "#include <kf/ops/add.cuh>\n" + CALL,
    "umbrella, nothing called": "#include <kf/kf.cuh>\n",
}
C_SOURCES = {"C, empty file": "extern int not_empty;\n", "C, kf/kf.h and one call": C_CALL}
TIMED = ("floor", "umbrella", "op header")


def umbrella_goal(launchers):
    """Goal, as a ratio to the floor: 1.5 up to 2,800 launchers, 2.12 for 5,162, then 0.25 per
    1,000."""
    return (
        2.12 + 0.25 * (launchers - 5162) / 1000
        if launchers > 5162
        else 1.5 + 0.62 * max(0, launchers - 2800) / 2362
    )


def umbrella_budget(launchers):
    """Budget while the goal is missed (bench/NOTES.md, "The umbrella is over its budget"): the
    measured ratio for 6,982 launchers, with the goal's slope."""
    return 2.84 + 0.25 * (launchers - 6982) / 1000


OP_BUDGET = 1.15
# Tokens after preprocessing, beyond the floor's. Umbrella: per op, direction and dtypes; an
# activation adds only a call to that text. Op header: in all. A token costs four times as much in
# the host pass. The slab epilogue of linear layers added 6 and 4 tokens per text.
TOKENS = {
    "device": {"umbrella": 1294, "op header": 38500},
    "host": {"umbrella": 1003, "op header": 29900},
}


def budgets(m):
    return {"umbrella": umbrella_budget(m["launchers"]), "op header": OP_BUDGET}


VALGRIND = shutil.which("valgrind")


def instructions(command, work):
    """Counts the instructions of a command and its child processes; valgrind writes a file for
    each."""
    counts = work / "counts"
    counts.mkdir()
    count = [
        VALGRIND,
        "-q",
        "--tool=cachegrind",
        "--cache-sim=no",
        "--trace-children=yes",
        f"--cachegrind-out-file={counts}/%p",
        f"--log-file={work}/valgrind.log",
    ]
    compile_seconds(count + command, work)
    found = [
        int(re.search(r"^summary: (\d+)", path.read_text(), re.M)[1]) for path in counts.iterdir()
    ]
    shutil.rmtree(counts)
    return sum(found)


PREPROCESSORS = {
    "device": (NVCC, "-std=c++17", "-arch=sm_90"),  # nvcc -E
    "host": (
        "g++",
        "-std=c++17",
        "-xc++",
        "-D__CUDACC__",
        "-D__NVCC__",
        f"-I{toolkit.include()}",
        "-include",
        "cuda_runtime.h",
    ),
}


def tokens(name, include, work, side="device"):
    """Counts the tokens of one of SOURCES that come from kf's headers and from the source itself,
    on the device or host side. Headers of CUDA and of the C++ library grow from version to version,
    so they are excluded."""
    (work / "tokens.cu").write_text(SOURCES[name])
    command = [*PREPROCESSORS[side], *(f"-I{d}" for d in include), "-E", "tokens.cu"]
    output = subprocess.run(command, cwd=work, capture_output=True, text=True, check=True).stdout
    ours, found = ("tokens.cu", *(f"{d}/" for d in include)), 0
    # Each part follows one of the preprocessor's line markers.
    for text in re.split(r"^# \d+ ", output, flags=re.M)[1:]:
        where, _, text = text.partition("\n")
        if where.startswith(tuple(f'"{own}' for own in ours)):
            found += len(re.findall(r"\w+|[^\w\s]", re.sub(r"^#.*$", "", text, flags=re.M)))
    return found


def compile_seconds(command, work):
    # Processor time, so that other programs do not count.
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(c) for c in command], cwd=work, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stderr[:4000]}")
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime


def measure(include, runs=0, count=False):
    """Returns {"instructions": {name: n}, "seconds": {name: [one per run]}, "kernels": {name:
    [...]}, "object": {name: bytes}, "launchers": n}."""
    flags = [f"-I{d}" for d in include]
    found = {
        "instructions": {},
        "seconds": {name: [] for name in (*TIMED, *C_SOURCES)},
        "kernels": {},
        "object": {},
        "launchers": len(kflib.on("cuda", kflib.manifest()["functions"])),
    }
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for i, text in enumerate(SOURCES.values()):
            (work / f"{i}.cu").write_text(text)
        for i, text in enumerate(C_SOURCES.values()):
            (work / f"{i}.c").write_text(text)
        commands = {
            name: [
                NVCC,
                "-std=c++17",
                "-O3",
                "-arch=sm_90",
                *flags,
                "-c",
                f"{i}.cu",
                "-o",
                f"{i}.o",
            ]
            for i, name in enumerate(SOURCES)
        }
        commands |= {
            name: ["gcc", "-std=c11", "-O2", *flags, "-c", f"{i}.c", "-o", f"{i}.c.o"]
            for i, name in enumerate(C_SOURCES)
        }
        # These compilations also bring the files of CUDA and the compiler into memory.
        for i, name in enumerate(SOURCES):
            compile_seconds(commands[name], work)
            found["object"][name] = (work / f"{i}.o").stat().st_size
            found["kernels"][name] = kernels_in(work / f"{i}.cu", include, work)
        for _ in range(runs):
            for name, times in found["seconds"].items():
                times.append(compile_seconds(commands[name], work))
        if count:
            found["instructions"] = {name: instructions(commands[name], work) for name in TIMED}
    return found


def ratio(m, name):
    """Instructions executed for `name`, relative to the floor."""
    return m["instructions"][name] / m["instructions"]["floor"]


def time_ratio(m, name):
    """Shortest processor time, relative to the floor's: other work only ever adds to one."""
    return min(m["seconds"][name]) / min(m["seconds"]["floor"])


def table(m):
    lines = [
        f"{'':<26}{'instructions':>14}{'ratio':>7}{'budget':>8}{'min s':>8}{'median':>8}"
        f"{'max':>7}{'ratio':>7}{'object':>9}  kernels"
    ]
    for name in (*SOURCES, *C_SOURCES):
        times = m["seconds"].get(name)
        row = f"{name:<26}"
        row += (
            f"{m['instructions'][name] / 1e6:12.0f} M{ratio(m, name):7.3f}"
            if name in m["instructions"]
            else " " * 21
        )
        row += f"{budgets(m)[name]:8.2f}" if name in budgets(m) else " " * 8
        row += (
            f"{min(times):8.2f}{statistics.median(times):8.2f}{max(times):7.2f}"
            if times
            else " " * 23
        )
        row += f"{time_ratio(m, name):7.2f}" if times and name in TIMED else " " * 7
        row += f"{m['object'][name]:9}  {len(m['kernels'][name])}" if name in SOURCES else ""
        lines.append(row.rstrip())
    return "\n".join(
        [*lines, f"{m['launchers']} launchers, {len(m['seconds']['floor'])} interleaved runs"]
    )


HISTORY = pathlib.Path(__file__).with_name("budget_history.tsv")
COLUMNS = (
    "date",
    "commit",
    "launchers",
    "umbrella",
    "op_header",
    "umbrella_time",
    "op_header_time",
    "runs",
    "nvcc",
    "cpu",
)


def history():
    """Returns the rows of budget_history.tsv, oldest first, as {column: text}."""
    first, *lines = HISTORY.read_text().splitlines()
    if tuple(first.split("\t")) != COLUMNS:
        raise ValueError(f"{HISTORY.name}: the columns are {first!r}")
    return [dict(zip(COLUMNS, line.split("\t"), strict=True)) for line in lines]


def append(m):
    """Appends a row for the current commit, which gets a plus if the tree has changes."""

    def output(*command):
        return subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=HISTORY.parent
        ).stdout.strip()

    changed = (
        "+"
        if output(
            "git", "status", "--porcelain", "--", "../../include", "../../templates", "../../gen"
        )
        else ""
    )
    cpu = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text())
    row = {
        "date": output("git", "log", "-1", "--format=%cs"),
        "commit": output("git", "log", "-1", "--format=%h") + changed,
        "launchers": m["launchers"],
        "umbrella": f"{ratio(m, 'umbrella'):.3f}",
        "op_header": f"{ratio(m, 'op header'):.3f}",
        "umbrella_time": f"{time_ratio(m, 'umbrella'):.3f}",
        "op_header_time": f"{time_ratio(m, 'op header'):.3f}",
        "runs": len(m["seconds"]["floor"]),
        "nvcc": re.search(r"V([\d.]+)", output(NVCC, "--version"))[1],
        "cpu": cpu[1] if cpu else "unknown",
    }
    with HISTORY.open("a") as file:
        file.write("\t".join(str(row[c]) for c in COLUMNS) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--append", action="store_true", help=f"add a row to {HISTORY.name}")
    options = parser.parse_args()
    if not NVCC:
        sys.exit("budget.py: nvcc is missing")
    if not VALGRIND:
        sys.exit("budget.py: valgrind is missing")
    if options.runs < 1:
        sys.exit("budget.py: --runs is at least 1")
    with tempfile.TemporaryDirectory() as folder:
        m = measure(kflib.render(folder), options.runs, count=True)
    print(table(m))
    if options.append:
        append(m)


if __name__ == "__main__":
    main()
