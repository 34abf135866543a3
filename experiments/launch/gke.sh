#!/usr/bin/env bash
# Trains on a TPU slice of a GKE cluster, with xpk.
#
#   gke.sh VERB [--file FILE] [--NAME VALUE ...] [--config.FIELD=VALUE ...] [--dry-run]
#
# create   creates a cluster with one slice
# setup    builds an image of the committed code, and pushes it
# run      starts training on every host of the slice; GKE restarts it after a preemption
# logs     follows the logs of all hosts
# status   says what the workload does
# watch    waits until training is done, or has failed for good
# stop     has training save and end
# collect  copies the run from the bucket to runs/NAME
# delete   deletes the cluster, with all that runs on it; what is in the bucket stays
#
# Values: name, project, zone, bucket, accelerator, config, cluster, image;
# capacity (on-demand or spot), restarts (30).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

verbs='create setup run logs status watch stop collect delete'
names='name project zone bucket accelerator config cluster image capacity restarts'
required='project zone cluster'

xpk_on_cluster() { # GROUP VERB FLAG...
  execute xpk "$1" "$2" --cluster="$cluster" --project="$project" --zone="$zone" "${@:3}"
}

create() {
  need accelerator
  [ "$capacity" != reserved ] || fail "capacity is 'reserved': use on-demand or spot on GKE."
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
  # `exec` so that the signal before a preemption reaches the training, not a shell around it.
  local command dollar='$'
  command="exec bertjax $(train_arguments "$workdir")"
  # Kubernetes makes one $ of two, and takes $(NAME) for a variable.
  command=${command//$dollar/$dollar$dollar}
  xpk_on_cluster workload create --workload="$name" --tpu-type="$accelerator" \
    --docker-image="$image" --command="$command" --max-restarts="$restarts" \
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
