"""Models: what they are, where they lie, how they come in, and whether they fit."""
