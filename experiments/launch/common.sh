# shellcheck shell=bash
# What tpu_vm.sh, gke.sh and slurm.sh share: values, dry runs, quoting. Bash 3.2, a Mac's, suffices.

# What a script says of itself: its verbs, the values they read, and those that all of them need.
verbs='' names='' required=''

# Every value that a file may hold, and what it is where nobody gives it.
# shellcheck disable=SC2034 # the scripts read them
{
  all_value_names='name config restarts project zone bucket accelerator capacity runtime worker'
  all_value_names+=' cluster image login directory nodes gpus time partition account python'
  name='' config='' restarts=30
  project='' zone='' bucket='' accelerator='' capacity=on-demand runtime='' worker=0
  cluster='' image=''
  login='' directory='' nodes='' gpus='' time='' partition='' account='' python=python3
}

overrides=() # --config.FIELD=VALUE, which bertjax reads itself
dry_run=false
script=$(basename "$0")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

fail() { # SENTENCE: a usage error
  printf '%s: %s\n' "$script" "$1" >&2
  exit 2
}

note() { # SENTENCE: what happens while nobody types
  printf '%s %s: %s\n' "$(date '+%F %T')" "$script" "$1" >&2
}

launch() { # VERB FLAG...
  local verb=${1:-}
  [ -n "$verb" ] || fail "no verb: use one of $verbs; --help says what each does."
  [ "$verb" != --help ] || usage
  known "$verb" "$verbs" || fail "'$verb' is no verb: use one of $verbs."
  read_flags "${@:2}"
  # shellcheck disable=SC2086 # a list of names
  need $required
  "$verb"
}

usage() { # the comment that a script begins with
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
  exit
}

# Commands

quote() { # WORD...: as any shell reads them
  local word gap='' single="'" escaped="'\\''"
  for word; do
    case $word in
      '' | *[!A-Za-z0-9_@%+=:,./-]*) word="'${word//$single/$escaped}'" ;;
    esac
    printf '%s%s' "$gap" "$word"
    gap=' '
  done
}

execute() { # COMMAND...
  if $dry_run; then
    quote "$@"
    echo
  else
    "$@"
  fi
}

piped() { # COMMAND... '|' COMMAND...
  local left=()
  while [ "$1" != '|' ]; do
    left+=("$1")
    shift
  done
  shift
  if $dry_run; then
    printf '%s | %s\n' "$(quote "${left[@]}")" "$(quote "$@")"
  else
    "${left[@]}" | "$@"
  fi
}

send_source() { # COMMAND...: which finds the committed files, a tar.gz, on its standard input
  if ! $dry_run && [ -n "$(git -C "$root" status --porcelain)" ]; then
    note "what is not committed in $root stays behind."
  fi
  piped git -C "$root" archive --format=tar.gz HEAD '|' "$@"
}

train_arguments() { # WORKDIR: what every host gives bertjax, as a shell reads it
  quote train --config "$config" --workdir "$1" ${overrides[@]+"${overrides[@]}"}
}

collect() { # from the bucket
  need_workdir
  execute mkdir -p "runs/$name"
  execute gcloud storage rsync "$workdir" "runs/$name" --recursive --project="$project"
}

# Values

need() { # NAME...: of values that must not be empty
  local item
  for item; do
    [ -n "${!item}" ] ||
      fail "$item has no value: give --$item VALUE, or --file FILE with a line '$item = VALUE'."
  done
}

need_workdir() { # in the bucket
  need name bucket
  case $bucket in
    gs://?*) workdir=${bucket%/}/runs/$name ;;
    *) fail "bucket is '$bucket': write gs://NAME." ;;
  esac
}

known() { # NAME NAMES
  local item
  for item in $2; do
    [ "$item" != "$1" ] || return 0
  done
  return 1
}

set_value() { # NAME VALUE
  case $2 in
    *$'\n'*) fail "the value of $1 holds a line break: write it in one line." ;;
  esac
  case $1 in
    config.*)
      overrides+=("--$1=$2")
      return
      ;;
    name)
      case $2 in
        */*) fail "name is '$2': write it without '/', because a folder and a job have it." ;;
      esac
      ;;
    capacity)
      known "$2" 'on-demand spot reserved' ||
        fail "capacity is '$2': use on-demand, spot or reserved."
      ;;
    restarts | worker | nodes | gpus)
      case $2 in
        '' | *[!0-9]*) fail "$1 is '$2': give a whole number." ;;
      esac
      ;;
  esac
  printf -v "$1" %s "$2"
}

read_file() { # FILE: of lines NAME = VALUE; nothing in it is expanded, so nothing needs quotes
  local line item value number=0
  [ -r "$1" ] || fail "$1 cannot be read: give --file a file of lines 'NAME = VALUE'."
  while IFS=$' \t' read -r line || [ -n "$line" ]; do
    number=$((number + 1))
    line=${line%$'\r'}
    case $line in
      '' | '#'*) continue ;;
      *=*) ;;
      *) fail "$1:$number: '$line' has no '=': write NAME = VALUE." ;;
    esac
    IFS=$' \t' read -r item <<<"${line%%=*}"
    IFS=$' \t' read -r value <<<"${line#*=}"
    case $item in
      config.?*) ;;
      *)
        known "$item" "$all_value_names" ||
          fail "$1:$number: '$item' is no value: use config.FIELD or one of $all_value_names."
        ;;
    esac
    set_value "$item" "$value"
  done <"$1"
}

read_flags() { # FLAG...: a flag wins over the file, wherever it stands
  local flag given=() i
  while [ $# -gt 0 ]; do
    flag=${1%%=*}
    case $flag in
      --help) usage ;;
      --dry-run)
        dry_run=true
        shift
        continue
        ;;
      --file | --config.?*) ;;
      *)
        known "$flag" "--${names// / --}" ||
          fail "'$1' is no flag here: use --file, --dry-run, --config.FIELD, --${names// /, --}."
        ;;
    esac
    if [ "$flag" != "$1" ]; then
      given+=("${flag#--}" "${1#*=}")
      shift
    else
      [ $# -gt 1 ] || fail "$1 has no value: write $1 VALUE."
      given+=("${1#--}" "$2")
      shift 2
    fi
  done
  for ((i = 0; i < ${#given[@]}; i += 2)); do
    [ "${given[i]}" != file ] || read_file "${given[i + 1]}"
  done
  for ((i = 0; i < ${#given[@]}; i += 2)); do
    [ "${given[i]}" = file ] || set_value "${given[i]}" "${given[i + 1]}"
  done
}
