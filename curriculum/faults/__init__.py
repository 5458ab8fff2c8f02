"""What a run does about interruptions, second starts, changed worlds and crash loops.

`signals` stops where nothing is lost, `run_lock` lets one start at a time into a run directory,
`changes` names what is different from the last start and `aside` keeps what it replaces,
`failures` ends crash loops, `launcher` deals with `torchrun`'s restarts.
"""
