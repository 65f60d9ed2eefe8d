# SPDX-License-Identifier: Apache-2.0
"""The runtime's CUDA side over a fake CUDA runtime (support/gpu/fake_cudart.cpp), whose streams
only execute when a call waits for them.

The tests check which stream each call uses, that memory is not reused before the streams that use
it have finished, and every call that may fail.
"""

import ctypes
import subprocess
import sys

import kflib
import numpy as np
import pytest
import runtime_api
import toolkit
from runtime_api import F16, F32, Memory, Stats, StreamConfig

pytestmark = pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
FAKE = kflib.ROOT / "tests/support/gpu/fake_cudart.cpp"


def build(folder):
    include = ["-isystem", str(toolkit.include())]
    words = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", *include, "-fPIC", "-shared"]
    subprocess.run(["g++", *words, FAKE, "-o", folder / "libfake.so"], check=True)
    return runtime_api.compile_library(
        folder,
        "-DKF_RUNTIME_CUDA",
        *include,
        compiler="g++ -std=c++17",
        name="runtime.cpp",
        link=[folder / "libfake.so"],
    )


@pytest.fixture(scope="module")
def library(once):
    return once("runtime over a CUDA of the tests", build)


@pytest.fixture
def gpu(library):
    found = runtime_api.Api(library)
    fake = ctypes.CDLL(str(library.parent / "libfake.so"))
    fake.fake_log.restype = ctypes.c_char_p
    found.fake = fake
    found.log = lambda: fake.fake_log().decode()
    fake.fake_clear()
    yield found
    assert fake.fake_pools() == 0 and fake.fake_current() == 0


@pytest.fixture
def ctx(gpu):
    made = gpu.context(1)
    yield made
    assert gpu.context_destroy(made) == 0


def on_gpu(api, ctx, array, stream=None):
    """A tensor with an array's values, which are present once its stream has reached that point."""
    t, cpu = api.create(ctx, array.shape, F32), api.context()
    source = api.over(cpu, array, F32)
    assert api.tensor_copy(t, source, stream) == 0, api.detail
    return t, [("tensor", source), ("context", cpu)]


def test_the_device(gpu, ctx):
    info = runtime_api.DeviceInfo()
    assert gpu.context_get_device_info(ctx, ctypes.byref(info)) == 0
    assert (
        info.name,
        info.memory,
        info.multiprocessors,
        info.major,
        info.device_type,
        info.device_id,
    ) == (b"a GPU, number 1", 2**30, 7, 9, 2, 1)
    assert gpu.fails(
        gpu.context_create_abi(2, runtime_api.ABI),
        "ERROR_DEVICE",
        "device is 2, expected -1 (the CPU) to 1",
    )
    cpu = gpu.context()
    gpu.destroy(("context", cpu))


def test_streams(gpu, ctx):
    made = []
    for priority, flags, seen in [
        (0, 0, "(0 0 on 1)"),
        (1, 1, "(1 -1 on 1)"),
        (9, 0, "(0 -5 on 1)"),
        (-1, 0, "(0 0 on 1)"),
    ]:
        gpu.fake.fake_clear()
        made.append(
            ("stream", gpu.stream_create(ctx, ctypes.byref(StreamConfig(priority, flags, 1))))
        )
        assert seen in gpu.log()
    wrapped = gpu.stream_wrap(ctx, gpu.stream_native(made[0][1]))
    gpu.fake.fake_clear()
    gpu.destroy(("stream", wrapped))
    assert "cudaStreamDestroy" not in gpu.log()
    gpu.destroy(*made)
    assert gpu.log().count("cudaStreamDestroy") == len(made)


