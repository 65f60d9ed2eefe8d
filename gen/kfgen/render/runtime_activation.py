# SPDX-License-Identifier: Apache-2.0
"""The headers of functions whose activation is an argument, kf/any/."""

from kfgen.model import names, runtime_activation


def headers(renderer, op, kernels, extends):
    """Adds the headers of an op's functions to a Renderer's.

    kernels: with all activations that they support. extends: True for kf's own op with a user's
    activations.
    """
    own = [k for k in kernels if runtime_activation.has(k)]
    if not own:
        return
    user, stem = renderer.user, names.stem(op.pattern)
    folder, ops = names.folder_any(user), names.folder(user)
    for ext, template in (
        (".cuh", "op/runtime_activation.cuh.j2"),
        (".h", "op/runtime_activation.h.j2"),
    ):
        renderer.header(
            f"{folder}/{stem}{ext}",
            template,
            op=op,
            kernels=own,
            runtime_kernels=[runtime_activation.kernel(k) for k in own],
            device=False,
            user=user,
            stem=stem,
            facts=f"{folder}/activations.h",
            extends=extends,
            all_acts=len(renderer.selection.activations),
            op_header=f"{ops}/{stem}{ext}",
            activations_header=f"{folder}/activations{ext}",
        )
    if strided := [
        runtime_activation.any_strides(k) for k in own if runtime_activation.has_any_strides(k)
    ]:
        renderer.header(
            f"{folder}/{stem}.apart.cuh",
            "op/apart.cuh.j2",
            strided_kernels=strided,
            device=False,
            stem=stem,
            extends=extends,
            base_header=f"{folder}/{stem}.cuh",
        )


def activations(renderer, codes):
    """Adds what those headers have in common: the activations by their numbers."""
    folder, user = names.folder_any(renderer.user), renderer.user
    renderer.header(
        f"{folder}/activations.h",
        "op/runtime_activations.h.j2",
        activations=codes,
        user=user,
        word=runtime_activation.WORD,
    )
    renderer.header(
        f"{folder}/activations.cuh",
        "op/runtime_activations.cuh.j2",
        activations=codes,
        user=user,
        facts=f"{folder}/activations.h",
        functions=f"{names.folder(user)}/activations.cuh",
    )
