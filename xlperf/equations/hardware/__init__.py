"""Hardware: roofline of a kernel on an accelerator."""
