#!/usr/bin/env bash
# The adapter of example-app: plan.jq says what the app needs, steps.jq what is due, mooring.sh speaks the contract.
#
#   MOORING_URL=…  MOORING_KEY_FILE=adapter.pem  ./adapter.sh
set -u
# shellcheck source=mooring.sh
. "$(dirname "$0")/mooring.sh"
serve example-app
