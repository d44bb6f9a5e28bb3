"""Training, off the device: records of tasks in, tables and trees out. Needs the extra "train"."""
