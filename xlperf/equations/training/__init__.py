"""Training: time of an optimizer step and memory of a rank."""

from xlperf.equations.training.setting import Part, Setting
from xlperf.equations.training.step import Step, step

__all__ = ["Part", "Setting", "Step", "step"]
