#!/usr/bin/env bash
# The kubelet: runs pods.
name=kubelet version=1.34.4
. "$(dirname "$0")/lib.sh"
present || kubernetes_tool
