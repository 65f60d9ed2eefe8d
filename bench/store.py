# SPDX-License-Identifier: Apache-2.0
"""Writes the file of a result."""

import json

DIGITS = 4  # significant digits, below the spread of two runs; all seventeen bloat the archive


def rounded(value):
    """Rounds floating-point numbers to DIGITS significant digits, recursively."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list | tuple) else value


def write(path, head, rows):
    """Writes the head, then one row per line, so a changed figure is one line of a diff."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = ",\n".join(json.dumps(rounded(r)) for r in rows)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(
        f'{json.dumps(rounded(head), indent=1)[:-2]},\n "rows": [\n{body}\n ]\n}}\n'
    )
    temporary.replace(path)
