"""``python -m xlperf`` is the command ``xlperf``."""

from __future__ import annotations

from xlperf.cli import main

if __name__ == "__main__":
    main()
