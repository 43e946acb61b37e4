"""Run cells with the launcher that the configuration selects (docs/start/cluster.md).

    local    one process per cell on this machine, forked from a fork server (`repro.launch.pool`)
    slurm    one Slurm array job, submitted with submitit

All launchers write to the same store, whose locks show which process is working on which cell.
"""

from repro.launch.launcher import ready, run, run_one
