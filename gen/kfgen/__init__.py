# SPDX-License-Identifier: Apache-2.0
"""kfgen: expands gen/spec/*.toml into kf's headers, documentation and function list."""
