# SPDX-License-Identifier: Apache-2.0
"""Which tensors a backward reads, and which of its results are computed: the same for every
framework.
"""

from kernel_fusion._table import Op

Source = tuple[str, int]


def sources_of(op: Op, activation: str, by_result: bool) -> list[Source]:
    """Returns the source of each input of the backward.

    A source is (in, out or grad, index); (shape, index) if only the shape is read; or (none, 0).
    Weights are passed even if unread, since their dtype is that of their gradients.

    Args:
        by_result: True if the backward uses the activation's result instead of inputs.
    """
    assert op.backward is not None
    inputs, outputs = [t.name for t in op.forward.inputs], [t.name for t in op.forward.outputs]
    found = []
    for t in op.backward.inputs:
        if t.use == "gradient":
            found.append(("grad", outputs.index(t.of)))
        elif t.name in outputs:
            # A saved tensor counts as an input that the result replaces.
            given = by_result if t.use == "output" else not by_result
            missing = activation in t.unread or (activation in t.by_result and not given)
            found.append(("none", 0) if missing else ("out", outputs.index(t.name)))
        elif (
            activation in t.unread or (activation in t.by_result and by_result)
        ) and t.use != "weight":
            asked = t.name in op.backward.shaped_by or t is op.backward.template
            found.append(("shape", inputs.index(t.name)) if asked else ("none", 0))
        else:
            found.append(("in", inputs.index(t.name)))
    return found


def may_use_result(op: Op, activation: str) -> bool:
    """True if the backward may use the activation's result."""
    assert op.backward is not None
    return any(activation in t.by_result for t in op.backward.inputs)


def computed(op: Op) -> dict[int, list[int]]:
    """Returns {index of a computed gradient: indices of its inputs}.

    Gradients equal to the incoming one are left out; of equal gradients the first is computed.
    """
    assert op.backward is not None
    inputs, outputs = [t.name for t in op.forward.inputs], op.backward.outputs
    at = {t.name: j for j, t in enumerate(outputs)}
    found: dict[int, list[int]] = {}
    for j, t in enumerate(outputs):
        if not t.unchanged:
            found.setdefault(at[t.same_as] if t.same_as else j, []).append(inputs.index(t.of))
    return found
