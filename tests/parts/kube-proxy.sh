#!/usr/bin/env bash
# kube-proxy: leads a service's address to its pods.
name=kube-proxy version=1.34.4
. "$(dirname "$0")/lib.sh"
present || kubernetes_tool
