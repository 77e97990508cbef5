"""The runtime as a SCADA client sees it: an OPC UA address space of its own.

model.py      types, variables and methods, as data; nodeset.py writes them as a NodeSet file
space.py      the nodes in the server, and how one image gets onto them
snapshot.py   what the loop told after a tick, as values of the nodes
methods.py    a method call becomes a command on the desk, a refusal a StatusCode with its text
people.py     who may come in: users with roles, client certificates
server.py     the thread that serves all this; the loop only leaves a reference behind
"""
