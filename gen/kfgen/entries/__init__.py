# SPDX-License-Identifier: Apache-2.0
"""Spec files: reading, checking, expanding; kf's activations and aliases."""
