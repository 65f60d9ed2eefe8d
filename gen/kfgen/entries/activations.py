# SPDX-License-Identifier: Apache-2.0
"""Reads [activation.<name>] entries."""

from kfgen.entries.fields import is_number, scalars, values
from kfgen.entries.spec_checks import check_by_result
from kfgen.model import limits
from kfgen.model.entries import KF_IDS, NAME, Activation, own_id
from kfgen.paths import stem_of


def load_activation(spec, file, name, f, builtin):
    """Reads an entry and adds its activation to the spec."""
    _check_name(spec, name, f)
    act = Activation(
        name=name,
        id=_id(spec, file, name, f, builtin),
        file=file,
        builtin=builtin,
        brief=f.line("brief"),
        expr=f.get("expr", str, required=True, what='"an expression of x"'),
        dexpr=f.get("dexpr", str),
        scalars=values(scalar_info := scalars(f, limits.ACT_SCALARS, own=("x", "y"))),
        scalar_info=scalar_info,
        dexpr_out=f.get("dexpr_out", str),
        dref_out=f.get("dref_out", str),
        rising=tuple(f.get("rising", list, [], what='["a_scalar"]')),
        ref=f.get(
            "ref",
            str,
            required=True,
            what='"the same function in NumPy (np) and scipy.special (sp)"',
        ),
        dref=f.get("dref", str),
        edges=f.get("edges", dict, {}, what='{ nan = "nan", inf = ... }'),
        dedges=f.get("dedges", dict, {}, what='{ nan = "nan", inf = ... }'),
        ulp=f.get("ulp", dict, {"f32": 4, "f64": 4}, what="{ f32 = 4, f64 = 4 }"),
        ints=f.get("ints", bool, False, what="true or false"),
        rounding=f.get("rounding", str, "result", what='"result" or "intermediates"'),
        budget=f.get("budget", dict, {}, what='{ lp = 13, lp_bwd = 25, f32 = 30, why = "..." }'),
        heavy=f.get("heavy", bool, False, what="true or false"),
        source=f.get("source", str, "", what='"where the function is defined"'),
        since=f.get("since", str, "", what='"the version that brought it"'),
    )
    f.done()
    f.oracle("ref", act.ref)
    f.oracle("dref", act.dref or "0")
    check_by_result(f, act)
    _check_values(f, act)
    spec.activations[name] = act


def _check_name(spec, name, f):
    if not NAME.match(name):
        shown = name if name.isprintable() else repr(name)[1:-1]
        raise f.error(
            "name",
            f"`{shown}` is not a word",
            "use lower-case letters, digits and single underscores",
        )
    if name in spec.activations:
        raise f.error(
            "name",
            f"`{name}` is already defined in {spec.activations[name].file}",
            "choose another name",
        )


def _check_values(f, act):
    """Checks edges, bounds and budget."""
    for field, table in (("edges", act.edges), ("dedges", act.dedges)):
        for point, value in table.items():
            if (
                not is_number(point)
                or isinstance(value, bool)
                or not isinstance(value, (int, float, str))
            ):
                raise f.error(
                    field,
                    f"{point} is {value!r}",
                    'write a point such as nan, "-inf" or 3 and the value there, "nan" or 0.5',
                )
    for dtype in ("f32", "f64"):
        if not isinstance(act.ulp.get(dtype), (int, float)):
            raise f.error("ulp", f"has no {dtype}", "write ulp = { f32 = 4, f64 = 4 }")
    if act.rounding not in ("result", "intermediates"):
        raise f.error("rounding", f"is {act.rounding!r}", 'write "result" or "intermediates"')
    if act.budget and not act.budget.get("why"):
        raise f.error("budget", "gives no reason", 'add why = "..."')


def _id(spec, file, name, f, builtin):
    """Returns the unique id of an activation."""
    if not builtin and "id" in f.data:
        raise f.error("id", "is set by kfgen from the names of file and activation", "remove it")
    ident = (
        f.get("id", int, required=True, what="a number never used before")
        if builtin
        else own_id(stem_of(file), name)
    )
    if builtin and ident not in KF_IDS:
        raise f.error("id", f"{ident} is not one of kf's own", f"they are below {KF_IDS.stop}")
    for other in spec.activations.values():
        if other.id == ident:
            if builtin:
                raise f.error(
                    "id", f"{ident} is already {other.name}'s", "choose a number that is free"
                )
            raise f.error(
                "name",
                f"gives the id {ident}, which is already {other.name}'s",
                "rename one of the two",
            )
    return ident
