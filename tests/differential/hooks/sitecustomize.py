"""On PYTHONPATH of the scripts under test: records them when S2A_TRACE names a folder, does nothing otherwise.

Python imports this module at start-up, also in torchrun's own process, which runs no script: only what has a rank, or no launcher, records.
"""

import os
import sys

_LAUNCHER = any("torch.distributed" in word or "torchrun" in word for word in sys.orig_argv[:4])

if os.environ.get("S2A_TRACE") and not _LAUNCHER:
    import s2a_recorder

    s2a_recorder.install()
