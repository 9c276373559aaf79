"""Parallelism: degrees and their legality, pipeline schedules, memory of a stage."""
