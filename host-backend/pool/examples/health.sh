#!/bin/sh
# Slurm's HealthCheckProgram on a GPU host: resumes a node that prolog.sh drained, once
# its paragpud answers again. A node that was drained for another reason stays drained.
PATH=$PATH:/usr/sbin:/usr/bin:/sbin:/bin
export PATH

node=${SLURMD_NODENAME:-$(uname -n | cut -d . -f 1)}
if timeout 5 paragpu status >/dev/null 2>&1 &&
	scontrol --oneliner show node "$node" | grep -q ' Reason=paragpud: '; then
	scontrol update "nodename=$node" state=resume
fi
