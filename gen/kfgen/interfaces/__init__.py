# SPDX-License-Identifier: Apache-2.0
"""Generated interfaces beside headers: manifest, packed launchers, functions on tensors."""
