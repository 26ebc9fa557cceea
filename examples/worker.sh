#!/usr/bin/env bash
# A worker in bash and curl: leases one task at a time, runs it, reports.
#
# Shows: POST /leases with a long poll, complete, and fail with and without another attempt.
# Run:   fairlane serve
#        bash examples/worker.sh
#        fairlane submit --handler status --param url=http://localhost:9867/health/live --wait
set -euo pipefail

URL=${FAIRLANE_URL:-http://localhost:9867}
WORKER=bash-worker-$$
HEADERS=(-H "Content-Type: application/json")
if [ -n "${FAIRLANE_TOKEN:-}" ]; then HEADERS+=(-H "Authorization: Bearer $FAIRLANE_TOKEN"); fi

post() { # post PATH BODY
    curl -sS --fail-with-body --max-time 70 "${HEADERS[@]}" -d "$2" "$URL$1"
}

field() { # field NAME: the first text of that name in the JSON on stdin
    sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" | head -n 1
}

run() { # run LEASE: what the task is about; prints the report
    local target code
    target=$(field url <<<"$1")
    if [ -z "$target" ]; then
        echo 'fail {"error": "params.url is missing", "retryable": false}'
    elif code=$(curl -s -o /dev/null --max-time 10 -w '%{http_code}' "$target"); then
        echo "complete {\"result\": {\"status\": $code}}"
    else
        echo 'fail {"error": "no response"}' # the server retries it
    fi
}

echo "$WORKER takes tasks from $URL"
ASK='{"worker": "'$WORKER'", "handlers": ["status"], "waitMs": 30000, "ttlMs": 30000}'
while true; do
    lease=$(post /leases "$ASK") || { sleep 1 && continue; } # the server is away
    id=$(field leaseId <<<"$lease")
    if [ -z "$id" ]; then continue; fi # nothing to do within 30 seconds
    read -r verb body <<<"$(run "$lease")"
    post "/leases/$id/$verb" "$body" >/dev/null || echo "the report about $id was refused" >&2
done
