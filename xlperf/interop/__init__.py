"""Files of other programs: launch lines, recipes, logs, Hugging Face configurations and datasheets."""
