"""Measurements: side by side with other engines, and of the running service. Nothing here is asserted by a test.

`scripts/bench` is the way in. `peers/` holds one worker process for each contender.
"""
