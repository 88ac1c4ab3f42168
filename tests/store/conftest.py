"""Makes the modules that several store tests share importable."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
