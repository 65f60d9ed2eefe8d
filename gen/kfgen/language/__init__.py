# SPDX-License-Identifier: Apache-2.0
"""The expression compiler: parsing, differentiation, printing."""
