#!/usr/bin/env bash
# Kubernetes' scheduler: gives pods their node.
name=kube-scheduler version=1.34.4
. "$(dirname "$0")/lib.sh"
present || kubernetes_tool
