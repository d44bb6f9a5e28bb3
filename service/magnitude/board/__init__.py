"""Board: what the hardware says. One reader of sysfs, procfs and cgroups; every root can be replaced."""
