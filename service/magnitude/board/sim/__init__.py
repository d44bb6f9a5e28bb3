"""A board that is computed: temperature, clocks, throttling, speed and power from a profile's figures. It has no
files, no clock of its own and no chance in it; `docs/simulator.md` has the equations and what they were checked
against."""
