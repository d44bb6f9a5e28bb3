"""Tuning: all ways to run one model, compared on this board before it serves."""
