# SPDX-License-Identifier: Apache-2.0
"""Names of kf's own headers: a program may include any of them, a file for nvcc those for C beside
those for CUDA.
"""

import re

from kfgen.render.render import ROOT

TYPE = re.compile(
    r"^(?:template <[^>]*> )?(?:struct|union|enum) (kfi_\w+)\b(?!;| \w)|^} (kfi_\w+);", re.M
)
FUNCTION = re.compile(r"^KFI_(?:HOST|INLINE|SMALL|DEVICE|BOTH)\b[^(){};=]*?\b(kfi_\w+)\(", re.M)


def test_every_macro_has_one_value():
    """A file may include every header: a second value would be the value of the first's code."""
    found = {}
    for path in sorted((ROOT / "include").rglob("*.*h")):
        text = path.read_text().replace("\\\n", " ")
        undefined = set(re.findall(r"^ *# *undef +(\w+)", text, re.M))
        for name, value in re.findall(r"^ *# *define +(\w+)(.*)$", text, re.M):
            if name not in undefined:
                value = " ".join(re.sub(r"/\*.*?\*/|//.*", "", value).split())
                found.setdefault(name, {}).setdefault(path.name, set()).add(value)
    assert len(found) > 500
    clashes = {
        name: files
        for name, files in found.items()
        if len(files) > 1 and len(set().union(*files.values())) > 1
    }
    # A program includes either the driver's launches or the runtime's.
    assert set(clashes) == {"KFI_NO_ERROR", "KFI_ARCHITECTURES"}, clashes


def test_every_type_has_a_name_of_its_own():
    """A file for nvcc may include the C header of an op and the one for CUDA."""
    types, functions = {}, {}
    for path in sorted((ROOT / "include").rglob("*.*h")):
        text = path.read_text()
        for name in {a or b for a, b in TYPE.findall(text)}:
            types.setdefault(name, []).append(path.name)
        for name in FUNCTION.findall(text):
            functions.setdefault(name, set()).add(path.name)
    assert len(types) > 200 and len(functions) > 1000
    clashes = {name: files for name, files in types.items() if len(files) > 1}
    clashes |= {name: [*types[name], *functions[name]] for name in types if name in functions}
    assert not clashes
