# SPDX-License-Identifier: Apache-2.0
"""Functions in C that several activations share."""


class Sharing:
    """Functions of a kernel's passes in C, shared by activations with the same statements. The
    first activation names a shared function; the kernel's first activation uses the kernel's name.
    """

    def __init__(self, kernel, extends):
        self.kernel, self.extends, self.seen, self.name, self.passes, self.label = (
            kernel,
            extends,
            {},
            None,
            [],
            None,
        )

    def begin(self, text):
        """Starts the passes of a Text."""
        self.passes, self.label = [], text.name

    def tile(self, role, statements, macro, *arguments):
        """The text of a new function, or "" if it exists. Sets `name` to its name. statements: all
        that differs between functions of the role.
        """
        key = role, repr(statements)
        if key in self.seen:
            self.name = self.seen[key]
            return ""
        first = not self.extends and not any(known == role for known, _ in self.seen)
        self.name = self.seen[key] = f"kfi_{role}_{self.kernel}" + (
            "" if first else f"_{self.label}"
        )
        return macro(self.name, *arguments)

    def row(self, calls, role, statements, *arguments):
        """The same for the next pass over a row, which calls the function over a tile of that pass,
        if any. calls: calls of a run-time activation.
        """
        text = self.tile(role, (self.name, statements), *arguments)
        self.passes.append((self.name, calls))
        self.name = None
        return text
