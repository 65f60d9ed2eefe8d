# SPDX-License-Identifier: Apache-2.0
"""Measures the processor time of compiling one function.

By NVRTC as one text (`kfgen source`) and through the op's header; by nvcc to device code and to an
object. Processor time excludes other work of the machine.

    python3 bench/compile_time.py [--step 5] [--nvcc-step 100]

writes bench/results/compile/nvrtc.json and the table of docs/compile_time.md (--docs: that alone).
"""

import argparse
import json
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "gen"), str(ROOT / "tests/support")]

import folders  # noqa: E402

folders.add()

import kflib  # noqa: E402
import nvrtc  # noqa: E402
import toolkit  # noqa: E402
from kfgen.entries import spec  # noqa: E402
from kfgen.render import source  # noqa: E402
from kfgen.render.render import Selection  # noqa: E402

RESULT, PAGE, MARK = (
    ROOT / "bench/results/compile/nvrtc.json",
    ROOT / "docs/compile_time.md",
    "<!-- bench/compile_time.py -->",
)
METHODS = {
    "nvrtc_text": "NVRTC, one text of `kfgen source`",
    "nvrtc_header": "NVRTC, the op's header",
    "nvcc_cubin": "nvcc -cubin, the op's header",
    "nvcc_object": "nvcc -c, the op's header",
}
ARCH = "sm_90"


def nvcc_seconds(f, include, folder, *what):
    arguments = f["signature"].split("(", 1)[1].rsplit(")", 1)[0]
    names = ", ".join([a["name"] for a in f["arguments"]] + ["stream"])
    (folder / "one.cu").write_text(
        f"#include <{f['header']}.cuh>\n"
        f"kf_result_t call({arguments}) {{ return {f['name']}({names}); }}\n"
    )
    command = [
        toolkit.nvcc(),
        "-O3",
        f"-arch={ARCH}",
        *(f"-I{d}" for d in include),
        *what,
        "one.cu",
    ]
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, check=True)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime


def every(functions, step):
    """Returns every `step`-th function, and one of each op that this misses."""
    found = functions[::step]
    return found + list(
        {f["op"]: f for f in functions if f["op"] not in {g["op"] for g in found}}.values()
    )


def measure(step, nvcc_step):
    selection = Selection(spec.load())
    launchers = {
        launcher.name: launcher for k in selection.all_kernels() for launcher in k.launchers
    }
    functions = kflib.on("cuda", kflib.manifest()["functions"])
    seconds = {method: [] for method in METHODS}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        include = kflib.render(folder)
        nvrtc.compile_text("", arch=ARCH)  # loads the library
        for f in every(functions, step):
            asked = source.kernel_names(launchers[f["name"]])
            seconds["nvrtc_text"].append(
                nvrtc.compile_text(source.source(selection, f["name"]), asked, arch=ARCH)[0]
            )
            seconds["nvrtc_header"].append(
                nvrtc.compile_text(f"#include <{f['header']}.cuh>\n", asked, include, ARCH)[0]
            )
        for f in functions[::nvcc_step]:
            seconds["nvcc_cubin"].append(
                nvcc_seconds(f, include, folder, "-cubin", "-o", "one.cubin")
            )
            seconds["nvcc_object"].append(nvcc_seconds(f, include, folder, "-c", "-o", "one.o"))
    cpu = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text())
    version = subprocess.run([toolkit.nvcc(), "--version"], capture_output=True, text=True).stdout
    return {
        "command": f"python3 bench/compile_time.py --step {step} --nvcc-step {nvcc_step}",
        "cpu": cpu[1] if cpu else "unknown",
        "arch": ARCH,
        "nvcc": re.search(r"V([\d.]+)", version)[1],
        "functions": len(functions),
        "seconds": {
            method: {
                "functions": len(t),
                "median": round(statistics.median(t), 3),
                "least": round(min(t), 3),
                "most": round(max(t), 3),
            }
            for method, t in seconds.items()
        },
    }


def table(result):
    lines = [
        f"Processor seconds for one function of the {result['functions']:,}, all its kernels, "
        f"{result['arch']}, CUDA {result['nvcc']}, {result['cpu']}:",
        "",
        "| | median | least | most | functions measured |",
        "|:--|--:|--:|--:|--:|",
    ]
    for method, words in METHODS.items():
        t = result["seconds"][method]
        lines.append(
            f"| {words} | {t['median']:.2f} | {t['least']:.2f} | {t['most']:.2f} "
            f"| {t['functions']} |"
        )
    return "\n".join(lines)


def write_page(result):
    before, _, after = PAGE.read_text().split(MARK)
    PAGE.write_text(f"{before}{MARK}\n{table(result)}\n{MARK}{after}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--step", type=int, default=5, help="every so many functions by NVRTC")
    parser.add_argument("--nvcc-step", type=int, default=100, help="every so many by nvcc")
    parser.add_argument("--docs", action="store_true", help="only write the page anew")
    options = parser.parse_args()
    if not options.docs:
        if not (toolkit.nvcc() and toolkit.nvrtc()):
            sys.exit("compile_time.py: nvcc or NVRTC is missing")
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        RESULT.write_text(json.dumps(measure(options.step, options.nvcc_step), indent=1) + "\n")
    write_page(json.loads(RESULT.read_text()))


if __name__ == "__main__":
    main()
