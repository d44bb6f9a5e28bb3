"""From a source's tokenizer to a proper `tokenizer.json`, its special tokens and its chat template."""
