#!/usr/bin/env bash
# A worker in bash and curl: one request reports the last task and leases the next.
#
# Shows: POST /leases/report with a long poll, complete, and fail with and without another attempt.
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

run() { # run LEASE: what the task is about; prints the fields of the report
    local target code
    target=$(field url <<<"$1")
    if [ -z "$target" ]; then
        echo '"verb": "fail", "error": "params.url is missing", "retryable": false'
    elif code=$(curl -s -o /dev/null --max-time 10 -w '%{http_code}' "$target"); then
        echo "\"verb\": \"complete\", \"result\": {\"status\": $code}"
    else
        echo '"verb": "fail", "error": "no response"' # the server retries it
    fi
}

echo "$WORKER takes tasks from $URL"
ASK='"worker": "'$WORKER'", "handlers": ["status"], "limit": 1, "waitMs": 30000, "ttlMs": 30000'
report=
while true; do
    # After a lost response the report is sent again, which is harmless.
    answer=$(post /leases/report "{$ASK, \"reports\": [$report]}") || { sleep 1 && continue; }
    if [[ $answer == *'"code":'* ]]; then echo "the report was refused: $answer" >&2; fi
    report=
    lease=${answer#*'"leases":['}
    id=$(field leaseId <<<"$lease")
    if [ -n "$id" ]; then report="{\"leaseId\": \"$id\", $(run "$lease")}"; fi
done
