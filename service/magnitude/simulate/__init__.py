"""Hours of load on a simulated board, with the thermal governor or without it."""
