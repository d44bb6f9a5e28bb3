"""Text: tokenizers, chat templates, stream decoding, stop strings, tool calls. Knows no HTTP and no ONNX Runtime."""
