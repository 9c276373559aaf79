"""Published runs and kernels as plans, and predictions beside them."""
