"""Magnitude: a self-optimising inference service for AI agents on edge boards."""

import os

__version__ = "0.1.0"

# ONNX Runtime decides about telemetry when it is imported: by then it has written a device id and a database into
# the user's cache folder and has an event to upload. Only this variable keeps it from all of that;
# `disable_telemetry_events()` comes too late. Here it stands before every import of ours, in every process.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
