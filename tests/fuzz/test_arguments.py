# SPDX-License-Identifier: Apache-2.0
"""Random arguments of every launcher, C and CUDA, against a model of its checks in Python: equal
code and argument in the message, and no write or launch if refused."""

import cases
import checks
import kflib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import (
    FUNCTIONS,
    INVALID_SIZE,
    INVALID_VALUE,
    MISALIGNED,
    MOST,
    NULL_POINTER,
    OVERLAP,
    SUCCESS,
    WORKSPACE,
    Call,
    count,
    item,
    library,
    shape_fields,
    tensors_of,
)

from examples import examples


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def lib(request):
    return library(request.param)


class Operand:
    def __init__(self, name, kind, size, elements, at, out, nullable, unread, same_as, place_of=""):
        self.name, self.kind, self.size, self.elements, self.at, self.out = (
            name,
            kind,
            size,
            elements,
            at or 0,
            out,
        )
        self.nullable, self.unread, self.same_as, self.place_of = (
            nullable,
            unread,
            same_as,
            place_of,
        )

    @property
    def bytes(self):
        return set_of(self.at, self.elements * self.size)


def set_of(at, count_):
    return range(at, at + count_)


def meet(a, b):
    """True if two address ranges overlap."""
    return len(range(max(a.start, b.start), min(a.stop, b.stop))) > 0


# {form: groups of sizes whose products are checked in turn}. Other forms have one group of all
# sizes.
SIZES_OF = dict.fromkeys(
    ("nn", "nt", "tn", "tt"),
    [("batch", *two) for two in (("rows", "depth"), ("cols", "depth"), ("rows", "cols"))],
)


def operands_of(f, values, sizes):
    # A gradient by the activation's result reads the result if it is given, and otherwise the
    # inputs.
    instead = "result" if values.get(checks.result_of(f)) else "inputs"
    found = [
        Operand(
            a["name"],
            a["kind"],
            item(a),
            count(f, a, sizes),
            values[a["name"]],
            a["role"] != "in",
            a["null"] if a["null"] not in ("result", "inputs") else a["null"] == instead,
            a["unread"] or a["null"] == instead,
            a["same_as"],
            a["place_of"],
        )
        for a in tensors_of(f)
    ]
    if f["dropout"]:
        found += [
            Operand(
                name,
                "one",
                8,
                1,
                values[name] if f["state"] else None,
                False,
                not f["state"],
                False,
                "",
            )
            for name in ("seed", "offset")
        ]
    return found


def may_share(o, other):
    """True if an output may start at the address of another tensor: in place, or equal
    gradients."""
    if o.at != other.at or o.size != other.size or o.kind != other.kind:
        return False
    if not other.out:
        return (
            o.kind in ("elem", "half", "halves", "neighbours", "more") or o.place_of == other.name
        )
    return o.same_as == other.name or bool(o.same_as and o.same_as == other.same_as)


def wrong_argument(f, at):
    """Returns the first wrong size of a call whose sizes are arguments, or None."""
    for group in SIZES_OF.get(f["form"]) or getattr(cases.own(f), "COUNTED", [f["sizes"]]):
        for name in group:
            if at[name] < 0:
                return name
        room = MOST
        for name in group:
            # `channels` counts those of all groups.
            size = 1 if name == "groups" and at[name] and at["channels"] else at[name]
            if size > room:
                return name
            room //= max(size, 1)
    if "groups" in at and (at["channels"] % at["groups"] if at["groups"] else at["channels"]):
        return "channels"
    return None


def wrong_field(f, at):
    """Returns the first wrong size of a shape struct, or None. Puts defaults into `at`."""
    for name, size in at.items():
        if not 0 <= size <= MOST:
            return name
    for field in shape_fields(f):
        name, default = field["name"], field["default"]
        if at.get(name) == 0 and (default if isinstance(default, int) else default in at):
            at[name] = at[default] if isinstance(default, str) else default
        if any(not at[name] or at[other] % at[name] for other in field["divides"]):
            return name
    if any(count(f, a, tuple(at.values())) > MOST for a in tensors_of(f)):
        return "shape"
    return cases.own(f).wrong_size(at)


