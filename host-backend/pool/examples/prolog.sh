#!/bin/sh
# Slurm's Prolog on a GPU host (Prolog= in slurm.conf): no lease starts on a host
# whose paragpud does not answer. Slurm drains such a node when this fails, and
# leases go to others. Jobs without shards start as before.
#
# Optional: without it such a lease fails, and is requested again.
PATH=$PATH:/usr/sbin:/usr/bin:/sbin:/bin

# A daemon that is busy may take a while; a restart takes about a second.
for attempt in 1 2 3; do
	timeout 5 paragpu status >/dev/null 2>&1 && exit 0
	[ "$attempt" = 3 ] || sleep 1
done
# Slurm's controller is queried in this rare case only.
scontrol --oneliner show job "$SLURM_JOB_ID" 2>/dev/null | grep -Eq 'gres[:/]shard' || exit 0
echo "paragpud does not answer on $(uname -n): no lease starts here" >&2
exit 1
