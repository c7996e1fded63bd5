#!/bin/sh
# Slurm's Prolog on a GPU host (Prolog= in slurm.conf): no lease starts on a host
# whose paragpud does not answer. Slurm drains such a node when this fails, and
# leases go to others. Jobs without shards start as before.
#
# Optional: without it such a lease fails, and is requested again.
PATH=$PATH:/usr/sbin:/usr/bin:/sbin:/bin

# A daemon that is busy may take a while, and one that restarts on a busy host, too. While
# it restarts, commands fail immediately, so the time counts and not the number of attempts.
deadline=$(($(date +%s) + 15))
until timeout 5 paragpu status >/dev/null 2>&1; do
	if [ "$(date +%s)" -ge "$deadline" ]; then
		# Slurm's controller is queried in this rare case only.
		scontrol --oneliner show job "$SLURM_JOB_ID" 2>/dev/null | grep -Eq 'gres[:/]shard' || exit 0
		echo "paragpud does not answer on $(uname -n): no lease starts here" >&2
		exit 1
	fi
	sleep 1
done
