"""Text: tokenizers, chat templates, stream decoding, stop strings, tool calls. No HTTP, no ONNX Runtime."""
