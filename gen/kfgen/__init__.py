# SPDX-License-Identifier: Apache-2.0
"""kfgen: expands families/*/*.toml into kf's headers, documentation and function list."""
