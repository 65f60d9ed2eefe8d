# SPDX-License-Identifier: Apache-2.0
"""Counts instructions per element of each activation, in the cubin for sm_90.

`python tests/headers/instructions.py` prints the table. The count is that of a kernel of 8 unrolled
elements, minus that of the same kernel that only negates them, divided by 8. An instruction is 16
bytes of .text; NOPs that pad the section to 128 bytes do not count.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import folders  # noqa: E402

folders.add()

import kflib  # noqa: E402

NVCC = (
    os.environ.get("NVCC")
    or shutil.which("nvcc")
    or ("/usr/local/cuda/bin/nvcc" if os.path.exists("/usr/local/cuda/bin/nvcc") else None)
)
# NOP of sm_70 and later.
ELEMENTS, BYTES, NOP = 8, 16, 0x918
# Two instructions that all elements share, such as loading a constant, are exempt from budgets.
SETUP = 2 / ELEMENTS
# (form, budget, storage, function, has dy)
FORMS = {
    "lp": (13, "kf_f16", "kfi_act_lp", False),
    "lp_bwd": (25, "kf_f16", "kfi_act_bwd_lp", True),
    "f32": (30, "float", "kfi_act_f32", False),
    "f32_bwd": (30, "float", "kfi_act_bwd_f32", True),
}

KERNEL = """
extern "C" __global__ void __launch_bounds__(256)
{name}(const {T} *x, const {T} *dy, {T} *y, kfi_scalars_f32 s)
{{
    const unsigned first = (blockIdx.x * 256u + threadIdx.x) * {n}u;
    alignas(16) {T} a[{n}], b[{n}], c[{n}];
    float f[{n}], g[{n}], r[{n}];
    kfi_copy<{bytes}>(a, x + first);
    kfi_unpack_{dtype}<{n}>(f, a);
    {load_dy}
#pragma unroll
    for (int e = 0; e < {n}; ++e) r[e] = {call};
    {store}
    kfi_copy<{bytes}>(y + first, c);
    (void)b; (void)g; (void)s;
}}
"""


def sections_of(cubin):
    """Returns {kernel: instructions} of a cubin."""
    listing = subprocess.run(
        ["readelf", "-SW", str(cubin)], check=True, capture_output=True, text=True
    ).stdout
    found = re.findall(r"\]\s+\.text\.(\S+)\s+PROGBITS\s+\S+\s+(\S+)\s+(\S+)", listing)
    image = pathlib.Path(cubin).read_bytes()
    counts = {}
    for name, offset, size in found:
        code = image[int(offset, 16) : int(offset, 16) + int(size, 16)]
        words = [code[i : i + BYTES] for i in range(0, len(code), BYTES)]
        while words and int.from_bytes(words[-1][:2], "little") & 0xFFF == NOP:
            words.pop()
        counts[name] = len(words)
    return counts


def cubin_of(source, include, work, *flags, arch="-arch=sm_90"):
    out = pathlib.Path(work) / (pathlib.Path(source).stem + ".cubin")
    command = [
        NVCC,
        "-std=c++17",
        "-O3",
        arch,
        "-cubin",
        *flags,
        *(f"-I{d}" for d in include),
        str(source),
        "-o",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[:4000]}")
    return sections_of(out)


def kernels_in(source, include, work):
    """Returns the names of the kernels in a file."""
    return sorted(cubin_of(source, include, work))


def kernel(name, form, call):
    _, storage, _, has_dy = FORMS[form]
    dtype = "f16" if storage == "kf_f16" else "f32"
    size = 2 if dtype == "f16" else 4
    return KERNEL.format(
        name=name,
        T=storage,
        n=ELEMENTS,
        bytes=ELEMENTS * size,
        dtype=dtype,
        call=call,
        load_dy=(
            f"kfi_copy<{ELEMENTS * size}>(b, dy + first);\n"
            f"    kfi_unpack_{dtype}<{ELEMENTS}>(g, b);"
            if has_dy
            else "(void)dy;"
        ),
        store="kfi_unpack_f32<8>(c, r);" if dtype == "f32" else "kfi_pack_f16<8>(c, r);",
    )


def measure(include, activations):
    """Returns {activation: {form: instructions per element}}, from one compilation."""
    text = ['#include "kf/ops/activations.cuh"\n#include "kf/core/vector.cuh"\n']
    for form, (_, _, function, has_dy) in FORMS.items():
        # The base kernel has the same loads, so that they do not count.
        text.append(kernel(f"base__{form}", form, "-g[e] - f[e]" if has_dy else "-f[e]"))
        for a in activations:
            arguments = f"kfi_tag<{a['id']}>(), f[e]{', g[e]' if has_dy else ''}, s"
            text.append(kernel(f"{a['name']}__{form}", form, f"{function}({arguments})"))
    with tempfile.TemporaryDirectory() as work:
        source = pathlib.Path(work) / "instructions.cu"
        source.write_text("".join(text))
        count = cubin_of(source, include, work)
    return {
        a["name"]: {
            form: (count[f"{a['name']}__{form}"] - count[f"base__{form}"]) / ELEMENTS
            for form in FORMS
        }
        for a in activations
    }


def budget(activation, form):
    return activation["budget"].get(form, FORMS[form][0])


def over(counts, activations):
    """Describes the activations that exceed their budgets."""
    return [
        f"{a['name']} {form}: {counts[a['name']][form]:.1f} instructions per element, budget "
        f"{budget(a, form)}"
        for a in activations
        for form in FORMS
        if not counts[a["name"]][form] <= budget(a, form) + SETUP
    ]


def table(counts, activations):
    lines = [f"{'':<14}" + "".join(f"{f'{form} ({FORMS[form][0]})':>14}" for form in FORMS)]
    for a in activations:
        row = counts[a["name"]]
        marks = {
            form: "*"
            if form in a["budget"]
            else "!"
            if row[form] > budget(a, form) + SETUP
            else " "
            for form in FORMS
        }
        lines.append(
            f"{a['name']:<14}" + "".join(f"{row[form]:>13.1f}{marks[form]}" for form in FORMS)
        )
    return "\n".join([*lines, "* has a budget of its own in the spec, ! is over its budget"])


def main():
    if not NVCC:
        sys.exit("instructions.py: nvcc is missing")
    activations = kflib.manifest()["activations"]
    with tempfile.TemporaryDirectory() as folder:
        counts = measure(kflib.render(folder), activations)
    print(table(counts, activations))
    sys.exit(bool(over(counts, activations)))


if __name__ == "__main__":
    main()
