"""Keeps the folder of replica logs bounded: a log that grew too large is cut, logs of replicas long gone are deleted.

A replica holds its log open for appending, so it cannot be moved away: what it holds is copied to `NAME.1` and the
file is cut to nothing; appending goes on from there. Lines written between the two are lost, which a log bears.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path

BYTES_MAX = 64 << 20
KEEP_GONE = 200
"""Logs of replicas that are gone, newest first; a crash loop makes at most one a minute."""


def tidy(folder: Path, running: Collection[Path], *, bytes_max: int = BYTES_MAX, keep_gone: int = KEEP_GONE) -> None:
    """Cut and delete what is too much. `running`: logs that are in use. Raises nothing for files that vanish
    meanwhile.
    """
    for log in running:
        try:
            if log.stat().st_size > bytes_max:
                shutil.copyfile(log, log.with_name(log.name + ".1"))
                os.truncate(log, 0)
        except OSError:
            continue
    used = {name for log in running for name in (log.name, log.name + ".1")}
    gone = [path for path in folder.glob("*.log*") if path.name not in used]
    dated = sorted(((_changed(path), path) for path in gone), reverse=True)
    for _, path in dated[keep_gone:]:
        path.unlink(missing_ok=True)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
