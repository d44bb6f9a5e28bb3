"""Intake: the HTTP face. Knows requests, keys and error shapes; knows nothing of ONNX Runtime."""
