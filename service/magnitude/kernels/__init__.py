"""Our side of the kernels: the library of operators that decoders can be computed with, where it is installed."""
