"""Policy: situation in, strategy out. Pure."""
