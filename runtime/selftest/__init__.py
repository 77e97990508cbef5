"""What can go wrong, tried on a virtual twin of a plant's own configuration.

rows.py what a row of the fault table is · inside.py, wire.py the two benches · table_*.py the rows
audit.py the observer's judgement · run.py, report.py `steadyhand selftest`
"""