def verdict(f, values, workspace_needed):
    """Returns (code, argument) of the first fault, in the order scalars, sizes, empty call,
    tensors, workspace.

    Tensors are checked in the order of arguments, each for NULL, alignment, and overlap with the
    ones before.
    """
    if f["dropout"] and not 0 <= values["p"] <= 1:
        return INVALID_VALUE, "p"
    at = {size: values[size] for size in f["sizes"]}
    if wrong := (wrong_field if shape_fields(f) else wrong_argument)(f, at):
        return INVALID_SIZE, wrong
    sizes = list(at.values())
    # A row without elements still has a result.
    if not any(count(f, a, sizes) for a in tensors_of(f) if a["role"] != "in"):
        return SUCCESS, None
    if f["empty"] == "error" and not f["bwd"] and values["axis"] == 0:
        return INVALID_SIZE, "axis"
    if "pairs" in at and at["pairs"] > at["dim"] // 2:
        return INVALID_SIZE, "pairs"
    operands = operands_of(f, values, sizes)
    for i, o in enumerate(operands):
        if not o.at and not o.nullable and o.elements:
            return NULL_POINTER, o.name
        if o.at % o.size:
            return MISALIGNED, o.name
        for before in operands[:i]:
            out, other = (o, before) if o.out else (before, o)
            if (
                out.out
                and out.at
                and other.at
                and not other.unread
                and meet(out.bytes, other.bytes)
                and not may_share(out, other)
            ):
                return OVERLAP, out.name
    wrong_tensors = getattr(cases.own(f), "wrong_tensors", None)
    if wrong_tensors and (found := wrong_tensors(values, at)):
        return found
    if workspace_needed and any(values[a["name"]] for a in tensors_of(f) if a["role"] != "in"):
        workspace = values["workspace"] or 0
        if not workspace or values["workspace_bytes"] < workspace_needed:
            return WORKSPACE, "workspace"
        if workspace % 256:
            return MISALIGNED, "workspace"
        if any(
            o.at and not o.unread and meet(o.bytes, set_of(workspace, workspace_needed))
            for o in operands
        ):
            return OVERLAP, "workspace"
    return SUCCESS, None


def spoil(data, call, f):
    """Makes one to three changes of a valid call: NULL, misaligned, on or beside another tensor;
    sizes, p, workspace."""
    names = (
        [a["name"] for a in tensors_of(f)]
        + (["seed", "offset"] if f["state"] else [])
        + (["workspace"] if f["scratch"] else [])
    )
    places = {
        **{a["name"]: call.address(a["name"]) for a in tensors_of(f)},
        "workspace": call.address(":workspace"),
        "seed": call.address(":state"),
        "offset": call.address(":state") + 8,
    }
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(names))
        match data.draw(st.integers(0, 6)):
            case 0:
                call.set(**{name: None})
            case 1:
                call.set(**{name: places[name] + data.draw(st.integers(1, 16))})
            case 2 | 3:
                other = data.draw(st.sampled_from(sorted(places)))
                end = call.bytes.get(other, call.bytes.get(f":{other}", 8))
                step = data.draw(
                    st.sampled_from(
                        [
                            0,
                            0,
                            0,
                            1,
                            2,
                            4,
                            8,
                            16,
                            -2,
                            -4,
                            -8,
                            -16,
                            end,
                            end - 4,
                            end + 16 - end % 16,
                        ]
                    )
                )
                call.set(**{name: places[other] + step})
            case 4:
                size = data.draw(st.sampled_from(f["sizes"]))
                own = call.sizes[f["sizes"].index(size)]
                call.set(
                    **{
                        size: data.draw(
                            st.sampled_from([0, 1, own - 1, -1, -(2**63), 2**62, 2**58 + 1])
                        )
                    }
                )
            case 5:
                call.set(
                    p=data.draw(
                        st.sampled_from([0.0, 1.0, -0.0, 1.5, -1.0, float("nan"), float("inf")])
                    )
                )
            case 6:
                call.set(
                    workspace_bytes=data.draw(
                        st.sampled_from([0, call.workspace_bytes - 1, call.workspace_bytes, 2**62])
                    )
                )


@examples(250)
@given(data=st.data())
def agrees(lib, met, data):
    f = data.draw(st.sampled_from(kflib.on(lib.backend, FUNCTIONS)))
    call = Call(lib, f)
    spoil(data, call, f)
    sizes = [call.values[s] for s in f["sizes"]]
    code, argument = verdict(f, call.values, lib.workspace_bytes(f, sizes))
    got, changed, launches = call._call()
    shown = {k: hex(v) if isinstance(v, int) and v > 2**32 else v for k, v in call.values.items()}
    call_text = f"{call.name}({shown})"
    assert got == code, (
        f"{call_text} returned {got} ({lib.detail}), the model says {code} for {argument}"
    )
    if code != SUCCESS:
        assert lib.detail.startswith(f"{call.name}: {argument} "), (
            f"{call_text}: the message is {lib.detail!r}, the model says {argument}"
        )
        assert not changed.size and not launches, (
            f"{call_text} was refused, and wrote {changed.size} bytes, launched {launches} kernels"
        )
    met.add(code)


def test_the_model_agrees(lib):
    """The launchers must agree with the model, and the examples must reach all outcomes."""
    met = set()
    agrees(lib, met)
    assert met == {
        SUCCESS,
        NULL_POINTER,
        INVALID_SIZE,
        INVALID_VALUE,
        MISALIGNED,
        OVERLAP,
        WORKSPACE,
    }
