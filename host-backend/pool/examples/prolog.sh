#!/bin/sh
# Slurm's Prolog on a GPU host (Prolog= in slurm.conf): no lease starts on a host
# whose paragpud does not answer. Slurm drains such a node, the reason begins with
# "paragpud:", and leases go to others. Jobs without shards start as before.
#
# Optional: without it such a lease fails, and is requested again.
PATH=$PATH:/usr/sbin:/usr/bin:/sbin:/bin
export PATH

# A daemon that is busy may take a while, and one that restarts on a busy host, too. While
# it restarts, commands fail immediately, so the time counts and not the number of attempts.
deadline=$(($(date +%s) + 15))
until problem=$(timeout 5 paragpu status 2>&1 >/dev/null); do
	if [ "$(date +%s)" -ge "$deadline" ]; then
		# Slurm's controller is queried in this rare case only.
		scontrol --oneliner show job "$SLURM_JOB_ID" 2>/dev/null | grep -Eq 'gres[:/]shard' || exit 0
		problem="paragpud: $(echo "${problem:-no answer in 5 seconds}" | sed 's/^paragpu: //;q')"
		# For slurmd's log. Slurm's own reason would be "Prolog error".
		echo "$problem" >&2
		scontrol update "nodename=$SLURMD_NODENAME" state=drain "reason=$problem"
		exit 1
	fi
	sleep 1
done
