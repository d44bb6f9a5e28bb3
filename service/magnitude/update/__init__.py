"""Updates of a whole device that has two root slots: which of them is right, proved after each boot.

`boot_check.py` has the running service do real inference and watches it for a minute, `trial.py` decides what follows
from that for the slot, `gate.py` carries it out through a slot tool (`slots.py`; RAUC) and remembers it in
`trial_file.py`.
"""
