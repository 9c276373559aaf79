"""Training: time of an optimizer step and memory of a rank."""

from xlperf.training.setting import Part, Setting
from xlperf.training.step import Step, step

__all__ = ["Part", "Setting", "Step", "step"]
