#!/usr/bin/env bash
# An agent in bash, with curl and python3 (for JSON): it takes work from an address of a Holdfast server by long poll, and
# can be killed at any time. Whoever is started next goes on at the step where it stopped.
#
#   HOLDFAST_URL      the server, http://127.0.0.1:7100 unless given
#   HOLDFAST_API_KEY  a key with the scope listen:orders, if the server wants one
#   LEDGER            the file that stands for the world: every effect is a line in it
#   PACE              seconds that a step takes behind its effect, so that there is time to kill the process
set -uo pipefail

url=${HOLDFAST_URL:-http://127.0.0.1:7100}
ledger=${LEDGER:-effects.log}
pace=${PACE:-1}
address=${1:-orders}

# ---- What this agent does: reserve, charge, confirm. Each effect is a line in the ledger, and leaves $output.

order() {
    local order reserved charged
    order=$(pick payload order)
    step reserve effect reserve "$order is reserved" || return
    reserved=$output
    # Nobody may be charged twice. If a process has died over it, we look whether it has happened.
    step_once charge charge_after_death effect charge "$order is paid" || return
    charged=$output
    step confirm effect confirm "$order is confirmed" || return
    output=$(list "$reserved" "$charged" "$output")
}

effect() {
    echo "$run $1 bash-$$" >>"$ledger"
    sleep "$pace"
    output=$2
}

charge_after_death() {
    if grep -q "^$run charge " "$ledger"; then output=$3; else "$@"; fi
}

# ---- What every agent needs. A delivery is in $delivery, as JSON; $id and $run are its names.

# step NAME COMMAND...: what is recorded is not done again; what is not is done, recorded, and only then gone on from.
step() {
    local name=$1
    shift
    if output=$(recorded "$name"); then return; fi
    "$@" || return
    post "/v1/deliveries/$id/steps" "$(object name "$name" output "$output")"
    [ "$status" = 200 ] && output=$(pick_from "$answer" output) # the first outcome under this name counts
}

# step_once NAME COMMAND_AFTER_DEATH COMMAND...: says that it begins, so that the next process is told if this one dies.
step_once() {
    local name=$1 after_death=$2
    shift 2
    if output=$(recorded "$name"); then return; fi
    if begun "$name"; then set -- "$after_death" "$@"; fi
    post "/v1/deliveries/$id/attempts" "{\"name\": \"$name\", \"once\": true}"
    [ "$status" = 204 ] && step "$name" "$@"
}

handle() {
    id=$(pick id) run=$(pick run_id) listener=$(pick listener_id)
    echo "run $run, delivery $(pick number)"
    heartbeats "$(pick lease)" &
    local heart=$!
    if order; then
        post "/v1/deliveries/$id/complete" "{\"output\": $output}"
        echo "run $run is done"
    else
        echo "run $run is left: $answer" # somebody else has it, or it was cancelled
    fi
    kill "$heart" 2>/dev/null
    wait "$heart" 2>/dev/null
}

# Signs of life, only while the agent itself lives: a heart that beats on in a dead body would keep its run for ever.
heartbeats() {
    while sleep "$(python3 -c 'import sys; print(float(sys.argv[1]) / 3)' "$1")" && kill -0 $$ 2>/dev/null; do
        post "/v1/deliveries/$id/heartbeat" '{}'
    done
}

# post PATH BODY: leaves $status and $answer. While the server is away it is tried again.
post() {
    local got
    while :; do
        got=$(curl -s -m 90 -H "Content-Type: application/json" -H @<(authorization) -w '\n%{http_code}' \
            --data-binary @- "$url$1" <<<"$2") || got=$'\n000'
        status=${got##*$'\n'} answer=${got%$'\n'*}
        case $status in 000 | 429 | 502 | 503 | 504) sleep 1 && kill -0 $$ 2>/dev/null || exit ;; *) return ;; esac
    done
}

authorization() { # not as an argument of curl, where everybody on this machine could read it
    [ -z "${HOLDFAST_API_KEY:-}" ] || echo "Authorization: Bearer $HOLDFAST_API_KEY"
}

# ---- JSON. Texts are printed as they are, everything else as JSON.

pick() { pick_from "$delivery" "$@"; }

pick_from() {
    python3 -c '
import json, sys
value = json.loads(sys.argv[1])
for name in sys.argv[2:]:
    value = value[name]
print(value if isinstance(value, str) else json.dumps(value))' "$@"
}

recorded() { # the output of a step; fails if there is none
    python3 -c '
import json, sys
found = [step["output"] for step in json.loads(sys.argv[1])["steps"] if step["name"] == sys.argv[2]]
print(found[0]) if found else sys.exit(1)' "$delivery" "$1"
}

begun() { # whether an earlier process has begun a step that must not happen twice
    python3 -c '
import json, sys
told = json.loads(sys.argv[1])["in_flight"]
sys.exit(not any(step["name"] == sys.argv[2] and step["once"] for step in told))' "$delivery" "$1"
}

object() { python3 -c 'import json, sys; print(json.dumps(dict(zip(sys.argv[1::2], sys.argv[2::2]))))' "$@"; }
list() { python3 -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@"; }

echo "listening on $address at $url"
listener=
while :; do
    post "/v1/addresses/$address/claim?wait=25" "$(object name "bash $$" ${listener:+listener_id "$listener"})"
    case $status in
    200) delivery=$answer && handle ;;
    204) ;; # nothing has come
    *) echo "the server refuses: $answer" >&2 && exit 1 ;;
    esac
done
