"""The engine: a child process that runs models and holds no state of its own."""
