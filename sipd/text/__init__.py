"""Text edges: tokenizer, chat template, detokenizer, stop strings."""
