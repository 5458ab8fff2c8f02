"""Makes the builders of the data tests importable when only this folder is run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
