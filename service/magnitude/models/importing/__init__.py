"""Importing: a source becomes a checked model folder, in a confined child process.

`parent.py` is what the rest calls; everything else runs in the child.
"""
