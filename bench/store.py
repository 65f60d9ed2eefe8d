# SPDX-License-Identifier: Apache-2.0
"""The file of a result."""

import json


def write(path, head, rows):
    """What was measured where, then one row per line: a changed figure is one line of a diff."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = ",\n".join(json.dumps(r) for r in rows)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(f'{json.dumps(head, indent=1)[:-2]},\n "rows": [\n{body}\n ]\n}}\n')
    temporary.replace(path)
