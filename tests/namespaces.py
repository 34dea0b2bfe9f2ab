"""Network namespaces for tests: whether this machine lets an ordinary user have some."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
WITHIN = ("unshare", "--map-root-user", "--net")
ALLOWED = (
    shutil.which("unshare") is not None
    and shutil.which("ip") is not None
    and subprocess.run([*WITHIN, "true"], capture_output=True).returncode == 0
)
REASON = "network namespaces are not allowed here, or unshare or ip is missing"
