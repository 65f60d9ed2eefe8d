# SPDX-License-Identifier: Apache-2.0
"""An entry as a record, a kernel, its tensors and schedules, whatever the family."""
