# SPDX-License-Identifier: Apache-2.0
"""Level 2 on a machine of many cores, with GPUs or without: plan.py says which tests run in which process, run.py starts them, libraries.py
compiles what tests/cuda need, plugin.py writes a log of each process, report.py and runs.py read the logs (docs/contributing.md)."""
