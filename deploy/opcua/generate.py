"""Writes steadyhand.NodeSet2.xml beside this file, from the model in runtime/scada/model.py."""

from pathlib import Path

from steadyhand.runtime.scada.nodeset import nodeset_xml

FILE = Path(__file__).with_name("steadyhand.NodeSet2.xml")

if __name__ == "__main__":
    FILE.write_bytes(nodeset_xml())
