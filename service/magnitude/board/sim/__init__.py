"""A board that is computed: temperature, clocks, throttling, speed and power from a profile's figures. It has no
files, no clock of its own and no chance in it; `docs/simulator.md` has the equations and what they were checked
against."""

from magnitude.board.sim.board import SimulatedBoard, rates
from magnitude.board.workload import ModelCost, Progress, Rates, Work

__all__ = ["ModelCost", "Progress", "Rates", "SimulatedBoard", "Work", "rates"]
