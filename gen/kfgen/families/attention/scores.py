# SPDX-License-Identifier: Apache-2.0
"""The score of an attention function as generated code: an overload of core/attention/score.cuh for
CUDA, a function of a row for C.
"""

import hashlib

from kfgen.language.emit import emit
from kfgen.language.primitives import COLUMN, COUNT, QUERIES, QUERY
from kfgen.model.entries import ANY_ID, FIRST_OWN_ID
from kfgen.model.schedule import CHEAP

DOT, DSCORE = "dot", "dscore"  # a product, and the gradient of its score
PRODUCTS = ("query", "key", "value")  # kinds of the operands of products
# Positions that a thread keeps for a block of keys: {name: (the call's own, its base)}.
KEPT = {QUERY: ("row", "query_base"), COLUMN: ("key", "key_base"), "head": ("head", "head_base")}
# Texts of the positions of a thread's product i.
OF_ELEMENT = {
    QUERY: "(block.query + kfi_score_query<transposed>(i))",
    COLUMN: "(block.column + kfi_score_column<transposed>(i))",
    "head": "block.head",
    QUERIES: "a.score.queries_total",
    COUNT: "a.score.keys_total",
}


class CudaScore:
    """The score of a kernel whose names are those of generated code."""

    def __init__(self, kernel):
        self.k = kernel

    @property
    def tag(self):
        """Number that names the score, different for each dtype."""
        digest = hashlib.sha256(self.k.name.encode()).digest()
        return FIRST_OWN_ID + int.from_bytes(digest[:8], "big") % (ANY_ID - FIRST_OWN_ID)

    @property
    def ctype(self):
        return self.k.dtype.compute_ctype

    @property
    def tensors(self):
        """(index, tensor) of the operands of the scores' shape."""
        found = enumerate(self.k.score_inputs)
        return [(i, s) for i, s in found if s.kind == "score"]

    @property
    def heads(self):
        """(index, tensor) of the operands with a value per head."""
        return [(i, s) for i, s in enumerate(self.k.score_inputs) if s.kind == "head"]

    @property
    def positions(self):
        """(name, text of its value) of the positions that a thread keeps."""
        read = self.k.graph.variables(self.k.roots)
        return [(n, f"{own} + a.score.{base}") for n, (own, base) in KEPT.items() if n in read]

    @property
    def code(self):
        """(lines, text of the score)."""
        k = self.k
        target = k.cuda.target(CHEAP)
        lines, [text] = emit(k.graph, k.roots[:1], target, self._env())
        return lines, text

    def _env(self, dscore="dscore"):
        k = self.k
        field = "scalars_f64" if k.dtype.compute == "f64" else "scalars"
        env = {s: f"a.score.{field}[{i}]" for i, s in enumerate(k.used_scalars)}
        env |= {s.name: f"kfi_attention_widen(block.{s.name}[i])" for _, s in self.tensors}
        env |= {s.name: f"block.{s.name}" for _, s in self.heads}
        env |= {name: f"({self.ctype}){text}" for name, text in OF_ELEMENT.items()}
        return env | {DSCORE: dscore}

    def derivatives(self, dscore="dscore"):
        """(lines, [texts]) of a backward: the gradients of `dot` and of k.tensor_gradients, from
        the product `dot` and the score's gradient.
        """
        k = self.k
        lines, texts = emit(k.graph, k.roots[1:], k.cuda.target(CHEAP), self._env(dscore))
        return lines, texts


class CScore:
    """The score of a kernel as a function of one row and several keys."""

    def __init__(self, kernel):
        self.k = kernel

    @property
    def ctype(self):
        return self.k.dtype.compute_ctype

    @property
    def scalars(self):
        """(name, index among the op's scalars) of those that the score reads."""
        return self.k.c.scalar_places

    @property
    def values(self):
        """(position, text) of the numbers that are the same for a row."""
        found = {
            QUERY: "part->query + kfi_p->query_base",
            "head": "part->head + kfi_p->head_base",
            QUERIES: "kfi_p->queries_total",
            COUNT: "kfi_p->keys_total",
        }
        if self.k.packed:
            found |= {QUERIES: "part->queries", COUNT: "part->keys"}
        read = self.k.graph.variables(self.k.roots)
        return [(name, f"({self.ctype})({text})") for name, text in found.items() if name in read]

    @property
    def code(self):
        """(lines, texts: the score's; in a backward also those of its derivatives by the product
        and by the operands of k.tensor_gradients).
        """
        k = self.k
        env = {s.name: f"{s.name}[{'j' if s.kind == 'score' else '0'}]" for s in k.score_inputs}
        env |= {name: f"kfi_{name}" for name, _ in self.values}
        env |= {DOT: "kfi_s[j]", COLUMN: f"(kfi_first + ({self.ctype})j)"}
        env |= {DSCORE: f"({self.ctype})1"}
        return emit(k.graph, k.roots, k.c.target(k.acts[0]), env)

    @property
    def derivatives(self):
        """(name, expression) of the rows of derivatives that a backward stores."""
        found = [("kfi_ddot", "part->derivative")] if self.k.bwd else []
        gradients = [(f"kfi_dvalue{i}", f"part->derivatives[{i}]") for i, *_ in self.gradients]
        return found + gradients

    @property
    def gradients(self):
        return self.k.tensor_gradients

    def widen(self, stream):
        """Name of the function that converts elements of a tensor."""
        if stream.dtype.word == "u8":
            return f"kfi_attention_widen_u8_{self.k.dtype.acc.word}"
        return f"kfi_gemm_{stream.dtype.word}().widen"
