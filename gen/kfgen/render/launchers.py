# SPDX-License-Identifier: Apache-2.0
"""Launchers with C linkage: one .cu per first dtype, and the header that declares them all."""

import hashlib
from dataclasses import dataclass

from kfgen.model import names
from kfgen.model.dtypes import DTYPE


@dataclass(frozen=True)
class Function:
    """One function with C linkage.

    parameters: CUDA parameters, as the .cu defines the function.
    c_parameters: C parameters, as the header declares it.
    arguments: arguments of the call that it makes.
    called: function template that it calls. If its name differs, `name` is a macro.
    tag: hash of the signature, only for a user's function: no ABI version of kf covers it.
    """

    type: str
    name: str
    parameters: str
    arguments: str
    c_parameters: str
    tag: str
    called: str


@dataclass
class File:
    """One .cu.

    structs: one kernel per strides struct that the functions take.
    shapes: one kernel per shape struct.
    """

    dtype: str
    user: str
    functions: list
    includes: list
    structs: list
    shapes: list

    @property
    def stem(self):
        return names.launchers(self.user, self.dtype)

    @property
    def path(self):
        return f"kf/{self.stem}.cu"


def _function(kind, name, parameters, arguments, c_parameters, user, called):
    tag = hashlib.sha256(c_parameters.encode()).hexdigest()[:8] if user else ""
    return Function(kind, name, parameters, arguments, c_parameters, tag, called)


def _functions(kernel, acts, user):
    found = []
    for launcher in kernel.launchers:
        if launcher.act not in acts:
            continue
        words = [a.name for a in launcher.arguments] + ["stream"]
        c_parameters = ", ".join(
            [f"{a.ctype}{a.name}" for a in launcher.arguments] + ["struct CUstream_st *stream"]
        )
        found.append(
            _function(
                "kf_result_t",
                launcher.name,
                launcher.cuda_parameters,
                ", ".join(words),
                c_parameters,
                user,
                launcher.name,
            )
        )
        if kernel.has_workspace:
            sizes = kernel.size_parameters
            found.append(
                _function(
                    "size_t",
                    launcher.workspace,
                    sizes,
                    ", ".join(kernel.size_names),
                    sizes,
                    user,
                    kernel.workspace,
                )
            )
    return found


def files(selection, user=None):
    """Files of a selection that have at least one function.

    For a user's spec they hold only what it adds to the installed launchers.
    """
    found = {word: File(word, user or "", [], [], [], []) for word in DTYPE}
    for op in selection.ops:
        installed = bool(user) and op.builtin
        for kernel in [k for k in selection.kernels(op) if "cuda" in k.backends]:
            functions = _functions(
                kernel, [a for a in kernel.acts if not (installed and a.builtin)], user
            )
            if not functions:
                continue
            file = found[kernel.dtypes[0]]
            if kernel.strided and all(
                kernel.stride_struct != other.stride_struct
                for f in found.values()
                for other in f.structs
            ):
                file.structs.append(kernel)
            struct = kernel.struct
            if struct and all(
                other.struct is not struct for f in found.values() for other in f.shapes
            ):
                file.shapes.append(kernel)
            file.functions += functions
            include = f"{names.folder(user)}/{names.stem(op.pattern)}.cuh"
            file.includes += [include] if include not in file.includes else []
    return [f for f in found.values() if f.functions]


def render(renderer):
    """Adds the files to a Renderer's."""
    user = renderer.user
    made = files(renderer.selection, user)
    if not made:
        return
    header = f"kf/{names.launchers(user)}.h"
    umbrella = f"kf/{user or 'kf'}.cuh"
    # Include guard of a header that every launcher of the umbrella includes.
    cuda_guard = renderer.guard(
        f"{names.folder(user)}/activations.cuh" if user else "kf/core/kernel.cuh"
    )
    renderer.header(
        header,
        "launchers/launchers.h.j2",
        launcher_files=made,
        cuda_umbrella=umbrella,
        cuda_guard=cuda_guard,
        declared=declared(user),
    )
    for file in made:
        renderer.add(
            file.path,
            "launchers/launchers.cu.j2",
            header=header,
            stem=file.stem,
            functions=file.functions,
            includes=file.includes,
        )


def declared(user=None):
    """Macro that the header of launchers defines."""
    return f"KFI_DECLARED_{names.launchers(user).upper()}"
