"""A small web page for the operator: who drives, why not, how near the limits.

    loop ─► record (ring in memory) ─► sampler ─► trends ─┐
      └───► status after the tick ────────────────────────┴► server ─► page in a browser
    page ─► command, with a person's token ─► desk ─► loop

Everything is read from what the loop has handed over already; nothing here is called in a tick.
"""
