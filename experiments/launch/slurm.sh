#!/usr/bin/env bash
# Trains on the nodes of a Slurm cluster, one process a node.
#
#   slurm.sh VERB [--file FILE] [--NAME VALUE ...] [--config.FIELD=VALUE ...] [--dry-run]
#
# setup    copies the committed code to a directory that all nodes see, and installs it there
# run      queues training, which queues itself again where it was stopped before its end
# logs     follows the log
# status   says what Slurm makes of it
# stop     has training save and end, for good
# collect  copies the run to runs/NAME
#
# Values: name, directory, nodes, config; login (USER@HOST, where Slurm is reached by ssh; here
# without one), gpus (of a node), time (such as 2-00:00:00), partition, account, python (python3),
# restarts (30).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

verbs='setup run logs status stop collect'
names='name directory nodes config login gpus time partition account python restarts'
required='name directory'

reach() { # a line of shell: fills the array `shell` with the command that runs it on the cluster
  shell=(bash -c "$1")
  [ -z "$login" ] || shell=(ssh "$login" "$1")
}

on_cluster() { # a line of shell
  reach "$1"
  execute "${shell[@]}"
}

setup() {
  local there
  there=$(quote "$directory")
  reach "mkdir -p $there && tar -xz -C $there"
  send_source "${shell[@]}"
  on_cluster "cd $there && $(quote "$python" -m venv .venv) && \
$(quote .venv/bin/pip install --quiet -c constraints.txt -e '.[gpu]')"
}

run() {
  need nodes config
  local flags=(--job-name="$name" --nodes="$nodes") there
  [ -z "$gpus" ] || flags+=(--gpus-per-node="$gpus")
  [ -z "$time" ] || flags+=(--time="$time")
  [ -z "$partition" ] || flags+=(--partition="$partition")
  [ -z "$account" ] || flags+=(--account="$account")
  there=$(quote "$directory/runs/$name")
  on_cluster "mkdir -p $there && cd $there && \
$(quote sbatch "${flags[@]}" ../../experiments/launch/train.sbatch "$restarts") \
$(train_arguments "runs/$name")"
}

logs() {
  on_cluster "$(quote tail -n 100 -F "$directory/runs/$name/slurm.log")"
}

status() {
  on_cluster "$(quote squeue --me --name="$name") && \
$(quote tail -n 5 "$directory/runs/$name/slurm.log")"
}

stop() {
  # With --full the job's script hears of it too, and does not queue itself again.
  on_cluster "$(quote scancel --me --name="$name" --state=PENDING) ; \
$(quote scancel --me --name="$name" --full --signal=TERM)"
}

collect() {
  reach "$(quote tar -cz -C "$directory/runs/$name" .)"
  execute mkdir -p "runs/$name"
  piped "${shell[@]}" '|' tar -xz -C "runs/$name"
}

launch "$@"
