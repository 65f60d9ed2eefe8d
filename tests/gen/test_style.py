# SPDX-License-Identifier: Apache-2.0
"""The Python files pass ruff, as after `make format`."""

import subprocess
import sys

from kflib import ROOT


def test_ruff():
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", ROOT],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
