# SPDX-License-Identifier: Apache-2.0
"""Launchers that g++ alone compiles, over the machine's CUDA driver, with kernels that NVRTC compiles when they are first asked for: by
the loader of the examples."""

import kflib
import toolkit

HEADER = kflib.ROOT / "tests/support/gpu/loaded_kernels.h"
DRIVER = "-l:libcuda.so.1"


def build(functions, build_dir, driver=DRIVER):
    """The launchers, as kflib.build gives them. driver: what the linker is given for it."""
    headers, library = toolkit.nvrtc_to_link()
    toolkit.nvrtc()  # with the part of it that it looks for by name alone
    words = ",".join(f'"-I{d}"' for d in (*kflib.render(build_dir), toolkit.include()))
    flags = (
        "-O1",
        "-std=c++17",
        "-x",
        "c++",
        "-isystem",
        str(toolkit.include()),
        "-isystem",
        str(headers),
        f"-DKFT_OPTIONS={words}",
        "-include",
        str(HEADER),
    )
    return kflib.build(
        "cuda",
        functions,
        build_dir,
        flags,
        compiler="g++",
        objects_=(library, driver),
        link=(f"-Wl,-rpath,{library.parent}",),
    )
