"""`steadyhand run` with a life that passes faster, for the soak.

    python -m tests.support.soak_runtime CONFIG CHANNEL_S ROTATE_S KEEP_BYTES RENEWALS

Everything is the real runtime but some numbers that no configuration holds: the secure channel is
renewed every CHANNEL_S seconds, the journal begins a new segment every ROTATE_S seconds and keeps
KEEP_BYTES, the third loss of the link within 50 s is flapping, not within a minute, so that it can
be cut every 30 s, and memory for records that wait for a disk holds an eighth, so that it is full
within minutes and no longer grows. A byte is added to the file RENEWALS for every renewal that the
server granted.
"""

import dataclasses
import sys
from functools import partial
from pathlib import Path
from typing import Any

from steadyhand.runtime.run import run
from tests.support.soak_figures import RING_EVENTS, RING_TICKS

FLAP_S = 50.0
RENEWED_AFTER = 0.75
"""Share of a channel's life after which the client renews it (OPC 10000-4, 5.5.2.1)."""


def main() -> None:
    config, channel_s, rotate_s = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    keep_bytes, renewals = float(sys.argv[4]), Path(sys.argv[5])
    # only now: `run` makes the policy's process before anything else is imported, but not here
    from asyncua import Client

    from steadyhand.runtime import assemble, exits, service

    settings, limits = assemble.opcua_settings, assemble.journal_limits
    assemble.opcua_settings = lambda *words: dataclasses.replace(
        settings(*words), channel_life_s=channel_s / RENEWED_AFTER, flap_window_s=FLAP_S
    )
    assemble.journal_limits = lambda *words: dataclasses.replace(
        limits(*words), segment_age_s=rotate_s, keep_bytes=keep_bytes
    )
    service.Recorder = partial(service.Recorder, ticks=RING_TICKS, events=RING_EVENTS)
    as_made = Client.open_secure_channel

    async def open_secure_channel(client: Any, renew: bool = False) -> None:
        await as_made(client, renew=renew)
        if renew:
            with renewals.open("ab") as stream:
                stream.write(b".")

    Client.open_secure_channel = open_secure_channel
    sys.exit(int(exits.guarded(lambda: run(config, None, quiet=False))))


if __name__ == "__main__":
    main()