def test_an_event_between_two_streams(gpu, ctx):
    """A copy to the GPU on one stream, and back on another that waits for it."""
    a, b = gpu.stream_create(ctx, None), gpu.stream_create(ctx, None)
    x, back = np.arange(12, dtype=np.float32).reshape(3, 4), np.zeros((3, 4), np.float32)
    t, kept = on_gpu(gpu, ctx, x, a)
    event, done, cpu = gpu.event_create(ctx), ctypes.c_int(7), gpu.context()
    assert gpu.event_query(event, ctypes.byref(done)) == 0 and done.value == 1
    assert (
        gpu.event_record(event, a) == 0
        and gpu.event_query(event, ctypes.byref(done)) == 0
        and done.value == 0
    )
    assert gpu.fails(
        gpu.event_elapsed_ms(event, event, ctypes.byref(ctypes.c_float())),
        "ERROR_INVALID_VALUE",
        "is not done",
    )
    assert gpu.fake.cudaGetLastError() == 0  # a query leaves no error behind
    target = gpu.over(cpu, back, F32)
    assert gpu.stream_wait_event(b, event) == 0 and gpu.tensor_copy(target, t, b) == 0
    assert not back.any()
    assert gpu.stream_synchronize(b) == 0 and np.array_equal(back, x)
    assert gpu.event_query(event, ctypes.byref(done)) == 0 and done.value == 1
    gpu.destroy(
        ("tensor", target),
        ("tensor", t),
        ("event", event),
        ("stream", a),
        ("stream", b),
        ("context", cpu),
        *kept,
    )
    assert gpu.context_synchronize(ctx) == 0


@pytest.mark.parametrize("streams", [1, 2, 4, 6])
@pytest.mark.parametrize("gone", [False, True])
def test_memory_waits_for_the_streams_that_work_on_it(gpu, ctx, streams, gone):
    """A tensor destroyed while streams still copy from it, even if the streams are destroyed first.
    The copies run at the end; memory freed too early would end the process.
    """
    x, cpu = np.arange(6, dtype=np.float32), gpu.context()
    t, kept = on_gpu(gpu, ctx, x)
    assert gpu.context_synchronize(ctx) == 0
    made = [gpu.stream_create(ctx, ctypes.byref(StreamConfig(0, 1, 0))) for _ in range(streams)]
    backs = [np.zeros(6, np.float32) for _ in made]
    targets = [gpu.over(cpu, back, F32) for back in backs]
    for target, stream in zip(targets, made):
        assert gpu.tensor_copy(target, t, stream) == 0
    order = [("stream", s) for s in made]
    gpu.destroy(*(order if gone else []), ("tensor", t))
    stats = Stats()
    assert (
        gpu.context_synchronize(ctx) == 0
        and gpu.pool_get_stats(ctx, ctypes.byref(stats)) == 0
        and stats.in_use == 0
    )
    assert all(np.array_equal(back, x) for back in backs)
    gpu.destroy(
        *([] if gone else order),
        *(("tensor", target) for target in targets),
        ("context", cpu),
        *kept,
    )


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("streams", [0, 1, 3, 6])
def test_memory_waits_for_another_device(gpu, ctx, streams, gone):
    """A tensor destroyed while another GPU's streams (0: its default stream) copy from it: its own
    GPU waits for them before the memory is freed.
    """
    other, x = gpu.context(0), np.arange(6, dtype=np.float32)
    t, kept = on_gpu(gpu, ctx, x)
    assert gpu.context_synchronize(ctx) == 0
    made = [gpu.stream_create(other, ctypes.byref(StreamConfig(0, 1, 0))) for _ in range(streams)]
    targets = [gpu.create(other, (6,)) for _ in made or [None]]
    for target, stream in zip(targets, made or [None]):
        assert gpu.tensor_copy(target, t, stream) == 0, gpu.detail
    order = [("stream", s) for s in made]
    gpu.destroy(*(order if gone else []), ("tensor", t))
    assert gpu.context_synchronize(ctx) == 0 and gpu.context_synchronize(other) == 0
    cpu, back = gpu.context(), np.zeros(6, np.float32)
    seen = gpu.over(cpu, back, F32)
    for target in targets:
        assert (
            gpu.tensor_copy(seen, target, None) == 0
            and gpu.context_synchronize(other) == 0
            and np.array_equal(back, x)
        )
    gpu.destroy(
        *([] if gone else order),
        *(("tensor", t) for t in (*targets, seen)),
        ("context", cpu),
        ("context", other),
        *kept,
    )


