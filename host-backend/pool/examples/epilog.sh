#!/bin/sh
# Slurm's Epilog on a GPU host (Epilog= in slurm.conf): ends sessions that
# outlived their lease's job.
#
# Optional while paragpud works: a lease ends with its agent, or soon after its job.
PATH=$PATH:/usr/sbin:/usr/bin:/sbin:/bin
export PATH

timeout 5 paragpu list --job "$SLURM_JOB_ID" 2>/dev/null |
	awk 'NR > 1 { print $1 }' |
	while read -r session; do
		echo "session $session outlived job $SLURM_JOB_ID: ended" >&2
		timeout 5 paragpu end "$session" >/dev/null 2>&1
	done
# A failure would drain the node.
exit 0
