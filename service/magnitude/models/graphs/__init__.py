"""Graphs: weights become ONNX graphs with their data file."""
