"""Runs on an emulated Arm processor, for counts of instructions."""
