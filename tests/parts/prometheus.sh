#!/usr/bin/env bash
# Prometheus: keeps the metrics from which Jaeger's Monitor tab answers.
name=prometheus version=2.42
. "$(dirname "$0")/lib.sh"
present || packages "prometheus=$version"
