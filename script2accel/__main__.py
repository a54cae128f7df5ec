"""`python -m script2accel`."""

from __future__ import annotations

from script2accel.cli import main

if __name__ == "__main__":
    main()
