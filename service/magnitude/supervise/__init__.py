"""Supervision: the engine process is started, watched and started again."""
