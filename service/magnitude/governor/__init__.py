"""What keeps the board within its bounds. Pure: it sees snapshots and returns what is to be done."""