@pytest.mark.parametrize("streams", [0, 1, 6])
def test_memory_of_the_cpu_waits_for_a_gpu(gpu, ctx, streams):
    """A CPU's pool reuses memory only after GPUs have read it; nothing waits for the program's own
    memory.
    """
    cpu, back = gpu.context(), np.zeros(6, np.float32)
    made = [gpu.stream_create(ctx, None) for _ in range(streams)]
    targets, seen = [gpu.create(ctx, (6,)) for _ in made or [None]], gpu.over(cpu, back, F32)
    source = gpu.create(cpu, (6,))
    gpu.array(source)[...] = 7
    for target, stream in zip(targets, made or [None]):
        assert gpu.tensor_copy(target, source, stream) == 0, gpu.detail
    gpu.destroy(("tensor", source))
    again = gpu.create(cpu, (6,))
    gpu.array(again)[...] = 0
    for target in targets:
        assert (
            gpu.tensor_copy(seen, target, None) == 0
            and gpu.context_synchronize(ctx) == 0
            and (back == 7).all()
        )
    assert gpu.tensor_copy(targets[0], seen, None) == 0
    gpu.fake.fake_clear()
    gpu.destroy(("tensor", seen))
    assert "Synchronize" not in gpu.log()
    gpu.destroy(
        *(("stream", s) for s in made),
        *(("tensor", t) for t in (*targets, again)),
        ("context", cpu),
    )
    assert gpu.context_synchronize(ctx) == 0


def test_a_tensor_comes_behind_the_memory_s_last_users(gpu, ctx):
    """A tensor reuses memory whose stream is still running: a non-blocking stream then waits before
    its first work on the tensor. Later work does not wait again; captured and wrapped streams do
    not wait.
    """
    a, b = (gpu.stream_create(ctx, ctypes.byref(StreamConfig(0, 1, 0))) for _ in range(2))
    x, back, cpu = np.arange(6, dtype=np.float32), np.zeros(6, np.float32), gpu.context()
    first, kept = on_gpu(gpu, ctx, x, a)
    source, target = gpu.over(cpu, x, F32), gpu.over(cpu, back, F32)
    assert gpu.tensor_copy(target, first, a) == 0
    gpu.destroy(("tensor", first))
    later = gpu.create(ctx, (6,))
    gpu.fake.fake_capture(1)
    gpu.fake.fake_clear()
    assert gpu.tensor_copy(later, source, b) == 0 and "cudaStreamWaitEvent" not in gpu.log()
    wrapped = gpu.stream_wrap(ctx, gpu.stream_native(b))
    gpu.destroy(("stream", wrapped))
    assert "cudaStreamWaitEvent" not in gpu.log()
    gpu.fake.fake_capture(0)
    assert gpu.tensor_copy(later, source, b) == 0 and not back.any()
    assert gpu.stream_synchronize(b) == 0 and np.array_equal(back, x)
    gpu.fake.fake_clear()
    assert gpu.tensor_copy(later, source, b) == 0 and "cudaStreamWaitEvent" not in gpu.log()
    gpu.destroy(
        ("tensor", later),
        ("tensor", source),
        ("tensor", target),
        ("stream", a),
        ("stream", b),
        ("context", cpu),
        *kept,
    )
    assert gpu.context_synchronize(ctx) == 0


