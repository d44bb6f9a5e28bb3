"""Magnitude: a self-optimising inference service for AI agents on edge boards."""

__version__ = "0.1.0"
