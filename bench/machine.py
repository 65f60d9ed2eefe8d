# SPDX-License-Identifier: Apache-2.0
"""Describes the machine of a measurement: processor, GPU, versions, compiler, clocks."""

import pathlib
import platform
import re
import subprocess


def _run(*command):
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _first(pattern, text):
    found = re.search(pattern, text or "")
    return found.group(1).strip() if found else None


def clocks():
    """Reads clocks, power and temperature of the GPU; sets nothing."""
    fields = ["clocks.sm", "clocks.mem", "power.draw", "temperature.gpu"]
    text = _run("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    return dict(zip(fields, text.splitlines()[0].split(", "))) if text else None


def flags(backend):
    """Compiler flags: the tests', with sm_90a for a GPU that has wgmma."""
    import kflib

    if backend == "cpu":
        return list(kflib.CPU_FLAGS)
    return (
        [*(f for f in kflib.CUDA_FLAGS if "arch" not in f), "-arch=sm_90a"]
        if kflib.capability() == (9, 0)
        else list(kflib.CUDA_FLAGS)
    )


def describe(backend, compiler, flags, threads):
    import torch

    try:
        cpu = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        cpu = ""
    found = {
        "cpu": _first(r"model name\s*:\s*(.*)", cpu) or platform.processor(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "flags": " ".join(flags),
    }
    if backend == "cuda":
        import triton

        gpu = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": gpu.name,
            "multiprocessors": gpu.multi_processor_count,
            "l2_mib": getattr(gpu, "L2_cache_size", 0) / 2**20,
            "driver": (
                _run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
                or "unknown"
            ).splitlines()[0],
            "torch_cuda": torch.version.cuda,
            "triton": triton.__version__,
            "nvcc": _first(r"release .*?V([\d.]+)", _run(compiler, "--version")),
        }
    else:
        vectors = [
            w for w in ("avx2", "avx512f", "avx512bw", "avx512_bf16") if re.search(rf"\b{w}\b", cpu)
        ]
        found |= {
            "vectors": vectors,
            "threads": threads,
            "compiler": (_run(compiler, "--version") or "").split("\n")[0],
            "torch_vectors": torch.backends.cpu.get_cpu_capability(),
        }
    return found
