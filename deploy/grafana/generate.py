#!/usr/bin/env python3
"""Make the dashboards: `python deploy/grafana/generate.py`; `--check` only compares.

Four boards, each for one question (`boards.py`). Grey is normal; colour is for what is not. Every
panel says what it shows and what to do about it.
"""

import argparse
import json
import sys
from pathlib import Path

from boards import BOARDS
from grafana_foundation_sdk.cog.encoder import JSONEncoder

OUT = Path(__file__).parent / "dashboards"


def texts() -> dict[str, str]:
    """Every dashboard's file, by name."""
    made = {}
    for name, board in BOARDS.items():
        data = json.loads(json.dumps(board().made.build(), cls=JSONEncoder, sort_keys=True))
        data["id"] = None  # Grafana gives it one
        made[f"{name}.json"] = json.dumps(data, indent=1, sort_keys=True) + "\n"
    return made


def main() -> int:
    """Write the files, or say which ones differ."""
    options = argparse.ArgumentParser(description="Make the dashboards.")
    options.add_argument("--check", action="store_true", help="only compare with what is there")
    check = options.parse_args().check
    differ = []
    for name, text in texts().items():
        file = OUT / name
        if not file.exists() or file.read_text("utf-8") != text:
            differ.append(name)
        if not check:
            OUT.mkdir(exist_ok=True)
            file.write_text(text, "utf-8")
    if check and differ:
        sys.stderr.write(f"out of date: {', '.join(differ)}; run {Path(__file__).name}\n")
    return int(check and bool(differ))


if __name__ == "__main__":
    sys.exit(main())
