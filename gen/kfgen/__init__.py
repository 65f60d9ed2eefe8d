# SPDX-License-Identifier: Apache-2.0
"""kfgen expands spec entries into kf's headers, documentation and function list."""
