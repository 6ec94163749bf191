#!/usr/bin/env bash
# kubeconform: holds manifests against schemas.
name=kubeconform version=0.8.0
. "$(dirname "$0")/lib.sh"
present || go_tool github.com/yannh/kubeconform/cmd/kubeconform "v$version"
