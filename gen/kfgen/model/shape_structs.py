# SPDX-License-Identifier: Apache-2.0
"""Shape structs: the sizes and options of a family's functions in one struct, passed by pointer.

A family with more than six sizes names one struct, which all its entries share. Callers initialise
it with zeros, and it grows only at its end. An option's 0 stands for its default; a size is what
it says, and 0 means an empty tensor.
"""

from dataclasses import dataclass

from kfgen.model import shapes

MOST = shapes.SIZES + 16  # fields of a struct: KFI_LAYOUT_VALUES
NAME = "shape"  # the argument


@dataclass(frozen=True)
class Field:
    """One int64_t of a struct.

    Attributes:
        default: the number that 0 stands for, or an earlier size; None: 0 is 0.
        brief: what the field is, for the comment in the header.
        divides: sizes that the value must divide.
    """

    name: str
    brief: str
    option: bool = False  # an argument of frontends; False: a size, which tensors have
    default: int | str | None = None
    divides: tuple = ()


def size(name, brief):
    """Field of a size."""
    return Field(name, brief)


def option(name, brief, default=None, divides=()):
    """Field of an option."""
    return Field(name, brief, True, default, tuple(divides))


@dataclass(frozen=True)
class ShapeStruct:
    """A struct of a family; `kf_<name>_t` in C."""

    name: str
    fields: tuple

    def __post_init__(self):
        names = [field.name for field in self.fields]
        if len(names) > MOST or len(set(names)) < len(names):
            raise ValueError(f"kf_{self.name}_t: at most {MOST} fields, each once: {names}")
        for i, field in enumerate(self.fields):
            if isinstance(field.default, str) and field.default not in names[:i]:
                raise ValueError(f"kf_{self.name}_t: the default of {field.name} is no field yet")
            if not set(field.divides) <= set(names[:i]):
                raise ValueError(f"kf_{self.name}_t: {field.name} divides no earlier field")

    @property
    def ctype(self):
        return f"kf_{self.name}_t"

    @property
    def names(self):
        return [field.name for field in self.fields]

    @property
    def sizes(self):
        return [field.name for field in self.fields if not field.option]

    @property
    def options(self):
        return [field.name for field in self.fields if field.option]

    @property
    def comments(self):
        """[(field, comment)] for the definition in C."""
        return [(field.name, field.brief + _default(field)) for field in self.fields]

    def describe(self, used):
        """Describes the struct for the manifest.

        Args:
            used: fields that a function reads.
        """
        fields = [
            {
                "name": field.name,
                "role": "option" if field.option else "size",
                "default": field.default,
                "divides": list(field.divides),
                "brief": field.brief,
                "unread": field.name not in used,
            }
            for field in self.fields
        ]
        return {"struct": self.ctype, "fields": fields}

    def rules(self, tensors):
        """Codes of defaults, divisors and tensors, as core/shape.h reads them.

        Args:
            tensors: extents of each tensor.
        """
        names, found = self.names, []
        for field in self.fields:
            found += (
                [shapes.CODES["end"]]
                if field.default is None
                else shapes.code(field.default, names)
            )
            found += [len(field.divides), *map(names.index, field.divides)]
        for extents in tensors:
            found.append(len(extents))
            for extent in extents:
                found += shapes.code(extent, names)
        return found


def _default(field):
    return "" if field.default is None else f"; 0: {field.default}"
