# SPDX-License-Identifier: Apache-2.0
"""Tests the process-wide state: threads may access it concurrently, and units that do not use it do
not contain it."""

import subprocess

import emulator
import pytest
import toolkit
from compilers import flags, passes, write

# Threads that each make their first call at the same time.
RACE = """
#include <pthread.h>
static void *call(void *unused)
{
    (void)unused;
    %s
    return 0;
}
int main(void)
{
    pthread_t threads[8];
    for (int i = 0; i < 8; ++i) pthread_create(&threads[i], 0, call, 0);
    for (int i = 0; i < 8; ++i) pthread_join(threads[i], 0);
    return 0;
}
"""
# The CUDA runtime of one device, as far as launchers call it.
RUNTIME = """
#include <cuda_runtime.h>
extern "C" {
cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *status)
{
    *status = cudaStreamCaptureStatusNone; return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t, int *device) { *device = 0; return cudaSuccess; }
}
"""
C_CALL = (
    "static float x[1 << 16]; float *out = (float *)malloc(sizeof x); kf_cpu_gelu_f32(x, out, "
    "1 << 16); free(out);"
)
CUDA_CALL = 'const kfi_name name = {"kf_{act}", "relu"}; kfi_check_device<>(&name, 0);'


def races(command, source, tmp_path):
    passes(
        [*command, "-g", "-fsanitize=thread", "-pthread", source, "-o", tmp_path / "race", "-lm"]
    )
    # OpenMP's runtime is not instrumented, so ThreadSanitizer would report it: one thread per
    # region, and its accesses are ignored.
    (tmp_path / "suppressed").write_text("called_from_lib:libgomp.so\nrace:gomp_\n")
    options = f"exitcode=66:suppressions={tmp_path}/suppressed:ignore_noninstrumented_modules=1"
    done = subprocess.run(
        [*emulator.fixed_addresses(), tmp_path / "race"],
        capture_output=True,
        text=True,
        timeout=120,
        env={"TSAN_OPTIONS": options, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode in (0, 66), done.stderr
    return done.stderr


def test_threads_of_c_launchers(include, tmp_path):
    [source] = write(
        tmp_path, {"race.c": f"#include <kf/ops/act.h>\n#include <stdlib.h>\n{RACE % C_CALL}"}
    )
    assert "data race" not in (
        report := races(["gcc", "-std=gnu11", "-O1", "-fopenmp", *flags(include)], source, tmp_path)
    ), report


@pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
def test_threads_of_cuda_launchers(include, tmp_path):
    text = f"{RUNTIME}#include <kf/core/launch.cuh>\n{RACE % CUDA_CALL}"
    [source] = write(tmp_path, {"race.cpp": text})
    command = [
        "g++",
        "-std=c++17",
        "-O1",
        "-D__launch_bounds__(...)=",
        "-isystem",
        toolkit.include(),
        *flags(include),
    ]
    assert "data race" not in (report := races(command, source, tmp_path)), report


def sections(source, tmp_path, *words):
    passes(["gcc", *words, "-c", source, "-o", tmp_path / "unit.o"])
    return passes(["objdump", "-h", tmp_path / "unit.o"])


@pytest.mark.parametrize("optimised", ["-O0", "-O2"])
def test_a_unit_that_calls_nothing_starts_nothing(optimised, include, tmp_path):
    """The state for OpenMP exists only in units that contain a launcher."""
    text = "#include <kf/ops/add.h>\nint own(void);\nint own(void) { return 1; }\n"
    used = (
        text
        + "kf_result_t use(float *x);\nkf_result_t use(float *x) { return kf_cpu_add_f32(x, x, "
        "x, 4); }\n"
    )
    for name, body, there in (("unused", text, False), ("used", used, True)):
        [source] = write(tmp_path, {f"{name}.c": body})
        for language in ("c", "c++"):
            found = sections(
                source, tmp_path, "-x", language, optimised, "-fopenmp", *flags(include)
            )
            assert (".init_array" in found or ".ctors" in found) == there, (
                f"{name}, {language}:\n{found}"
            )
