"""``python -m timestepper.records FOLDER…``: rewrite records that are one file each as summaries and curves."""

import sys
from pathlib import Path

from timestepper.errors import RecordError
from timestepper.records.files import convert
from timestepper.terminal import complain, tell

for path in (path for folder in sys.argv[1:] or ["results"] for path in sorted(Path(folder).glob("*.json"))):
    try:
        if convert(path):
            tell(f"{path}: converted")
    except RecordError as error:  # it stays as it is
        complain(error)
