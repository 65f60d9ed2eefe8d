# SPDX-License-Identifier: Apache-2.0
"""What others read or link: the manifest, packed launchers, functions on tensors."""
