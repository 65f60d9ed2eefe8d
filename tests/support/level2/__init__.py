# SPDX-License-Identifier: Apache-2.0
"""Runs level 2 in many processes on one machine, with or without GPUs (docs/testing.md).

plan.py assigns tests to processes, run.py starts them, libraries.py compiles the libraries of
tests/cuda, plugin.py logs each process, report.py and runs.py read the logs.
"""
