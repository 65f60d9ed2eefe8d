# SPDX-License-Identifier: Apache-2.0
"""Element types: their names in functions, their C types and the types they are computed in."""

from dataclasses import dataclass

FLOAT_DTYPES = ("f32", "f16", "bf16", "f64")
INT_DTYPES = ("i32", "i64")
INDEX = ("i64", "i32")  # index dtypes; function names leave out the first
ROUNDED = {"tf32": "f32"}  # {dtype to which a product rounds its factors: storage dtype}
STORED = FLOAT_DTYPES + INT_DTYPES
DTYPES = STORED + tuple(ROUNDED)


@dataclass(frozen=True)
class Dtype:
    word: str
    ctype: str
    size: int
    compute: str  # f32, f64, i32, i64: type in which expressions are evaluated
    flavour: str  # suffix of math functions: compute, or lp for 2-byte storage

    @property
    def device(self):
        """Type in device code: NVRTC has no int64_t."""
        return {"i32": "kf_i32", "i64": "kf_i64", "u8": "unsigned char"}.get(self.word, self.ctype)

    @property
    def compute_ctype(self):
        return {"f32": "float", "f64": "double", "i32": "kf_i32", "i64": "kf_i64"}[self.compute]

    @property
    def acc(self):
        return DTYPE["f64" if self.compute == "f64" else "f32"]


DTYPE = {
    "f32": Dtype("f32", "float", 4, "f32", "f32"),
    "f16": Dtype("f16", "kf_f16", 2, "f32", "lp"),
    "bf16": Dtype("bf16", "kf_bf16", 2, "f32", "lp"),
    "f64": Dtype("f64", "double", 8, "f64", "f64"),
    "i32": Dtype("i32", "int32_t", 4, "i32", "i32"),
    "i64": Dtype("i64", "int64_t", 8, "i64", "i64"),
    "u8": Dtype("u8", "uint8_t", 1, "f32", "f32"),
}
DTYPE |= {word: DTYPE[stored] for word, stored in ROUNDED.items()}
