"""Doctor: one check a file, found by the package, each with its finding and its advice."""
