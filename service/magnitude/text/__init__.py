"""Text: tokenizers, chat templates, stream decoding, stop strings, tool calls. Knows neither HTTP nor ONNX Runtime."""
