# SPDX-License-Identifier: Apache-2.0
"""Builds the graph of an op's expressions and derives its gradients."""

from kfgen.language.expr import ExprError, Graph, parse
from kfgen.language.gradient import gradient
from kfgen.language.primitives import COLUMN, ELEM, INF, QUERIES, QUERY, ROW, ROW_COUNTS, UNIFORM
from kfgen.model.entries import names_read, updated
from kfgen.model.names import gradient_of


def in_order(texts):
    """Sorts the names of {name: expression} so that each follows the names that it reads."""
    waiting, found = dict(texts), []
    while waiting:
        ready = next(
            (n for n, text in waiting.items() if not (names_read(text) & set(waiting)) - {n}), None
        )
        if ready is None:
            raise ExprError(f"{' and '.join(f'`{n}`' for n in sorted(waiting))} read each other")
        found.append(ready)
        del waiting[ready]
    return found


def _graph(op, reads, levels=None):
    whole = (
        {o.name for o in op.operands if o.dtype == "I"}
        | set(op.integers)
        | set(ROW_COUNTS if COLUMN in reads else ())
    )
    graph = Graph(levels, whole)
    graph.extra = op.extra
    env = {name: graph.var(name) for o in op.operands for name in o.values}
    return graph, env | {name: graph.var(name) for name in (*op.scalars, *reads)}


def element_graph(op):
    """Builds the graph of an elementwise op: (graph, {readable name: node}, {output: node})."""
    graph, env = _graph(op, ())
    extra = {"dropout": None} | ({"act": None} if op.has_act else {})
    return (
        graph,
        env,
        {name: parse(graph, text, {**env, **extra}) for name, text in op.outputs.items()},
    )


def update_graph(op):
    """Builds the graph of an op that updates operands: (graph, {readable name or next value: node},
    {output: node}). Expressions read the next value of `m` as `m_out`.
    """
    graph, env = _graph(op, ())
    own, outs = {updated(name): text for name, text in op.updates.items()}, {}
    for name in in_order(own | op.outputs):
        try:
            node = parse(graph, (own | op.outputs)[name], env)
        except ExprError as e:
            e.field = "updates" if name in own else "expr"
            raise
        (env if name in own else outs)[name] = node
    return graph, env, {name: outs[name] for name in op.outputs}


def row_graph(op, reads, dropout):
    """Builds the graph of an op over rows: (graph, {readable or saved name: node}, {output: node}).
    Another expression reads an elementwise output as a `stored` node of its name. reads: names of
    sizes that expressions may read.
    """
    levels = {o.name: ROW for o in op.operands if o.kind in ("per_row", "channel")} | dict.fromkeys(
        op.scalars, UNIFORM
    )
    graph, env = _graph(op, reads, levels)
    env |= {INF: graph.const(float("inf"))}
    extra = ({"dropout": None} if dropout else {}) | ({"act": None} if op.has_act else {})
    outs, known = {}, dict(env)
    own = op.values_of_rows
    for name in in_order(own | op.outputs):
        try:
            node = (
                parse(graph, own[name], known)
                if name in own
                else parse(graph, op.outputs[name], {**known, **extra})
            )
        except ExprError as e:
            e.field = "saved" if name in op.saved else "updates" if name in own else "expr"
            raise
        if name in own:
            env[name] = known[name] = node
        else:
            outs[name] = node
            known[name] = (
                graph.add("stored", node, value=name) if graph.level(node) == ELEM else node
            )
    return graph, env, {name: outs[name] for name in op.outputs}


def has_queries(op, graph, env, outputs):
    """True if rows are the queries of tensors [batch, heads, queries, keys]."""
    read = graph.variables([*outputs.values(), *(env[n] for n in op.values_of_rows)])
    return bool(read & {QUERY, QUERIES}) or any(o.kind == "shared" for o in op.operands)


def activated(op, graph, outputs):
    """Returns the output that equals the activation's result, if any: the backward takes it as an
    input for gradients that read the result.
    """
    return (
        next((name for name, node in outputs.items() if graph.nodes[node].op == "act"), None)
        if op.has_act
        else None
    )


def gradients(op, graph, env, outputs):
    """Returns {value of an operand: node of its gradient, or None}. Adds variables to the graph:
    the outputs' gradients d<output> and, for given gradients (`grads`), the outputs.
    """
    douts = {name: graph.var(gradient_of(name)) for name in outputs}
    if graph.levels is not None:
        graph.levels |= {gradient_of(o): graph.level(node) for o, node in outputs.items()}
        graph.levels |= {name: graph.level(node) for name, node in outputs.items()}
    wanted = [v for o in op.operands if o.grad for v in o.values]
    derived = [v for v in wanted if v not in op.grads]
    found = (
        gradient(graph, {outputs[n]: douts[n] for n in outputs}, [env[v] for v in derived])
        if derived
        else {}
    )
    names = {
        **env,
        **{n: graph.var(n) for n in outputs},
        **{gradient_of(n): d for n, d in douts.items()},
    } | ({"act_bwd": None} if op.has_act else {})
    names |= {"dropout": None} if op.dropout else {}  # with the forward's mask
    return {v: parse(graph, op.grads[v], names) if v in op.grads else found[env[v]] for v in wanted}
