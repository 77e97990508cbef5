"""Policies: from an observation to a proposal."""

import os

# The model's runtime would else keep a database of its use in the home folder and send it to its
# maker over the Internet. A controller talks to its plant and to nobody else.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
