"""Time and memory of serving a model: a prefill, then decode steps with a growing KV cache."""