def test_memory_waits_for_work_whose_call_failed(gpu, ctx):
    """Debug mode makes a call wait for its work; if the wait fails, the work remains
    recorded.
    """
    stream = gpu.stream_create(ctx, ctypes.byref(StreamConfig(0, 1, 0)))
    (t, kept), (other, more) = (on_gpu(gpu, ctx, np.arange(6, dtype=np.float32)) for _ in range(2))
    assert gpu.set_debug_mode(ctx, 1) == 0
    cpu, back = gpu.context(), np.zeros(6, np.float32)
    target = gpu.over(cpu, back, F32)
    for _ in range(2):  # the second copy does not wait for earlier work
        gpu.fake.fake_clear()
        assert gpu.tensor_copy(target, other, stream) == 0
    gpu.fake.fake_fail(gpu.log().split().index("cudaStreamSynchronize") + 1)
    assert gpu.fails(gpu.tensor_copy(target, t, stream), "ERROR_CUDA", "cudaStreamSynchronize")
    gpu.fake.fake_clear()
    gpu.destroy(("tensor", t))
    called = gpu.log().split()
    assert "cudaStreamWaitEvent" in called and called.index("cudaStreamWaitEvent") < called.index(
        "cudaFreeAsync"
    )
    gpu.destroy(
        ("tensor", other), ("tensor", target), ("stream", stream), ("context", cpu), *kept, *more
    )
    assert gpu.context_synchronize(ctx) == 0


def test_what_cuda_copies(gpu, ctx):
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    t, kept = on_gpu(gpu, ctx, x)
    inner = gpu.tensor_slice(t, 2, 1, 4, 1)
    cpu, back = gpu.context(), np.zeros((3, 4, 3), np.float32)
    target = gpu.over(cpu, back, F32)
    assert gpu.tensor_copy(target, inner, None) == 0 and "cudaMemcpy2DAsync" in gpu.log()
    assert gpu.context_synchronize(ctx) == 0 and np.array_equal(back, x[:, :, 1:4])
    turned, half = gpu.tensor_transpose(t, 0, 2), gpu.create(cpu, (3, 4, 5), F16)
    wanted = gpu.create(cpu, (5, 4, 3))
    assert gpu.fails(
        gpu.tensor_copy(wanted, turned, None), "ERROR_UNSUPPORTED", "rows of elements side by side"
    )
    assert gpu.fails(
        gpu.tensor_copy(half, t, None), "ERROR_UNSUPPORTED", "dtype 0, expected that of to, 1"
    )
    one = gpu.tensor_slice(t, 0, 0, 1, 1)
    assert gpu.fails(gpu.tensor_copy(t, one, None), "ERROR_OVERLAP", "overlaps from")
    gpu.destroy(
        *(("tensor", x) for x in (t, inner, target, turned, half, wanted, one)),
        ("context", cpu),
        *kept,
    )


def test_the_pool(gpu, ctx):
    stats = Stats()
    first = gpu.pool_allocate(ctx, 1000, None)
    gpu.pool_allocate(ctx, 500, None)
    assert gpu.pool_get_stats(ctx, ctypes.byref(stats)) == 0 and (
        stats.in_use,
        stats.reserved,
        stats.peak,
        stats.hits,
    ) == (1536, 1536, 1536, 0)
    assert gpu.pool_deallocate(ctx, first, None) == 0 and gpu.pool_clear(ctx) == 0
    assert gpu.pool_get_stats(ctx, ctypes.byref(stats)) == 0 and (stats.in_use, stats.reserved) == (
        512,
        512,
    )
    assert gpu.fails(
        gpu.pool_allocate(ctx, 2**31, None), "ERROR_OUT_OF_MEMORY", "cudaMallocFromPoolAsync failed"
    )


def test_debug_mode_waits(gpu, ctx):
    assert gpu.set_debug_mode(ctx, 1) == 0
    x = np.arange(6, dtype=np.float32)
    t, kept = on_gpu(gpu, ctx, x)
    assert "cudaStreamSynchronize" in gpu.log()
    gpu.destroy(("tensor", t), *kept)


