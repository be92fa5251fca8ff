"""Starts the tool server where `python3 -I -S` knows no path but the standard library's.

Runs from /opt/patchyard/boot.py in the image (beside `sandbox_image/`) and from its place in the repository.
"""

import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path.insert(0, str(here.parent if here.name == "sandbox_image" else here))

from sandbox_image.toolserver.__main__ import main  # noqa: E402 (the path comes first)

if __name__ == "__main__":
    main()
