"""One goal in a process of its own, for `steadyhand bench`.

python -m steadyhand.training.bench GOAL ROUNDS REALTIME ENCRYPTED FILE
"""

import json
import sys
from pathlib import Path

from steadyhand.training.bench.goals import find
from steadyhand.training.bench.turns import Setting

if __name__ == "__main__":
    word, rounds, in_realtime, encrypted, target = sys.argv[1:]
    setting = Setting(int(rounds), in_realtime == "yes", encrypted=encrypted == "yes")
    result = find(word).measure(setting)
    Path(target).write_text(json.dumps(result))
