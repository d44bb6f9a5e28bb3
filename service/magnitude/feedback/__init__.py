"""Feedback: aggregates and metrics of what happened."""
