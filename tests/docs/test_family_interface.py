# SPDX-License-Identifier: Apache-2.0
"""The list of attributes that templates read of the model, docs/reference/family_interface.md."""

import jinja2
from kfgen.render import interface


def test_every_attribute_has_a_line():
    """A new attribute needs a docstring or a line, and a line of an unread one must go."""
    found, given = interface.reads(), interface.lines()
    made, problems = interface.rows(found, given)
    assert problems == []
    assert {of: len(rows) > 50 for of, rows in made.items()} == dict.fromkeys(("k", "cuda", "c"), 1)
    assert all(line for rows in made.values() for _, _, line in rows)
    assert [
        (of, name) for of in given for name in given[of] if interface.described(of, name)
    ] == [], "the docstring says it"


def test_what_is_missing_is_seen():
    found, given = interface.reads(), interface.lines()
    _, problems = interface.rows(found | {("cuda", "nothing"): {"rows"}}, given)
    assert problems == ["cuda: `nothing` is read by ['rows'] and has no line"]
    _, problems = interface.rows(found, given | {"c": given["c"] | {"nothing": "a line"}})
    assert problems == ["c: `nothing` is listed, but no template reads it"]
    assert interface.described("cuda", "conditions") and not interface.described("k", "nothing")


def test_the_reads_of_a_template(monkeypatch, tmp_path):
    """Chains, loops, macros and filters; other objects' attributes do not count."""
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/a.j2").write_text(
        "//% macro of(x)\n{{ x.loads ~ k.name }}\n//% endmacro\n"
        "//% for s in k.cuda.first if s.kind\n{{ k.c.cast(s, k.dtype.word) | upper }}\n//% endfor\n"
    )
    (tmp_path / "b.j2").write_text("{{ k.renamed.cuda.core if k.name }}")
    monkeypatch.setattr(interface.paths, "TEMPLATES", tmp_path)
    monkeypatch.setattr(
        interface, "environment", lambda: jinja2.Environment(line_statement_prefix="//%")
    )
    rows, shared = {"rows"}, {"shared"}
    assert interface.reads() == {
        ("k", "name"): rows | shared,
        ("k", "cuda"): rows | shared,
        ("cuda", "first"): rows,
        ("k", "c"): rows,
        ("c", "cast"): rows,
        ("k", "dtype"): rows,
        ("k", "renamed"): shared,
        ("cuda", "core"): shared,
    }
