# SPDX-License-Identifier: Apache-2.0
"""Templates to headers, pages and installed files."""
