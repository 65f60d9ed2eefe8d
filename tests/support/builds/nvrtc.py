# SPDX-License-Identifier: Apache-2.0
"""Compiles source text with NVRTC, as a program that builds its kernels at run time does. It needs
neither a driver nor a GPU."""

import ctypes
import functools
import time

import cases
import toolkit
from kfgen.model import names
from kfgen.render import source

# PTX output: ptxas, which a real architecture adds, is the same for every compiler
ARCH = "compute_90"


class NvrtcError(Exception):
    pass


def kernels_of(kernel):
    """Returns the name expressions of all kernel instances that a kernel's launchers choose from,
    and of the second stage of sums. For activations of families that compile slowly it returns the
    first instance only."""
    found = []
    for launcher in kernel.launchers:
        names_ = source.kernel_names(launcher)
        found += (
            names_
            if cases.whole_table({"family": kernel.family.name, "activation": launcher.act.name})
            else names_[:1]
        )
    if kernel.added:
        found += [i.name() for i in kernel.cuda.sum_kernels]
    return list(dict.fromkeys(found))


def header_of(kernel):
    return f"kf/ops/{names.stem(kernel.op.pattern)}.cuh"


@functools.cache
def quick():
    """Returns NVRTC options for compilations that only look for errors and warnings, in a sixth of
    the time or less. From level 2 on, or if NVRTC lacks the option, there are none."""
    option = "--Ofast-compile=max"
    if cases.LEVEL > 1:
        return ()
    try:
        compile_text("", options=[option])
    except NvrtcError:
        return ()
    return (option,)


def compile_text(text, expressions=(), include=(), arch=ARCH, options=()):
    """Returns (processor seconds, [lowered name of each expression], log). include: directories
    besides CUDA's own."""
    lib, cuda = toolkit.nvrtc(), toolkit.include()
    program = ctypes.c_void_p()
    assert (
        lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"text.cu", 0, None, None) == 0
    )
    try:
        for e in expressions:
            assert lib.nvrtcAddNameExpression(program, e.encode()) == 0
        words = [f"-arch={arch}", *(f"-I{d}" for d in (*include, cuda)), *options]
        begin = time.process_time()
        result = lib.nvrtcCompileProgram(
            program, len(words), (ctypes.c_char_p * len(words))(*(w.encode() for w in words))
        )
        seconds = time.process_time() - begin
        size = ctypes.c_size_t()
        lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value + 1)
        lib.nvrtcGetProgramLog(program, log)
        if result != 0:
            raise NvrtcError(log.value.decode())
        lowered = []
        for e in expressions:
            name = ctypes.c_char_p()
            if (
                lib.nvrtcGetLoweredName(program, e.encode(), ctypes.byref(name)) != 0
                or not name.value
            ):
                raise NvrtcError(f"{e} is not in the program")
            lowered.append(name.value.decode())
        return seconds, lowered, log.value.decode()
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))
