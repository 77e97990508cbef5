"""A plant in this process or behind a real OPC UA server of our own."""
