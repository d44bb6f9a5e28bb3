"""The systemd units: which files an installation gets, and putting them in place."""
