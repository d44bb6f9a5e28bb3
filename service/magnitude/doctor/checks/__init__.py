"""One check a module: `def check(context: DoctorContext) -> Finding`."""
