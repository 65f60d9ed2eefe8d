# SPDX-License-Identifier: Apache-2.0
"""Builds launchers with g++ alone, over the machine's CUDA driver; NVRTC compiles each kernel at
its first launch, through the loader of the examples."""

import kflib
import toolkit

HEADER = kflib.ROOT / "tests/support/gpu/loaded_kernels.h"
DRIVER = "-l:libcuda.so.1"


def build(functions, build_dir, driver=DRIVER):
    """Builds the launchers and returns a kflib.Lib. driver: linker argument for the driver."""
    headers, library = toolkit.nvrtc_to_link()
    toolkit.nvrtc()  # Loads NVRTC with the part that it finds by name alone.
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
