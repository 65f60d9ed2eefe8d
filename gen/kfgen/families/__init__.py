# SPDX-License-Identifier: Apache-2.0
"""The families there are: the one place where one is named."""

from kfgen.families.map import Map
from kfgen.families.reduce import Reduce
from kfgen.families.row import Row

FAMILIES = {family.name: family for family in (Map(), Row(), Reduce())}


def of(op):
    return FAMILIES[op.family]
