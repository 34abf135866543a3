#!/usr/bin/env bash
# Trains on the nodes of a Slurm cluster, one process a node.
#
#   slurm.sh SUBCOMMAND [--file FILE] [--NAME VALUE ...] [--config.FIELD=VALUE ...] [--dry-run]
#
# setup    copies the committed code to a shared directory and installs it
# run      queues training, which queues itself again if it was stopped early
# logs     follows the log
# status   prints the state of the job
# stop     lets training save and exit
# collect  copies the run to runs/NAME
#
# Settings: name, directory, nodes, config; ssh_host (USER@HOST of Slurm; local without one), gpus (of a
# node), time (such as 2-00:00:00), partition, account, python (python3), max_restarts (30).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

subcommands='setup run logs status stop collect'
names='name directory nodes config ssh_host gpus time partition account python max_restarts'
required='name directory'

remote_shell() { # LINE: sets the array `shell` to a command that runs it on the cluster
  shell=(bash -c "$1")
  [ -z "$ssh_host" ] || shell=(ssh "$ssh_host" "$1")
}

on_cluster() { # LINE of shell
  remote_shell "$1"
  execute "${shell[@]}"
}

setup() {
  local target
  target=$(quote "$directory")
  remote_shell "mkdir -p $target && tar -xz -C $target"
  send_source "${shell[@]}"
  on_cluster "cd $target && $(quote "$python" -m venv .venv) && \
$(quote .venv/bin/pip install --quiet -c constraints.txt -e '.[gpu]')"
}

run() {
  need nodes config
  local flags=(--job-name="$name" --nodes="$nodes") target
  [ -z "$gpus" ] || flags+=(--gpus-per-node="$gpus")
  [ -z "$time" ] || flags+=(--time="$time")
  [ -z "$partition" ] || flags+=(--partition="$partition")
  [ -z "$account" ] || flags+=(--account="$account")
  target=$(quote "$directory/runs/$name")
  on_cluster "mkdir -p $target && cd $target && \
$(quote sbatch "${flags[@]}" ../../experiments/launch/train.sbatch "$max_restarts") \
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
  # --full signals the job's script too, which then does not queue itself again.
  on_cluster "$(quote scancel --me --name="$name" --state=PENDING) ; \
$(quote scancel --me --name="$name" --full --signal=TERM)"
}

collect() {
  remote_shell "$(quote tar -cz -C "$directory/runs/$name" .)"
  execute mkdir -p "runs/$name"
  execute_pipe "${shell[@]}" '|' tar -xz -C "runs/$name"
}

launch "$@"
