"""One goal in a process of its own: `python -m steadyhand.training.bench GOAL ROUNDS RT FILE`."""

import json
import sys
from pathlib import Path

from steadyhand.training.bench.goals import find
from steadyhand.training.bench.turns import Setting

if __name__ == "__main__":
    word, rounds, in_realtime, target = sys.argv[1:]
    result = find(word).measure(Setting(int(rounds), in_realtime == "yes"))
    Path(target).write_text(json.dumps(result))
