"""A plant behind an OPC UA server.

link.py          what the loop sees: read, write, release; two threads, one snapshot, one slot
worker.py        the adapter thread: connect, verify, work, start over
session.py       one connection, never reused; a deadline on every await
security.py      who answers? certificate, trust list, endpoint
resolve.py       find and check every node, anew in each session
plant.py         one verified session at work; signs.py, outputs.py judge what it reads
feed.py          where observations come from: subscription.py, or cyclic reads
fast_read.py     the read of every cycle: exchange.py, layout.py
freshness.py     how old is a sample?
tags.py          which node is which signal; settings.py: where, how secure, how patient

and the other way round, a server of our own that lets nobody in by default: guarded_server.py,
guarded_session.py, guarded_connection.py
"""
