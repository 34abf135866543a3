#!/usr/bin/env bash
# Trains on a Cloud TPU slice, as a queued resource, with gcloud.
#
#   tpu_vm.sh SUBCOMMAND [--file FILE] [--NAME VALUE ...] [--config.FIELD=VALUE ...] [--dry-run]
#
# create   requests the slice; the request may wait in a queue
# setup    sends the committed code to the bucket and installs it on every worker
# run      starts training on every worker, unless it runs
# logs     follows the log of one worker
# status   prints the state of the slice and its workers
# watch    sets up and runs once the slice is active, creates it again after a preemption, and
#          deletes it when training is done; may be interrupted and started again
# stop     lets training save and exit
# collect  copies the run from the bucket to runs/NAME
# delete   deletes the slice, but not the bucket
#
# Settings: name, project, zone, bucket, accelerator (v2-N, v3-N, v4-N, v5litepod-N, v5p-N or v6e-N),
# config; runtime (that of the accelerator), capacity (on-demand, spot or reserved), max_restarts (30),
# worker (0, for logs).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

subcommands='create setup run logs status watch stop collect delete'
names='name project zone bucket accelerator runtime config capacity max_restarts worker'
required='name project zone'
worker_script=bertjax/experiments/launch/worker.sh
max_failures=3   # of training, before watch gives up
max_unanswered=10 # failed commands in a row

# The slice

gcloud_tpu() { # GROUP COMMAND FLAG...
  execute gcloud compute tpus "$1" "$2" "$name" --project="$project" --zone="$zone" "${@:3}"
}

# Of JAX, after docs.cloud.google.com/tpu/docs/runtimes.
resolve_runtime() { # also checks the accelerator
  local default
  need accelerator
  case $accelerator in
    tpu7x-*) fail "accelerator='$accelerator': the Cloud TPU API has no TPU7x. Use gke.sh." ;;
    *-*[!0-9]* | *-) default='' ;;
    v[234]-*) default=tpu-ubuntu2204-base ;;
    v5litepod-*) default=v2-alpha-tpuv5-lite ;;
    v5p-*) default=v2-alpha-tpuv5 ;;
    v6e-*) default=v2-alpha-tpuv6e ;;
    *) default='' ;;
  esac
  [ -n "$default" ] || fail "accelerator='$accelerator': unknown. \
Use v2-N, v3-N, v4-N, v5litepod-N, v5p-N or v6e-N."
  runtime=${runtime:-$default}
}

create() {
  resolve_runtime
  local flags=(--node-id="$name" --accelerator-type="$accelerator" --runtime-version="$runtime")
  [ "$capacity" = on-demand ] || flags+=("--$capacity")
  gcloud_tpu queued-resources create "${flags[@]}"
}

delete() {
  gcloud_tpu queued-resources delete --force --quiet
}

queue_state() {
  gcloud_tpu queued-resources describe \
    --format='value[separator=" "](state.state, state.failedData.error.message)'
}

node_state() {
  gcloud_tpu tpu-vm describe --format='value(state)'
}

# Its workers

on_workers() { # all|INDEX LINE
  gcloud_tpu tpu-vm ssh --worker="$1" --command="$2"
}

setup() {
  send
  install
}

send() {
  need_workdir
  send_source gcloud storage cp - "$workdir/source.tar.gz" --project="$project"
}

install() {
  need_workdir
  local fetch
  fetch=$(quote gcloud storage cat "$workdir/source.tar.gz")
  on_workers all "mkdir -p bertjax && $fetch | tar -xz -C bertjax && bash $worker_script setup"
}

run() {
  need config
  need_workdir
  on_workers all "bash $worker_script start $(quote "$workdir") $(train_arguments "$workdir")"
}

logs() {
  on_workers "$worker" "tail -n 100 -F bertjax/train.log"
}

worker_states() {
  on_workers all "if [ -d bertjax ]; then bash $worker_script status; else echo idle; fi"
}

status() {
  queue_state
  worker_states
}

stop() {
  on_workers all "bash $worker_script stop"
}

# Until training is done

watch() {
  resolve_runtime
  need config
  need_workdir
  if $dry_run; then
    print_plan
    return
  fi
  # A restart installs what the first start installed, whatever was committed since.
  gcloud storage ls "$workdir/source.tar.gz" --project="$project" >/dev/null 2>&1 || send
  restarted=0 failed=0
  local answer state reason before='' unanswered=0 deleted=false
  while :; do
    answer=$(slice_state) || answer=unknown
    read -r state reason <<<"$answer"
    [ "$answer" = "$before" ] || log "$name is $state${reason:+: $reason}."
    before=$answer
    case $state in
      READY) handle_worker_states || state=unknown ;;
      SUSPENDED | FAILED | PREEMPTED | TERMINATED)
        count_restart "$name was $state"
        if delete; then deleted=true; else state=unknown; fi
        ;;
    esac
    if $deleted; then
      if create; then deleted=false; else state=unknown; fi
    fi
    if [ "$state" = unknown ]; then
      unanswered=$((unanswered + 1))
      [ "$unanswered" -lt "$max_unanswered" ] ||
        give_up "$max_unanswered commands in a row about $name failed"
    else
      unanswered=0
    fi
    sleep 60
  done
}

slice_state() { # of the request until it is active, then of the slice
  local answer
  answer=$(queue_state) || return
  case $answer in
    ACTIVE*) node_state ;;
    *) echo "$answer" ;;
  esac
}

handle_worker_states() {
  local states
  states=$(worker_states | grep -Eo '^(running|idle|stopped|[0-9]+)' | sort -u | tr '\n' ' ') ||
    return
  case " $states" in
    *' running '*) ;;
    *' 2 '*)
      log "training rejects its input, see \`logs\`: fix it and \`run\` again. $name is not deleted."
      exit 2
      ;;
    *' stopped '*)
      log "training was stopped: \`run\` resumes it. $name is not deleted."
      exit
      ;;
    *' idle '*) install && run ;;
    ' 0 ')
      log "training is done. \`collect\` copies $workdir."
      delete
      exit
      ;;
    ' 75 ' | ' 0 75 ')
      count_restart "training was stopped early"
      run
      ;;
    *)
      failed=$((failed + 1))
      [ "$failed" -lt "$max_failures" ] ||
        give_up "training failed $failed times, with exit status ${states% }, see \`logs\`"
      count_restart "training failed with exit status ${states% }"
      run
      ;;
  esac
}

count_restart() { # WHY
  [ "$restarted" -lt "$max_restarts" ] || give_up "$1, after $max_restarts restarts"
  restarted=$((restarted + 1))
  log "$1: restart $restarted of $max_restarts."
}

give_up() { # WHY
  log "$1. Fix it and \`watch\` again, or \`delete\` $name, which still costs money."
  exit 1
}

print_plan() { # commands of watch, and when it runs them
  echo '# Every minute:'
  queue_state
  node_state
  worker_states
  echo '# If the bucket has no code yet:'
  send
  echo '# If a worker is idle:'
  install
  run
  echo '# If training was stopped early:'
  run
  echo '# After a preemption:'
  delete
  create
  echo '# When training is done:'
  delete
}

launch "$@"
