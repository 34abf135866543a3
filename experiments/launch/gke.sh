#!/usr/bin/env bash
# Trains on a TPU slice of a GKE cluster, with xpk.
#
#   gke.sh SUBCOMMAND [--file FILE] [--NAME VALUE ...] [--config.FIELD=VALUE ...] [--dry-run]
#
# create   creates a cluster with one slice
# setup    builds an image of the committed code, and pushes it
# run      starts training on every host of the slice; GKE restarts it after a preemption
# logs     follows the logs of all processes
# status   prints the state of the workload
# watch    waits until training is done or has failed
# stop     lets training save and exit
# collect  copies the run from the bucket to runs/NAME
# delete   deletes the cluster and everything on it, but not the bucket
#
# Settings: name, project, zone, bucket, accelerator, config, cluster, image;
# capacity (on-demand or spot), max_restarts (30).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

subcommands='create setup run logs status watch stop collect delete'
names='name project zone bucket accelerator config cluster image capacity max_restarts'
required='project zone cluster'

xpk_on_cluster() { # GROUP COMMAND FLAG...
  execute xpk "$1" "$2" --cluster="$cluster" --project="$project" --zone="$zone" "${@:3}"
}

create() {
  need accelerator
  [ "$capacity" != reserved ] || fail "capacity='reserved': not supported on GKE. Use on-demand or spot."
  xpk_on_cluster cluster create --tpu-type="$accelerator" "--$capacity"
}

setup() {
  need image
  send_source docker build --platform=linux/amd64 --file=experiments/launch/Dockerfile \
    --tag="$image" -
  execute docker push "$image"
}

run() {
  need name accelerator image config
  need_workdir
  # exec: the signal before a preemption must reach the training, not a shell around it.
  local command dollar='$'
  command="exec bertjax $(train_arguments "$workdir")"
  # Kubernetes replaces $$ by $ and expands $(NAME).
  command=${command//$dollar/$dollar$dollar}
  xpk_on_cluster workload create --workload="$name" --tpu-type="$accelerator" \
    --docker-image="$image" --command="$command" --max-restarts="$max_restarts" \
    --restart-on-exit-codes=75 --termination-grace-period-seconds=120
}

logs() {
  need name
  execute gcloud container clusters get-credentials "$cluster" --project="$project" \
    --location="${zone%-*}"
  execute kubectl logs --follow --prefix --tail=100 --max-log-requests=256 \
    --selector="xpk.google.com/workload=$name"
}

status() {
  need name
  xpk_on_cluster workload list --filter-by-job="$name"
}

watch() {
  need name
  xpk_on_cluster workload list --wait-for-job-completion="$name"
}

stop() {
  need name
  xpk_on_cluster workload delete --workload="$name"
}

delete() {
  xpk_on_cluster cluster delete
}

launch "$@"
