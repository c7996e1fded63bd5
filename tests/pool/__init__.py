"""A pool of GPU hosts under Slurm, in network namespaces of its own."""
