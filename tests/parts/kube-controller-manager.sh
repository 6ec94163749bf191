#!/usr/bin/env bash
# Kubernetes' controllers: make pods of StatefulSets.
name=kube-controller-manager version=1.34.4
. "$(dirname "$0")/lib.sh"
present || kubernetes_tool
