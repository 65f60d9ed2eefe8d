# SPDX-License-Identifier: Apache-2.0
"""Tests that kf/core/ptx holds all inline PTX, and that no header names the emulation's functions.
The emulation has a file for each of that folder, with the same functions."""

import re

import pytest
from kflib import ROOT

PTX = ROOT / "include/kf/core/ptx"
EMULATED = ROOT / "tests/emu/include/kf/core/ptx"
HEADERS = sorted(p for p in (ROOT / "include").rglob("*") if p.is_file())
TEMPLATES = sorted((ROOT / "templates").rglob("*.cuh.j2"))
WORDS = re.compile(r"\bkf_emu_|\bKF_EMU_|\bKFI_PTX\b|\bKFI_\w*CALLER\b")
ASM = re.compile(r"\basm\b")
# Headers that ask which compiler reads them: the emulation's is neither nvcc nor a plain C++ one.
COMPILERS = {"core/config.h", "core/dtype.h", "core/device.cuh", "runtime/implementation.h"}
FUNCTION = re.compile(r"^(?:template <[^>]*>\s+)?KFI_DEVICE\s[^({]*?(\w+)\(", re.M)
CONSTANT = re.compile(r"^#define (KFI_[A-Z0-9_]+) ", re.M)


def functions(text):
    return set(FUNCTION.findall(text))


def emulated_part(text, emulated):
    """Leaves out what a constant brings that the emulation has as 0."""
    for word in re.findall(r"^#define (KFI_\w+) 0", emulated, re.M):
        text = re.sub(rf"^#define {word} 1\n.*?^#else", "#else", text, flags=re.M | re.S)
    return text


def from_include(path):
    return path.relative_to(ROOT / "include/kf").as_posix()


def test_headers_without_emulation():
    assert [from_include(p) for p in HEADERS if WORDS.search(p.read_text())] == []
    assert {from_include(p) for p in HEADERS if "KF_EMULATE" in p.read_text()} == COMPILERS


def test_ptx_in_its_folder():
    device = [p for p in HEADERS if p.suffix == ".cuh" and p.parent != PTX] + TEMPLATES
    assert [str(p) for p in device if ASM.search(p.read_text())] == []


def test_emulated_files():
    assert sorted(p.name for p in PTX.iterdir()) == sorted(p.name for p in EMULATED.iterdir())


@pytest.mark.parametrize("name", sorted(p.name for p in PTX.iterdir()))
def test_emulated_functions(name):
    """Every function with PTX has an emulated one. Helpers of the PTX itself need none."""
    emulated = (EMULATED / name).read_text()
    text = emulated_part((PTX / name).read_text(), emulated)
    used = "".join(p.read_text() for p in HEADERS + TEMPLATES if p.parent != PTX)
    called = {f for f in functions(text) if re.search(rf"\b{f}\b", used)}
    assert called and called <= functions(emulated)
    constants = {c for c in CONSTANT.findall(text) if re.search(rf"\b{c}\b", used)}
    assert constants <= set(CONSTANT.findall(emulated))
