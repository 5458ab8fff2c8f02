"""Slurm: `job` writes and submits the job that trains a run, `ranks` is how its processes find
out who they are."""
