#!/usr/bin/env bash
# kube-score: what is unwise in manifests.
name=kube-score version=1.20.0
. "$(dirname "$0")/lib.sh"
present || go_tool github.com/zegl/kube-score/cmd/kube-score "v$version"
