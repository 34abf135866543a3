#!/usr/bin/env bash
# Trains on a Cloud TPU slice, as a queued resource, with gcloud.
#
#   tpu_vm.sh VERB [--file FILE] [--NAME VALUE ...] [--config.FIELD=VALUE ...] [--dry-run]
#
# create   asks for the slice; the request may wait in a queue
# setup    sends the committed code to the bucket, and installs it on every worker
# run      starts training on every worker where it does not run
# logs     follows the log of one worker
# status   says what the slice and its workers do
# watch    sets up and runs as soon as the slice is there, creates it again after a preemption, and
#          deletes it when training is done; it may be interrupted and started again at any time
# stop     has training save and end
# collect  copies the run from the bucket to runs/NAME
# delete   deletes the slice; what is in the bucket stays
#
# Values: name, project, zone, bucket, accelerator, runtime, config; capacity (on-demand, spot or
# reserved), restarts (30), worker (0, for logs).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

verbs='create setup run logs status watch stop collect delete'
names='name project zone bucket accelerator runtime config capacity restarts worker'
required='name project zone'
worker_script=bertjax/experiments/launch/worker.sh
max_failures=3  # of training, before somebody has to look
max_unanswered=10 # looks in a row without an answer

# The slice

slice() { # GROUP VERB FLAG...: of gcloud compute tpus
  execute gcloud compute tpus "$1" "$2" "$name" --project="$project" --zone="$zone" "${@:3}"
}

create() {
  need accelerator runtime
  local flags=(--node-id="$name" --accelerator-type="$accelerator" --runtime-version="$runtime")
  [ "$capacity" = on-demand ] || flags+=("--$capacity")
  slice queued-resources create "${flags[@]}"
}

delete() {
  slice queued-resources delete --force --quiet
}

queue_state() {
  slice queued-resources describe \
    --format='value[separator=" "](state.state, state.failedData.error.message)'
}

node_state() {
  slice tpu-vm describe --format='value(state)'
}

# Its workers

on_workers() { # all or a number, a line of shell
  slice tpu-vm ssh --worker="$1" --command="$2"
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
  need accelerator runtime config
  need_workdir
  if $dry_run; then
    plan
    return
  fi
  # What a restart installs is what the first start installed, whatever was committed since.
  gcloud storage ls "$workdir/source.tar.gz" --project="$project" >/dev/null 2>&1 || send
  restarted=0 failed=0
  local answer state reason before='' silences=0 gone=false
  while :; do
    answer=$(slice_state) || answer=unknown
    read -r state reason <<<"$answer"
    [ "$answer" = "$before" ] || note "$name is $state${reason:+: $reason}."
    before=$answer
    case $state in
      READY) handle_worker_states || state=unknown ;;
      SUSPENDED | FAILED | PREEMPTED | TERMINATED)
        count_restart "$name was $state"
        if delete; then gone=true; else state=unknown; fi
        ;;
    esac
    if $gone; then
      if create; then gone=false; else state=unknown; fi
    fi
    if [ "$state" = unknown ]; then
      silences=$((silences + 1))
      [ "$silences" -lt "$max_unanswered" ] ||
        give_up "$max_unanswered commands in a row about $name have failed, as said above"
    else
      silences=0
    fi
    sleep 60
  done
}

slice_state() { # of the request until it is met, then of the slice
  local answer
  answer=$(queue_state) || return
  case $answer in
    ACTIVE*) node_state ;;
    *) echo "$answer" ;;
  esac
}

handle_worker_states() { # and do what they need
  local states
  states=$(worker_states | grep -Eo '^(running|idle|stopped|[0-9]+)' | sort -u | tr '\n' ' ') ||
    return
  case " $states" in
    *' running '*) ;;
    *' 2 '*)
      note "training refuses its input, as \`logs\` says: mend it and \`run\` again; $name is left."
      exit 2
      ;;
    *' stopped '*)
      note "training was ended by \`stop\`: \`run\` goes on with it; $name is left."
      exit
      ;;
    *' idle '*) install && run ;;
    ' 0 ')
      note "training is done: \`collect\` copies $workdir."
      delete
      exit
      ;;
    ' 75 ' | ' 0 75 ')
      count_restart "training was stopped before its end"
      run
      ;;
    *)
      failed=$((failed + 1))
      [ "$failed" -lt "$max_failures" ] ||
        give_up "training has failed $failed times, with exit status ${states% }, as \`logs\` says"
      count_restart "training failed with exit status ${states% }"
      run
      ;;
  esac
}

count_restart() { # WHY
  [ "$restarted" -lt "$restarts" ] || give_up "$1, after $restarts restarts"
  restarted=$((restarted + 1))
  note "$1: restart $restarted of $restarts."
}

give_up() { # WHY
  note "$1: mend it and \`watch\` again, or \`delete\` $name, which is left as it is."
  exit 1
}

plan() { # what `watch` would do, and when
  echo '# Every minute:'
  queue_state
  node_state
  worker_states
  echo '# Where the bucket has no code yet:'
  send
  echo '# Where a worker is idle:'
  install
  run
  echo '# Where training was stopped before its end:'
  run
  echo '# After a preemption:'
  delete
  create
  echo '# When training is done:'
  delete
}

launch "$@"
