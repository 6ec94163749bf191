#!/usr/bin/env bash
# Kubernetes' API server: what manifests must pass.
name=kube-apiserver version=1.34.4
. "$(dirname "$0")/lib.sh"
present || kubernetes_tool
