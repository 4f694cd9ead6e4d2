#!/bin/sh
# Searches recorded sessions and computes what they cost. This needs no key and starts no agent.
#
#     sh examples/past/past.sh                                           a session that examples/bug_hunt contains
#     sh examples/past/past.sh ~/.claude 'why did the migration fail'    your sessions
set -e
sessions=${1:-$(dirname "$0")/../bug_hunt/session.jsonl}
question=${2:-why was no flood alert sent}

orch import "$sessions"
orch archive search "$question"
orch replay "$sessions" --policy none,compaction,balanced
