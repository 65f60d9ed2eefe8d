# SPDX-License-Identifier: Apache-2.0
import sys

from kfgen.cli import main

sys.exit(main())
