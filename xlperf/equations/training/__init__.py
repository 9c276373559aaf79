"""Training: time of an optimizer step and memory of a rank."""
