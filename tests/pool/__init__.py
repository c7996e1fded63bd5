"""A pool of GPU hosts under Slurm, in separate network namespaces."""
