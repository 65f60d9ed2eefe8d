# SPDX-License-Identifier: Apache-2.0
"""Times kernel_fusion.jax on a GPU: a chain of five ops inside jax.jit, beside the same launches in
a CUDA graph and beside XLA's own program, and the first call of a process.

    python3 bench/jax_calls.py

Needs PyTorch and JAX, both with CUDA, and an installed kernel_fusion. A sample of JAX is the host's
time for CALLS calls queued one after the other, up to the last result; one of the graph is the time
between events around CALLS replays. Contenders are shuffled in each round.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
CALLS, ROUNDS = 50, 15
SHAPES = ((256, 1024), (2048, 4096), (8192, 4096), (8191, 4099))
FIRST = """
import time, jax
x = jax.numpy.ones((512, 1024)); x.block_until_ready()
begin = time.perf_counter()
import kernel_fusion.jax as kj
imported = time.perf_counter()
kj.layer_norm_gelu(x).block_until_ready()
print(f"import {imported - begin:.2f} s, first call {time.perf_counter() - imported:.2f} s")
"""


def inputs(shape):
    """Returns x, weight and bias, N(0, 1) in bfloat16, for JAX and for PyTorch."""
    import torch
    from jax import numpy as jnp

    torch.manual_seed(0)
    tensors = [torch.randn(s, dtype=torch.bfloat16) for s in (shape, shape[1:], shape[1:])]
    arrays = [jnp.asarray(t.view(torch.int16).numpy().view(jnp.bfloat16)) for t in tensors]
    return arrays, [t.cuda() for t in tensors]


def chain(ops):
    """The five calls, of kf.jax or kf.ops."""

    def call(x, weight, bias):
        x = ops.bias_gelu(ops.layer_norm(x, weight, bias), bias)
        return ops.softmax(ops.rms_norm(ops.add(x, x), weight))

    return call


def xla(x, weight, bias):
    """The chain in JAX's own functions, with statistics in float32."""
    import jax
    from jax import numpy as jnp

    f32 = x.astype(jnp.float32)
    mean, var = f32.mean(-1, keepdims=True), f32.var(-1, keepdims=True)
    x = ((f32 - mean) * jax.lax.rsqrt(var + 1e-5) * weight + bias).astype(jnp.bfloat16)
    x = jax.nn.gelu(x + bias, approximate=False)
    f32 = (x + x).astype(jnp.float32)
    scale = jax.lax.rsqrt((f32 * f32).mean(-1, keepdims=True) + 1e-6)
    return jax.nn.softmax((f32 * scale * weight), axis=-1).astype(jnp.bfloat16)


def of_jax(function, arrays):
    """Returns sample() -> us a call, after warm-up."""
    import jax

    jitted = jax.jit(function)
    for _ in range(4):
        jax.block_until_ready(jitted(*arrays))

    def sample():
        begin = time.perf_counter()
        for _ in range(CALLS):
            last = jitted(*arrays)
        last.block_until_ready()
        return (time.perf_counter() - begin) / CALLS * 1e6

    return sample, jitted(*arrays)


def of_graph(function, tensors):
    """Returns sample() -> us a replay of the launches, captured from PyTorch."""
    import torch

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            function(*tensors)
        with torch.cuda.graph(graph, stream=stream):
            found = function(*tensors)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample():
        torch.cuda.synchronize()
        begin.record()
        for _ in range(CALLS):
            graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / CALLS * 1e3

    sample()
    return sample, found


def measure(shape):
    import kernel_fusion as kf
    import kernel_fusion.jax as kj
    import numpy as np

    arrays, tensors = inputs(shape)
    made = {
        "kf.jax": of_jax(chain(kj), arrays),
        "kf's launchers": of_graph(chain(kf.ops), tensors),
        "XLA": of_jax(xla, arrays),
    }
    results = {n: found for n, (_, found) in made.items()}
    want = results["kf's launchers"].float().cpu().numpy()
    assert np.array_equal(np.asarray(results["kf.jax"]).astype(np.float32), want)
    assert np.abs(np.asarray(results["XLA"]).astype(np.float32) - want).max() <= 0.05 * want.max()
    times = {n: [] for n in made}
    for _ in range(ROUNDS):
        for name in random.sample([*made], len(made)):
            times[name].append(made[name][0]())
    us = {n: statistics.median(t) for n, t in times.items()}
    ratio = us["kf.jax"] / us["kf's launchers"]
    row = " | ".join(f"{t:.1f}" for t in us.values())
    print(f"| {shape[0]} x {shape[1]} | {row} | {ratio:.3f} | {us['XLA'] / us['kf.jax']:.2f} |")


def first_calls():
    """Times two processes that share an empty cache, then one with the handlers alone in it."""
    with tempfile.TemporaryDirectory() as cache:
        for what in ("an empty cache", "a filled cache"):
            environment = {**os.environ, "KF_CACHE_DIR": cache}
            done = subprocess.run(
                [sys.executable, "-c", FIRST], env=environment, capture_output=True, text=True
            )
            print(f"{what}: {done.stdout.strip() or done.stderr[-500:]}", flush=True)


def main():
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    first_calls()
    columns = "rows x cols | kf.jax, us | launchers, us | XLA, us | kf.jax / launchers"
    print(f"| {columns} | XLA / kf.jax |")
    print("|:--|--:|--:|--:|--:|--:|")
    for shape in SHAPES:
        measure(shape)


if __name__ == "__main__":
    main()
