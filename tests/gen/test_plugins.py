# SPDX-License-Identifier: Apache-2.0
"""What a family costs outside of its own files: lines that name it, or an op or a form of its, in files that there would be without it. Ten at most,
so that nobody has to look for the places where a family is to be entered."""

import pathlib
import re
import subprocess

import kflib
import pytest
from kfgen import families, spec

MOST = 10
# The first ones, of which the generator was made, and which tests and pages take their examples from.
BASE = ("map", "row", "reduce", "gemm", "logits")
PLUGINS = [name for name in families.FAMILIES if name not in BASE] + [
    "reduce_place"
]  # of the family reduce the ops that find places
# Goldens, pages and results that a command makes anew; what has the past in it.
MADE = re.compile(
    r"tests/golden/|docs/(reference/|performance\.md|promises\.md)|bench/(results/|NOTES\.md)|CHANGELOG\.md|.*\.(golden|json|svg|png)$"
)
EXAMPLES = re.compile(r"examples/\d\d_\w+\.\w+$")  # a program each
# Words that are not a family's alone: "pairs" is a size, and what the types of a cast are called; "both" is a form.
OTHERS = re.compile(r'types|"weights"|"(dim|dims|positions|p)"|"pairs" in |\["pairs"\]')
ORDINARY = {"both"}


def ops_of(plugin):
    file = kflib.ROOT / f"gen/spec/{plugin}.toml"
    return {
        name
        for pattern in re.findall(r'^\[op\."?([\w{}]+)"?\]', file.read_text(), re.M)
        for name in (pattern, pattern.replace("{act}_", ""))
    }


def words_of(plugin):
    """(a pattern of what names it as a family, its ops)."""
    made = "".join(word.title() for word in plugin.split("_"))
    forms = [
        f
        for f in getattr(families.FAMILIES.get(plugin), "forms", ())
        if f not in {*families.FAMILIES, *ORDINARY}
    ]
    own = [
        rf'"{plugin}"',
        rf"`{plugin}`",
        rf"\b(families|core)[/.]{plugin}(_\w+)?\b",
        rf"\b{made}(C|Cuda|Kernel)?\(?\)?\b",
        rf"(?<![\w/]){plugin}(_\w+)?\.(py|toml|cuh|h|j2|md)\b",
        *(rf'"{form}"' for form in forms),
    ]
    return re.compile("|".join(own)), ops_of(plugin)


def named(line, pattern, ops):
    if pattern.search(line) and not OTHERS.search(line):
        return True
    for word in re.finditer(r"([\w.]*\.)?\b([A-Za-z_]\w*)", line):
        bare = re.sub(r"^(kf_cpu_|kf_fused_|kf_|kfk_|kft_)", "", word[2])
        bare = re.sub(r"(_(bwd|f32|f64|f16|bf16|i32|any|strides_t|workspace_bytes))+$", "", bare)
        if bare in ops and (word[1] or "kf.ops.") in ("kf.ops.", "ops.", "torch.ops.kf."):
            return True
    return False


def own_file(path, plugin, ops):
    """Whether a file is there for it alone: it is called like the family, like one of its ops, or like a family that is made of it (normed_pairs is
    of pairs); or it is an example, which is a program of its own."""
    parts = [
        pathlib.PurePath(part).stem.split(".")[0].removeprefix("test_")
        for part in pathlib.PurePath(path).parts
    ]
    words = [plugin, *ops, f"normed_{plugin}"]
    return bool(EXAMPLES.match(path)) or any(
        part == word or part.startswith(f"{word}_") for part in parts for word in words
    )


def files():
    said = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=kflib.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = (
        said.stdout.split()
        if said.returncode == 0
        else [str(p.relative_to(kflib.ROOT)) for p in kflib.ROOT.rglob("*.*")]
    )
    return [f for f in found if not MADE.match(f) and (kflib.ROOT / f).is_file()]


@pytest.fixture(scope="module")
def lines():
    found = {}
    for f in files():
        try:
            found[f] = (kflib.ROOT / f).read_text().splitlines()
        except UnicodeDecodeError:
            continue
    assert len(found) > 500
    return found


def outside(lines, plugin):
    pattern, ops = words_of(plugin)
    some = re.compile("|".join(map(re.escape, ops)))
    return [
        f"{f}:{i}: {line.strip()[:120]}"
        for f, text in lines.items()
        if f != "tests/gen/test_plugins.py" and not own_file(f, plugin, ops)
        for i, line in enumerate(text, 1)
        if (pattern.search(line) or some.search(line)) and named(line, pattern, ops)
    ]


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_family_is_named_in_few_lines(lines, plugin):
    found = outside(lines, plugin)
    print(*found, sep="\n")  # pytest -rP shows it
    assert len(found) <= MOST, f"{len(found)} lines name {plugin}:\n" + "\n".join(found)


def test_what_names_one_is_seen():
    """The count does not stay low by seeing nothing."""
    pattern, ops = words_of("lookup")
    for line in (
        'assert f["family"] == "lookup"',
        "from kfgen.families.embedding.family import Lookup",
        "kf_cpu_embedding_bwd_f32(",
        "kf.ops.embedding(x)",
        "#include <kf/core/embedding/embedding.h>",
        "| embedding.cuh |",
        '"lookup": (3, 4)',
        "(`embedding`, `rope`)",
    ):
        assert named(line, pattern, ops), line
    for line in (
        "kf_op_lookup(name)",
        "kf_embedding_add_layer_norm_f32(",
        "torch.nn.functional.embedding(x)",
        '#include "kf/runtime/lookup.h"',
    ):
        assert not named(line, pattern, ops), line
    assert not own_file("tests/gen/test_names.py", "lookup", ops) and own_file(
        "tests/families/lookup.py", "lookup", ops
    )
    assert all(spec.SPECS / f"{plugin}.toml" in spec.builtin_files() for plugin in PLUGINS)
