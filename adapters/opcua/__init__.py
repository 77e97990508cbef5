"""The OPC UA link."""