def everything(api, check):
    """Calls each function once; check(result, ...) receives each result. Leaves nothing behind."""
    ctx = check(api.context_create_abi(1, runtime_api.ABI))
    if not ctx:
        return
    info, stats, done, ms = runtime_api.DeviceInfo(), Stats(), ctypes.c_int(), ctypes.c_float()
    check(api.context_get_device_info(ctx, ctypes.byref(info)))
    stream, a, b = (
        check(api.stream_create(ctx, None)),
        check(api.event_create(ctx)),
        check(api.event_create(ctx)),
    )
    t = check(api.tensor_create(ctx, ctypes.byref(api.describe((4,)))))
    if a and b:
        (
            check(api.event_record(a, stream)),
            check(api.event_record(b, stream)),
            check(api.stream_wait_event(None, a)),
        )
        (
            check(api.event_query(a, ctypes.byref(done))),
            check(api.event_synchronize(b)),
            check(api.event_elapsed_ms(a, b, ctypes.byref(ms))),
        )
    if stream:
        check(api.stream_synchronize(stream))
    (
        check(api.pool_get_stats(ctx, ctypes.byref(stats))),
        check(api.pool_clear(ctx)),
        check(api.context_synchronize(ctx)),
    )
    for kind, handle in (("tensor", t), ("event", a), ("event", b), ("stream", stream)):
        if handle and check(getattr(api, f"{kind}_destroy")(handle)) and kind == "stream":
            check(api.stream_destroy(handle))
    api.context_destroy(ctx)


def test_every_failed_call_of_cuda_is_reported(gpu):
    """Fails each CUDA call once: exactly one function reports it, names the call and keeps no
    memory. Calls that only clean up are silent.
    """

    def left():
        """Returns the allocations that remain after all work."""
        assert (
            gpu.fake.cudaSetDevice(1)
            == gpu.fake.cudaDeviceSynchronize()
            == gpu.fake.cudaSetDevice(0)
            == 0
        )
        return gpu.fake.fake_living()

    gpu.fake.fake_clear()
    everything(gpu, lambda found: found)
    calls = gpu.log().split()
    calls = [c for c in calls if c.startswith("cuda")]
    quiet = {"cudaMemPoolDestroy", "cudaStreamDestroy", "cudaEventDestroy"}
    assert {
        "cudaEventRecord",
        "cudaMallocFromPoolAsync",
        "cudaFreeAsync",
        "cudaMemPoolTrimTo",
    } <= set(calls)
    for i, call in enumerate(calls):
        reported = []

        def check(found, reported=reported):
            if found is None or 0 < found < 15:
                reported.append(gpu.detail)
            return found

        before = left()
        gpu.fake.fake_fail(i + 1)
        everything(gpu, check)
        gpu.fake.fake_fail(0)
        assert left() == before + (call == "cudaFreeAsync"), (i, call)
        assert any(
            f": {call} failed: CUDA error 999 (as the test asked for)" in text for text in reported
        ) != (call in quiet), (i, call, reported)


def test_memory_that_the_library_owns(gpu, ctx, tmp_path):
    """The last view frees the memory with cudaFree."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    memory = Memory(libc.malloc(64), 64, 1)
    t = gpu.tensor_create_from_memory(
        ctx, ctypes.byref(memory), ctypes.byref(gpu.describe((16,), device=(2, 1)))
    )
    gpu.destroy(("tensor", t))
    assert "cudaFree " in gpu.log()


def test_the_fake_sees_what_is_not_ordered(library, tmp_path):
    """Detects memory that is freed on one stream before another has read it."""
    program = f"""
import ctypes
fake = ctypes.CDLL({str(library.parent / "libfake.so")!r})
pool, p, s, host = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), (ctypes.c_char * 64)()
props = (ctypes.c_char * 256)()
fake.cudaMemPoolCreate(ctypes.byref(pool), props)
fake.cudaMallocFromPoolAsync(ctypes.byref(p), ctypes.c_size_t(64), pool, None)
fake.cudaStreamCreateWithPriority(ctypes.byref(s), 1, 0)
fake.cudaMemcpyAsync(host, p, ctypes.c_size_t(64), 4, s)
fake.cudaFreeAsync(p, None)
fake.cudaStreamSynchronize(None)
fake.cudaStreamSynchronize(s)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode != 0 and "a read of memory that was freed" in done.stderr
