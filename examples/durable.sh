#!/usr/bin/env bash
# A run in bash and curl that survives: kill it or the server at any moment, and it continues.
# Shows: checkpoint, inbox, suspend and effect over plain HTTP.
# Run:   fairlane serve
#        bash examples/durable.sh
#        fairlane message shop 'Two lamps' --handler order-bash --debounce 0
#        fairlane signal TASK paid --value '"in cash"'
set -euo pipefail

URL=${FAIRLANE_URL:-http://localhost:9867} WORKER=bash-worker-$$
HEADERS=(-H "Content-Type: application/json")
if [ -n "${FAIRLANE_TOKEN:-}" ]; then HEADERS+=(-H "Authorization: Bearer $FAIRLANE_TOKEN"); fi

post() { # post PATH BODY
    curl -sS --fail-with-body --max-time 70 "${HEADERS[@]}" -d "$2" "$URL$1"
}

field() { # field NAME JSON: the first text of that name
    [[ $2 =~ \"$1\":\"([^\"]*)\" ]] && echo "${BASH_REMATCH[1]}"
}

recorded() { # recorded NAME: the recorded text of a step, if there is one
    [[ $lease =~ \"name\":\"$1\",\"value\":\"([^\"]*)\" ]] && echo "${BASH_REMATCH[1]}"
}

record() { # record NAME TEXT
    post "/leases/$id/checkpoint" "{\"name\": \"$1\", \"value\": \"$2\"}" >&2 && echo "$2"
}

wait_for() { # wait_for NAME UNTIL: its text, or the end of the run until it has come
    recorded "$1" && return
    local answer && answer=$(post "/leases/$id/suspend" "{\"name\": \"$1\", \"until\": $2}") || return
    [[ $answer != *'"suspended":true'* ]] && field value "$answer"
}

effect() { # effect NAME COMMAND: run COMMAND KEY once; 409 effect_unknown ends the run
    recorded "$1" && return
    local answer && answer=$(post "/leases/$id/effect" "{\"name\": \"$1\"}") || return
    record "$1" "$("$2" "$(field key "$answer")")"
}

order() { # prints the result; each step runs once, however often the run begins again
    local price paid sent
    price=$(recorded price || record price "20 each") || return
    post "/leases/$id/inbox" '{}' >&2 || return # what was sent to the run meanwhile
    paid=$(wait_for paid '{"signal": "paid"}') || return
    sent=$(effect ship ship) || return
    echo "{\"price\": \"$price\", \"paid\": \"$paid\", \"sent\": \"$sent\"}"
}
ship() { echo "shipped under $1"; }

echo "$WORKER takes tasks from $URL"
ASK='{"worker": "'$WORKER'", "handlers": ["order-bash"], "waitMs": 10000, "ttlMs": 15000}'
while true; do # leases are short, because a curl may outlive a killed script
    lease=$(post /leases "$ASK") || { sleep 1 && continue; }
    if id=$(field leaseId "$lease") && result=$(order); then
        post "/leases/$id/complete" "{\"result\": $result}" >&2 || true
    fi
done
